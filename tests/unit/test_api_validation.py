"""What is refused in a user's object, and in which words."""

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract_objects import (
    ACCEPTED,
    ACCEPTED_UPDATES,
    BROKEN_RULES,
    BROKEN_SHAPES,
    BROKEN_UPDATES,
    changed,
    pool,
    quota,
)
from kvquota_api.model_pool import ModelPool
from kvquota_api.resource import Model
from kvquota_api.schema import structural_schema
from kvquota_api.tenant_quota import TenantQuota
from kvquota_api.validation import (
    FREE_FORM,
    MAX_DEPTH,
    InvalidObjectError,
    Problem,
    check_update,
    parse_model_pool,
    parse_tenant_quota,
    validate,
)

EXAMPLES = Path(__file__).parents[2] / "examples"


def parsed(raw: dict[str, Any]) -> ModelPool | TenantQuota:
    return parse_model_pool(raw) if raw["kind"] == "ModelPool" else parse_tenant_quota(raw)


@pytest.mark.parametrize("raw", [pytest.param(raw, id=says) for says, raw in ACCEPTED])
def test_accepts(raw: dict[str, Any]) -> None:
    assert validate(raw) == []


@pytest.mark.parametrize("row", [pytest.param(row, id=row.says) for row in (*BROKEN_RULES, *BROKEN_SHAPES)])
def test_refuses_with_the_path_and_what_to_do(row: Any) -> None:
    assert validate(row.raw) == [Problem(row.path, row.message)]


@pytest.mark.parametrize("row", [pytest.param(row, id=row.says) for row in BROKEN_UPDATES])
def test_refuses_to_change(row: Any) -> None:
    assert check_update(parsed(row.old), parsed(row.new)) == [Problem(row.path, row.message)]


@pytest.mark.parametrize(("old", "new"), [pytest.param(old, new, id=says) for says, old, new in ACCEPTED_UPDATES])
def test_allows_to_change(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert check_update(parsed(old), parsed(new)) == []


def models_in(model: type[Model]) -> Iterator[type[Model]]:
    yield model
    for child in model.__subclasses__():
        yield from models_in(child)


def judged(model: Model) -> Iterator[tuple[str, str, bool]]:
    """Class, message and verdict of every rule that is asked for a part of this object."""
    yield from ((type(model).__name__, rule.message, rule.holds(model)) for rule in model.rules)
    for name in type(model).model_fields:
        value = getattr(model, name)
        for part in value if isinstance(value, tuple) else (value,):
            yield from judged(part) if isinstance(part, Model) else ()


def shaped(raw: dict[str, Any]) -> Model:
    """The object with its rules not asked yet."""
    kind = ModelPool if raw["kind"] == "ModelPool" else TenantQuota
    return kind.model_validate(raw)


OURS = [model for model in models_in(Model) if model.__module__.startswith("kvquota_api.")]
DECLARED = {(model.__name__, rule.message) for model in OURS for rule in model.rules}


def test_every_rule_is_broken_by_some_row_at_the_object_that_has_it() -> None:
    broken = {(name, said) for row in BROKEN_RULES for name, said, holds in judged(shaped(row.raw)) if not holds}

    assert broken == DECLARED


def test_every_rule_is_asked_and_holds_in_some_row() -> None:
    kept = {(name, said) for _, raw in ACCEPTED for name, said, holds in judged(parsed(raw)) if holds}

    assert kept == DECLARED


def test_every_rule_of_a_change_is_broken_by_some_row_and_holds_in_another() -> None:
    frozen = {rule.message for model in OURS for rule in model.change_rules}

    assert {row.message for row in BROKEN_UPDATES} == frozen
    assert {new["kind"] for _, _, new in ACCEPTED_UPDATES} == {"ModelPool", "TenantQuota"}


@pytest.mark.parametrize("name", ["modelpool.yaml", "tenantquotas.yaml"])
def test_the_examples_are_right(name: str) -> None:
    documents = list(yaml.safe_load_all((EXAMPLES / name).read_text("utf-8")))

    assert len(documents) == 2
    assert [validate(document) for document in documents] == [[], []]


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        pytest.param(
            "text", Problem("kind", "None is none of ModelPool, TenantQuota"), id="something else than an object"
        ),
        pytest.param({"kind": "Pod"}, Problem("kind", "'Pod' is none of ModelPool, TenantQuota"), id="another kind"),
        pytest.param(
            {"kind": []}, Problem("kind", "[] is none of ModelPool, TenantQuota"), id="a kind that is no word"
        ),
        pytest.param(
            changed(quota(), {"apiVersion": "kvquota.dev/v1"}),
            Problem("apiVersion", "'kvquota.dev/v1' must be kvquota.dev/v1alpha1"),
            id="another version",
        ),
        pytest.param(
            changed(quota(), {"metadata.namespace": "A B"}),
            Problem(
                "metadata.namespace",
                "'A B' may have lower-case letters, digits and - only, with a letter or digit at both ends",
            ),
            id="a namespace that cannot be",
        ),
    ],
)
def test_names_what_it_is_not(raw: Any, problem: Problem) -> None:
    assert validate(raw) == [problem]


