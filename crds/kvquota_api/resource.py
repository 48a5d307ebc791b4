"""The base of every resource model, and the kinds of value that they share.

Decides how a model is written as YAML: camelCase, nothing unknown, nothing changed after it was read. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    StrictInt,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from kvquota_api.amounts import (
    MAX_QUANTITY_LENGTH,
    PERCENT_PATTERN,
    QUANTITY_PATTERN,
    AmountError,
    parse_percent,
    parse_quantity,
)
from kvquota_api.meta import DNS_LABEL_PATTERN, DNS_NAME_PATTERN, SECRET_KEY_PATTERN
from kvquota_api.rules import ChangeRule, Rule

MAX_INT64: Final = 2**63 - 1  # the largest whole number that the API server keeps as one


def _checked(parse: Callable[[Any], int]) -> Callable[[Any], int | str]:
    def check(value: Any) -> int | str:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise PydanticCustomError("int_or_string", "must be a whole number or text in quotes")
        if isinstance(value, int) and value > MAX_INT64:
            raise PydanticCustomError("int64", "is too large for a number: write it as text with a suffix, as in 8Gi")
        try:
            parse(value)
        except AmountError as error:
            raise PydanticCustomError("amount", "{reason}", {"reason": str(error)}) from error
        return value

    return check


Percent = Annotated[
    int | str,
    PlainValidator(_checked(parse_percent)),
    WithJsonSchema(
        {"x-kubernetes-int-or-string": True, "pattern": PERCENT_PATTERN, "maxLength": 6, "minimum": 0, "maximum": 100}
    ),
]
Quantity = Annotated[
    int | str,
    PlainValidator(_checked(parse_quantity)),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "pattern": QUANTITY_PATTERN,
            "maxLength": MAX_QUANTITY_LENGTH,
            "minimum": 0,
        }
    ),
]
WholePercent = Annotated[StrictInt, Field(ge=0, le=100)]
Port = Annotated[StrictInt, Field(ge=1, le=65535)]
Count = Annotated[StrictInt, Field(ge=0, le=2**53)]  # what JSON carries exactly in every client
TokenCount = Annotated[StrictInt, Field(ge=1, le=2**31 - 1)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=DNS_NAME_PATTERN)]
DataKey = Annotated[str, Field(min_length=1, max_length=253, pattern=SECRET_KEY_PATTERN)]


def json_only(value: dict[str, Any]) -> dict[str, Any]:
    """Raise a validation error for what JSON cannot say: dates, bytes, keys that are no text, numbers that are none."""
    try:
        json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PydanticCustomError("json", "must be JSON, so put dates in quotes: {why}", {"why": str(error)}) from error
    return value


def _readable_or_none(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError:
        return None


# A stored status that this version cannot read: it never decides whether the spec beside it is valid.
readable_or_none: Final = WrapValidator(_readable_or_none)


class Model(BaseModel):
    """Part of a resource. `rules` and `change_rules` are what the part can decide about itself.

    `one_value`: the fields only mean something together (a union, a reference), so the API server lets a writer replace
    them as a whole and never merges those of two writers.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()
    change_rules: ClassVar[tuple[ChangeRule, ...]] = ()
    one_value: ClassVar[bool] = False

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        declared: tuple[Rule | ChangeRule, ...] = (*cls.rules, *cls.change_rules)
        rules = [_as_validation(rule) for rule in declared]
        if rules:
            handler.resolve_ref_schema(schema)["x-kubernetes-validations"] = rules
        if cls.one_value:
            handler.resolve_ref_schema(schema)["x-kubernetes-map-type"] = "atomic"
        return schema

    def present_fields(self) -> set[str]:
        """Names, as users write them, of the fields that have a value."""
        fields = type(self).model_fields
        return {field.alias or name for name, field in fields.items() if getattr(self, name) is not None}

    def as_written(self) -> dict[str, Any]:
        """The model as a user writes it in YAML: camelCase, without what has no value."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _as_validation(rule: Rule | ChangeRule) -> dict[str, str]:
    blamed = {"fieldPath": f".{rule.field}"} if rule.field else {}
    return {"rule": rule.cel, "message": rule.message, **blamed}


class StatusModel(Model):
    """Part of a status: the operator writes it. What a newer operator wrote beside it is passed over."""

    model_config = ConfigDict(extra="ignore")


class Metadata(Model):
    """What kvquota reads of an object's metadata; the API server has its own schema of it."""

    model_config = ConfigDict(extra="ignore")

    name: ObjectName
    namespace: Annotated[str, Field(max_length=63, pattern=DNS_LABEL_PATTERN)] = "default"
    uid: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "object"}


class LocalRef(Model):
    """An object of the same namespace."""

    one_value = True

    name: ObjectName
    """Name of the object, in the same namespace."""


class KeyRef(Model):
    """One key of a Secret or ConfigMap of the same namespace."""

    one_value = True

    name: ObjectName
    """Name of the object, in the same namespace."""
    key: DataKey
    """Which of its keys."""
