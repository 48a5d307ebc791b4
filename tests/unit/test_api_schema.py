"""From pydantic's JSON schema to a structural schema."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from kvquota_api.list_map import ListMap
from kvquota_api.resource import Count, Model, Percent, Quantity
from kvquota_api.rules import Rule
from kvquota_api.schema import SchemaError, structural_schema
from kvquota_api.words import PRESET_PATTERN

Word = Annotated[str, Field(max_length=9)]


class Inner(Model):
    """An inner
    thing."""

    size: Annotated[int, Field(ge=1, le=5)] = 3
    """Its size."""
    note: Word | None = None

    rules = (Rule("self.size < 5", "be smaller", lambda inner: inner.size < 5, field="size"),)


class Together(Model):
    note: Word | None = None

    one_value = True


class Outer(Model):
    """First paragraph
    goes on.

    Second paragraph.
    """

    inner: Inner
    stored: Inner = Inner()
    """Overrides the class."""
    larger: Inner = Inner(size=4)
    keyed: Annotated[tuple[Inner, ...], Field(max_length=3), ListMap("size")] = ()
    together: Together | None = None
    port: Annotated[str, Field(max_length=9, pattern=PRESET_PATTERN)] | None = None
    count: Count | None = None
    some: Annotated[tuple[Inner, ...], Field(max_length=2)] = ()
    by_name: dict[str, Word] = Field(default_factory=dict, max_length=4)
    free: dict[str, Any] | None = None
    choice: Literal["A", "B"] = "A"
    only: Literal["X"] = "X"
    big: Annotated[int, Field(ge=0, le=2**40)] = 0
    least: Annotated[int, Field(ge=1)] = 1
    on: bool = True
    empty: Word = ""
    share: Percent | None = None
    memory: Quantity
    at: datetime | None = None


INNER = {
    "description": "An inner thing.",
    "type": "object",
    "x-kubernetes-validations": [{"rule": "self.size < 5", "message": "be smaller", "fieldPath": ".size"}],
    "properties": {
        "size": {
            "description": "Its size. From 1 to 5. Default: 3.",
            "type": "integer",
            "minimum": 1,
            "maximum": 5,
            "format": "int32",
            "default": 3,
        },
        "note": {"description": "At most 9 characters.", "type": "string", "maxLength": 9},
    },
}


def test_a_model_is_written_in_the_order_of_its_fields() -> None:
    schema = structural_schema(Outer)

    assert schema["description"] == "First paragraph goes on.\n\nSecond paragraph."
    assert schema["required"] == ["inner", "memory"]
    assert list(schema["properties"]) == [
        "inner", "stored", "larger", "keyed", "together", "port", "count", "some", "byName", "free", "choice",
        "only", "big", "least", "on", "empty", "share", "memory", "at",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "written"),
    [
        pytest.param("inner", INNER, id="a reference is written out"),
        pytest.param(
            "stored",
            {**INNER, "description": "Overrides the class.", "default": {"size": 3}},
            id="what stands beside a reference wins, and a default is stored without what has no value",
        ),
        pytest.param(
            "larger",
            {**INNER, "description": "An inner thing. Default: {size: 4}.", "default": {"size": 4}},
            id="an object whose default is not that of its fields says so",
        ),
        pytest.param(
            "keyed",
            {
                "description": "At most 3 items.",
                "type": "array",
                "maxItems": 3,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["size"],
                "items": INNER,
            },
            id="a list whose items have a key is merged by it",
        ),
        pytest.param(
            "together",
            {
                "type": "object",
                "x-kubernetes-map-type": "atomic",
                "properties": {"note": {"description": "At most 9 characters.", "type": "string", "maxLength": 9}},
            },
            id="fields that are one value are merged as a whole",
        ),
        pytest.param(
            "port",
            {
                "description": "At most 9 characters. It may have lower-case letters, digits, - and . only.",
                "type": "string",
                "maxLength": 9,
                "pattern": PRESET_PATTERN,
            },
            id="a pattern is said in words",
        ),
        pytest.param(
            "count",
            {
                "description": "From 0 to 2^53.",
                "type": "integer",
                "minimum": 0,
                "maximum": 2**53,
                "format": "int64",
            },
            id="a bound that is a power of two is said as one",
        ),
        pytest.param(
            "some",
            {
                "description": "At most 2 items.",
                "type": "array",
                "maxItems": 2,
                "x-kubernetes-list-type": "atomic",
                "items": INNER,
            },
            id="an empty list is no default, and is merged as a whole",
        ),
        pytest.param(
            "byName",
            {
                "description": "At most 4 entries.",
                "type": "object",
                "maxProperties": 4,
                "additionalProperties": {"description": "At most 9 characters.", "type": "string", "maxLength": 9},
            },
            id="a map",
        ),
        pytest.param("free", {"type": "object", "x-kubernetes-preserve-unknown-fields": True}, id="anything"),
        pytest.param(
            "choice",
            {"description": "Default: A.", "type": "string", "enum": ["A", "B"], "default": "A"},
            id="a choice of words",
        ),
        pytest.param(
            "only", {"description": "Default: X.", "type": "string", "enum": ["X"], "default": "X"}, id="one word only"
        ),
        pytest.param(
            "big",
            {
                "description": "From 0 to 1099511627776. Default: 0.",
                "type": "integer",
                "minimum": 0,
                "maximum": 2**40,
                "format": "int64",
                "default": 0,
            },
            id="a large integer",
        ),
        pytest.param(
            "least",
            {
                "description": "At least 1. Default: 1.",
                "type": "integer",
                "minimum": 1,
                "format": "int64",
                "default": 1,
            },
            id="an integer without an upper bound",
        ),
        pytest.param("on", {"description": "Default: true.", "type": "boolean", "default": True}, id="a switch"),
        pytest.param(
            "empty",
            {"description": "At most 9 characters. Default: empty.", "type": "string", "maxLength": 9, "default": ""},
            id="an empty text is a default",
        ),
        pytest.param("at", {"type": "string", "format": "date-time"}, id="a time"),
    ],
)
def test_writes(field: str, written: dict[str, Any]) -> None:
    assert structural_schema(Outer)["properties"][field] == written


@pytest.mark.parametrize("field", ["share", "memory"])
def test_an_amount_is_an_integer_or_text(field: str) -> None:
    written = structural_schema(Outer)["properties"][field]

    assert "type" not in written
    assert written["x-kubernetes-int-or-string"] is True
    assert {"pattern", "maxLength", "minimum"} < set(written)


def test_is_the_same_every_time() -> None:
    assert repr(structural_schema(Outer)) == repr(structural_schema(Outer))


class Recursive(BaseModel):
    again: Recursive | None = None


class Union(BaseModel):
    either: int | Word


class Tuple(BaseModel):
    pair: tuple[int, int]


class Exclusive(BaseModel):
    above: Annotated[int, Field(gt=0)]


class Uuid(BaseModel):
    path: Annotated[str, Field(json_schema_extra={"format": "uuid"})]


class FreeText(BaseModel):
    text: str


class FreeList(BaseModel):
    items: tuple[Word, ...]


class FreeMap(BaseModel):
    by_name: dict[str, Word]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        pytest.param(Recursive, "Recursive.again: Recursive holds itself", id="a model that holds itself"),
        pytest.param(
            Union, "Union.either: a choice between 2 shapes has no structural schema", id="a choice of shapes"
        ),
        pytest.param(Tuple, "Tuple.pair: keyword prefixItems has no translation here", id="a tuple of fixed length"),
        pytest.param(
            Exclusive, "Exclusive.above: keyword exclusiveMinimum has no translation", id="an exclusive bound"
        ),
        pytest.param(Uuid, "Uuid.path: format uuid has no translation here", id="a format"),
        pytest.param(FreeText, "FreeText.text: string without maxLength", id="text without a bound"),
        pytest.param(FreeList, "FreeList.items: array without maxItems", id="a list without a bound"),
        pytest.param(FreeMap, "FreeMap.by_name: object without maxProperties", id="a map without a bound"),
    ],
)
def test_refuses_with_the_path(model: type[BaseModel], says: str) -> None:
    with pytest.raises(SchemaError, match=f"^{says}"):
        structural_schema(model)