def test_an_object_that_is_none_says_what_it_should_be() -> None:
    with pytest.raises(InvalidObjectError, match="a ModelPool must be an object, not list"):
        parse_model_pool([])


def test_all_problems_are_said_at_once() -> None:
    with pytest.raises(InvalidObjectError) as raised:
        parse_tenant_quota(quota(priority=2000, scope="All"))

    assert raised.value.problems == (
        Problem("spec.priority", "2000 must be at most 1000"),
        Problem("spec.scope", "'All' must be one of 'PerReplica' or 'Pool'"),
    )
    assert str(raised.value) == (
        "spec.priority: 2000 must be at most 1000; spec.scope: 'All' must be one of 'PerReplica' or 'Pool'"
    )


def test_an_inline_config_is_json() -> None:
    raw = pool(model__config={"inline": {"released": [date(2026, 11, 1)]}})

    assert validate(raw) == [
        Problem(
            "spec.model.config.inline",
            "must be JSON, so put dates in quotes: Object of type date is not JSON serializable",
        )
    ]


def test_a_null_in_a_free_form_field_stays() -> None:
    read = parse_model_pool(
        pool(
            model__config={"inline": {"sliding_window": None}},
            engine__speculation={"tokens": None, "config": {"model": {"config": {"inline": None}}}},
        )
    )

    assert read.spec.model.config.inline == {"sliding_window": None}
    assert read.spec.engine.speculation.config == {"model": {"config": {"inline": None}}}


def free_form(schema: dict[str, Any], name: str = "") -> Iterator[tuple[str, str]]:
    for child, inner in schema.get("properties", {}).items():
        if "x-kubernetes-preserve-unknown-fields" in inner:
            yield name, child
        yield from free_form(inner, child)
    yield from free_form(schema["items"], name) if "items" in schema else ()


def test_the_free_form_fields_are_those_of_the_schemas() -> None:
    assert {found for model in (ModelPool, TenantQuota) for found in free_form(structural_schema(model))} == FREE_FORM


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({"inFlight": "many"}, id="a wrong type"),
        pytest.param("text", id="no object"),
        pytest.param({"conditions": [{"type": "Ready"}]}, id="half a condition"),
    ],
)
def test_a_stored_status_that_cannot_be_read_is_left_out(status: Any) -> None:
    assert parse_tenant_quota({**quota(), "status": status}).status is None


def test_a_stored_status_of_a_newer_operator_is_read_as_far_as_known() -> None:
    read = parse_tenant_quota({**quota(), "status": {"inFlight": 3, "invented": {"later": 1}}})

    assert read.status is not None
    assert read.status.as_written() == {"conditions": [], "inFlight": 3}


def nested(levels: int) -> Any:
    content: Any = []
    for _ in range(levels):
        content = {"a": content}
    return content


def test_what_is_nested_as_deep_as_a_config_ever_is_is_read() -> None:
    assert validate(pool(model__config={"inline": nested(MAX_DEPTH - 5)})) == []


@pytest.mark.parametrize("levels", [MAX_DEPTH - 3, 5000], ids=["a level too much", "deeper than Python recurses"])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda deep: pool(model__config={"inline": deep}), id="in a config"),
        pytest.param(lambda deep: quota(kv={"hard": deep}), id="in a field of ours"),
        pytest.param(lambda deep: pool(tiers=[[deep]]), id="in a list"),
    ],
)
def test_what_is_nested_too_deep_is_refused(make: Any, levels: int) -> None:
    assert validate(make(nested(levels))) == [Problem("", "is nested more than 64 levels deep: take out what is")]


def test_a_number_of_thousands_of_digits_is_refused_like_any_other() -> None:
    assert validate(quota(priority=10**5000)) == [
        Problem("spec.priority", "a number of thousands of digits must be at most 1000")
    ]


def test_metadata_of_an_api_server_is_passed_over() -> None:
    raw = changed(quota(), {"metadata.managedFields": [{"manager": "kubectl"}], "metadata.uid": "u-1"})

    assert parse_tenant_quota(raw).metadata.uid == "u-1"


def test_what_is_read_is_written_again() -> None:
    raw = quota(kv={"soft": {"percent": "2.5"}, "hard": {"bytes": "8Gi"}}, identity={"headerValue": "search"})

    assert parse_tenant_quota(raw).spec.as_written() == {
        "tenant": "search",
        "modelPoolRef": {"name": "llama"},
        "scope": "PerReplica",
        "kv": {"soft": {"percent": "2.5"}, "hard": {"bytes": "8Gi"}},
        "degradation": {"allowTruncation": False, "allowSmallerModel": False, "insteadOfRefusal": False},
        "identity": {"apiKeys": [], "headerValue": "search"},
        "enforcement": "Enforce",
    }
