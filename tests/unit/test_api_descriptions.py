"""What `kubectl explain` says of every field: meaning, unit, bounds and default; and how two writers are merged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kvquota_api.crd import RESOURCES, custom_resource_definition

UNITS = (
    "tokens", "blocks", "bytes", "percent", "seconds", "requests", "sequences", "gpus", "cards", "pods", "layers",
    "stages", "copies", "port", "priority", "important", "generation",
)  # fmt: skip
"""Words of which a number's name or description has one: what is counted, or what the number is."""

LEFT_TO_THE_API_SERVER = (".apiVersion", ".kind", ".metadata")


@dataclass(frozen=True, slots=True)
class Described:
    """A field with its path, and the object that it is part of."""

    path: str
    schema: dict[str, Any]
    parent: dict[str, Any]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def says(self) -> str:
        text: str = self.schema.get("description", "")
        return text

    @property
    def in_union(self) -> bool:
        """Exactly one of several is set: there is no default among them."""
        rules = self.parent.get("x-kubernetes-validations", ())
        return any(re.search(rf"\[.*has\(self\.{self.name}\).*\]\.filter", each["rule"]) for each in rules)


def fields_of(schema: dict[str, Any], path: str) -> Iterator[Described]:
    for name, child in schema.get("properties", {}).items():
        yield Described(f"{path}.{name}", child, schema)
        yield from fields_of(child, f"{path}.{name}")
    yield from fields_of(schema["items"], f"{path}[]") if "items" in schema else ()


FIELDS = tuple(
    field
    for resource in RESOURCES
    for field in fields_of(
        custom_resource_definition(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"], resource.kind
    )
    if not field.path.endswith(LEFT_TO_THE_API_SERVER)
)
AMOUNTS = [field for field in FIELDS if "x-kubernetes-int-or-string" in field.schema]
NUMBERS = [field for field in FIELDS if field.schema.get("type") == "integer"]


def named(field: Described) -> str:
    return field.path


def test_there_are_fields_of_all_kinds() -> None:
    kinds = {field.schema.get("type", "int-or-string") for field in FIELDS}

    assert kinds == {"object", "array", "string", "integer", "boolean", "int-or-string"}
    assert len(FIELDS) > 200


@pytest.mark.parametrize("field", FIELDS, ids=named)
def test_says_what_it_means_in_sentences(field: Described) -> None:
    first, _, _ = field.says.partition(". ")

    assert len(first.split()) > 1
    assert field.says.endswith(".")
    assert field.says[0] == field.says[0].upper() or field.says.startswith(
        ("kvquota", "llama.cpp", "vLLM", "reporting/")
    )


@pytest.mark.parametrize("field", [*NUMBERS, *AMOUNTS], ids=named)
def test_a_number_says_its_unit(field: Described) -> None:
    words = f"{field.name} {field.says}".lower()

    assert [unit for unit in UNITS if unit in words] != []


@pytest.mark.parametrize("field", [*NUMBERS, *AMOUNTS], ids=named)
def test_a_number_says_its_bounds(field: Described) -> None:
    low, high = field.schema["minimum"], field.schema.get("maximum")
    written = {2**31 - 1: "2^31-1", 2**53: "2^53"}.get(high or 0, high)

    assert (f"At least {low}." if high is None else f"From {low} to {written}.") in field.says


@pytest.mark.parametrize(
    "field",
    [field for field in FIELDS if {"maxLength", "maxItems", "maxProperties"} & set(field.schema)
     if field.schema.get("type") is not None],
    ids=named,
)  # fmt: skip
def test_what_can_be_long_says_how_long(field: Described) -> None:
    bounds = {"maxLength": "characters", "maxItems": "items", "maxProperties": "entries"}
    longest = [f"At most {field.schema[key]} {unit}." for key, unit in bounds.items() if key in field.schema]

    assert [sentence for sentence in longest if sentence not in field.says] == []


@pytest.mark.parametrize("field", [field for field in FIELDS if "pattern" in field.schema], ids=named)
def test_text_of_a_form_says_the_form(field: Described) -> None:
    forms = ("It may have ", "It must be ", "quantity", "ytes", "at most two decimals")

    assert [form for form in forms if form in field.says] != []


@pytest.mark.parametrize(
    "field",
    [field for field in FIELDS if ".spec." in field.path and field.name not in field.parent.get("required", ())
     if not field.in_union],
    ids=named,
)  # fmt: skip
def test_what_may_be_left_out_says_what_holds_then(field: Described) -> None:
    object_of_defaults = field.schema.get("type") == "object" and field.schema.get("default") == {
        name: each["default"] for name, each in field.schema.get("properties", {}).items() if "default" in each
    }

    assert object_of_defaults or "Default: " in field.says


@pytest.mark.parametrize("field", [field for field in FIELDS if field.schema.get("type") == "boolean"], ids=named)
def test_a_switch_says_what_it_does(field: Described) -> None:
    assert len(field.says.split()) > 5


@pytest.mark.parametrize("field", [field for field in FIELDS if field.schema.get("type") == "array"], ids=named)
def test_a_list_says_how_two_writers_of_it_are_merged(field: Described) -> None:
    keys = field.schema.get("x-kubernetes-list-map-keys", [])

    assert field.schema["x-kubernetes-list-type"] == ("map" if keys else "atomic")
    assert [key for key in keys if key not in field.schema["items"]["required"]] == []


@pytest.mark.parametrize("field", [field for field in FIELDS if field.in_union], ids=named)
def test_a_union_is_replaced_as_a_whole(field: Described) -> None:
    assert field.parent["x-kubernetes-map-type"] == "atomic"


@pytest.mark.parametrize(
    "field",
    [field for field in FIELDS if field.name.endswith("Ref") or field.name in ("configMap", "secret")],
    ids=named,
)
def test_a_reference_is_replaced_as_a_whole(field: Described) -> None:
    assert field.schema["x-kubernetes-map-type"] == "atomic"
