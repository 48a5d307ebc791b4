"""What is accepted and does nothing yet, and what is said of it."""

from typing import Any

import pytest

from contract_inert import ASKING
from contract_objects import Json
from kvquota_api.crd import RESOURCES, object_schema
from kvquota_api.inert import INERT, NOT_YET, not_enforced
from kvquota_api.reference import reference
from kvquota_api.validation import parse_model_pool, parse_tenant_quota

PARSE = {"ModelPool": parse_model_pool, "TenantQuota": parse_tenant_quota}


@pytest.mark.parametrize(("raw", "paths"), ASKING.values(), ids=ASKING)
def test_what_asks_for_something_is_named_and_what_does_not_is_not(raw: Json, paths: list[str]) -> None:
    spec = PARSE[raw["kind"]](raw).spec
    said = {field.path: field.sentence for fields in INERT.values() for field in fields}
    expected = f"accepted and not enforced yet: {'; '.join(said[path] for path in paths)}" if paths else None
    assert not_enforced(spec) == expected


def described(schema: Json, path: str = "") -> dict[str, str]:
    """Path -> description of every field."""
    found: dict[str, Any] = {}
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}".removeprefix(".")
        found |= {
            here: child.get("description", ""),
            **described(child, here),
            **described(child.get("items", {}), here),
        }
    return found


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_the_schema_says_so_at_each_field_and_at_no_other(resource: Any) -> None:
    marked = {path for path, text in described(object_schema(resource.model)).items() if text.endswith(NOT_YET)}
    assert marked == {field.path for field in INERT[resource.kind]}


def test_the_reference_says_so() -> None:
    assert reference().count(NOT_YET) == sum(len(fields) for fields in INERT.values())
