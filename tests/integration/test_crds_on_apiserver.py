"""The generated CRDs in a real API server: it accepts them, and judges objects as the Python checks do."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract_cluster import NAMES, said, with_crds
from contract_objects import (
    ACCEPTED,
    ACCEPTED_UPDATES,
    BROKEN_RULES,
    BROKEN_SHAPES,
    BROKEN_UPDATES,
    Refused,
    RefusedUpdate,
    changed,
    pool,
    quota,
)
from kvquota_api.crd import RESOURCES, Resource, object_schema
from kvquota_api.validation import parse_model_pool, parse_tenant_quota
from testcluster.apiserver import ApiServer
from testcluster.programs import ProgramError

pytestmark = pytest.mark.apiserver

ROOT = Path(__file__).parents[2]
KEPT = "contract"


@pytest.fixture(scope="module")
def api(apiserver: ApiServer) -> Iterator[ApiServer]:
    with with_crds(apiserver, KEPT) as ready:
        yield ready


def judged(api: ApiServer, raw: dict[str, Any], verb: str = "create") -> str:
    """What `kubectl VERB` says of an object, which is not kept; "" when it is accepted."""
    answer = said(api, verb, "--dry-run=server", "-o", "name", given=json.dumps(raw))
    return "" if answer.endswith(f"/{raw['metadata']['name']}\n") else answer


def named(name: str, raw: dict[str, Any]) -> dict[str, Any]:
    """The object under a name of its own, where it is kept until the module ends."""
    return changed(raw, {"metadata.name": name, "metadata.namespace": KEPT})


def kept(api: ApiServer, raw: dict[str, Any]) -> dict[str, Any]:
    """An object as the API server has stored it."""
    api.kubectl("apply", "-f", "-", input=json.dumps(raw))
    return stored(api, raw)


def stored(api: ApiServer, raw: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        api.kubectl("get", NAMES[raw["kind"]], raw["metadata"]["name"], "-n", KEPT, "-o", "json")
    )
    return found


def with_status(api: ApiServer, raw: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    """The object after its status was written."""
    kept(api, raw)
    resource, name, patch = NAMES[raw["kind"]], raw["metadata"]["name"], json.dumps({"status": status})
    api.kubectl("patch", resource, name, "-n", KEPT, "--subresource=status", "--type=merge", "--patch", patch)
    return stored(api, raw)


def test_apply_of_the_folder_makes_the_two_resources_and_nothing_else(api: ApiServer) -> None:
    said = api.kubectl("apply", "--dry-run=server", "-f", str(ROOT / "crds"), "-o", "name").splitlines()

    assert said == [f"customresourcedefinition.apiextensions.k8s.io/{name}" for name in NAMES.values()]


def test_the_schemas_are_structural(api: ApiServer) -> None:
    for name in NAMES.values():
        crd = json.loads(api.kubectl("get", "crd", name, "-o", "json"))
        conditions = {each["type"]: each["status"] for each in crd["status"]["conditions"]}

        assert conditions == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize("raw", [pytest.param(raw, id=says) for says, raw in ACCEPTED])
def test_accepts_and_fills_in_the_defaults_of_the_models(api: ApiServer, raw: dict[str, Any]) -> None:
    parse = parse_model_pool if raw["kind"] == "ModelPool" else parse_tenant_quota

    created = json.loads(api.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(raw)))

    assert parse(created).spec == parse(raw).spec


@pytest.mark.parametrize("row", [pytest.param(row, id=row.says) for row in BROKEN_RULES])
def test_refuses_with_the_same_sentence_at_the_same_place(api: ApiServer, row: Refused) -> None:
    said = judged(api, row.raw)

    assert f" {row.path}: Invalid value" in said
    assert f": {row.message}" in said


@pytest.mark.parametrize("row", [pytest.param(row, id=row.says) for row in BROKEN_SHAPES])
def test_refuses_the_same_shapes_at_the_same_place(api: ApiServer, row: Refused) -> None:
    said = judged(api, row.raw)

    assert row.path in said
    assert row.server in said


@pytest.mark.parametrize("row", [pytest.param(row, id=row.says) for row in BROKEN_UPDATES])
def test_refuses_to_change(api: ApiServer, row: RefusedUpdate) -> None:
    kept(api, named("frozen", row.old))

    said = judged(api, named("frozen", row.new), "apply")

    assert f" {row.path}: Invalid value" in said
    assert f": {row.message}" in said


@pytest.mark.parametrize(("old", "new"), [pytest.param(old, new, id=says) for says, old, new in ACCEPTED_UPDATES])
def test_allows_to_change(api: ApiServer, old: dict[str, Any], new: dict[str, Any]) -> None:
    kept(api, named("free", old))

    assert judged(api, named("free", new), "apply") == ""


def test_an_inline_config_is_kept_whole(api: ApiServer) -> None:
    config = {"model_type": "llama", "rope_scaling": {"factor": 8.5, "rope_type": "llama3"}, "eos_token_id": [1, 2]}

    found = kept(api, named("inline", pool(model__config={"inline": config})))

    assert found["spec"]["model"]["config"] == {"inline": config}


def test_the_examples_are_accepted(api: ApiServer) -> None:
    documents = "\n---\n".join(path.read_text("utf-8") for path in sorted((ROOT / "examples").glob("*.yaml")))
    in_namespace = documents.replace("namespace: inference", f"namespace: {KEPT}")

    said = api.kubectl("apply", "--dry-run=server", "-o", "name", "-f", "-", input=in_namespace).splitlines()

    assert said == [
        "modelpool.kvquota.dev/llama-8b",
        "modelpool.kvquota.dev/llama-1b",
        "secret/search-api-key",
        "secret/batch-api-key",
        "secret/gateway-secret",
        "configmap/jwks",
        "tenantquota.kvquota.dev/search",
        "tenantquota.kvquota.dev/batch",
    ]


EXPLAINED = {
    "kvmp": ["One model on one kind of GPU pod: how its card is divided", "The plan that the administrator makes."],
    "kvmp.spec.memory.kvPool": [
        "The KV cache: the hard cap of everything that tenants can hold.",
        "Percent of the card's memory with at most two decimals",
        "From 0 to 100.",
        "Tokens of context that fit at the same time; rounded up to whole blocks.",
    ],
    "kvmp.spec.model": [
        "Type in which the weights are stored; auto: what the config says",
        "Type of the recurrent state of Mamba and linear-attention layers",
        "From 1 to 2^31-1.",
    ],
    "kvmp.spec.engine": [
        "llama.cpp only (--parallel): sequences that are served at the same time",
        "Whether layers that look back over a window only keep only that.",
        "Tokens in one KV block. Default: that of the engine. From 1 to 65536.",
    ],
    "kvmp.spec.engine.speculation": ["The drafter in vLLM's own words, as --speculative-config takes it"],
    "kvmp.spec.memory": ["The model's weights on one card in bytes, as a quantity: 14.99Gi.", "At least 0."],
    "kvmp.spec.degradation": [
        "What is done, in which order, when memory runs short.",
        "Seconds that a guaranteed request waits for memory",
        "From 0 to 60. Default: 2.",
    ],
    "tq.spec.identity.apiKeys": ["At most 16 items.", "its key that holds the API key: at least 128 random bits."],
    "tq.spec.kv.hard": [
        "The ceiling: a request that would pass it is refused.",
        "Percent of the pool's usable blocks with at most two decimals",
        "From 0 to 100.",
        "Bytes of the KV cache on one GPU, as a quantity: 8Gi.",
    ],
    "tq.spec.priority": ["Default: that of the tier, else 0. From 0 to 1000."],
    "tq.status": [
        "What the operator says of it.",
        "Sequences that run now.",
        "in the last ten minutes. From 0 to 100.",
    ],
}
"""Path -> what `kubectl explain` says there, among other things."""


def explained(api: ApiServer, path: str) -> str:
    """What `kubectl explain` prints; the API server publishes a schema some moments after it serves the objects."""
    deadline = time.monotonic() + 60.0
    while True:
        api.kubectl("api-resources", "--api-group=kvquota.dev")  # explain itself trusts an older list of kinds
        try:
            return api.kubectl("explain", path)
        except ProgramError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def descriptions(text: str) -> dict[str, str]:
    """Field -> description of what `kubectl explain` prints; "" for the path itself."""
    own, _, rest = text.partition("\nFIELDS:\n")
    _, *fields = re.split(r"^  (\w+)\t<.*$", rest, flags=re.MULTILINE)
    found = {"": own.partition("\nDESCRIPTION:\n")[2]} | dict(zip(fields[::2], fields[1::2], strict=True))
    return {name: " ".join(says.split()) for name, says in found.items()}


@pytest.mark.parametrize(("path", "sentences"), EXPLAINED.items(), ids=EXPLAINED)
def test_explain_gives_meaning_unit_and_bounds(api: ApiServer, path: str, sentences: list[str]) -> None:
    found = descriptions(explained(api, path))

    said = " ".join(found.values())
    assert [sentence for sentence in sentences if sentence not in said] == []
    assert [name for name, says in found.items() if says in ("", "<empty>", "<no description>")] == []


def described(schema: dict[str, Any], path: str = "") -> dict[str, str]:
    """Path -> description of every field below a schema, written out or as the API server publishes it."""
    found: dict[str, str] = {}
    for name, child in schema.get("properties", {}).items():
        if f"{path}.{name}" not in (".apiVersion", ".kind", ".metadata"):
            found |= {f"{path}.{name}": child.get("description", "")} | described(child, f"{path}.{name}")
    return found | (described(schema["items"], f"{path}[]") if "items" in schema else {})


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_the_description_of_every_field_is_published(api: ApiServer, resource: Resource) -> None:
    explained(api, resource.plural)  # waits until it is
    published = json.loads(api.kubectl("get", "--raw", "/openapi/v3/apis/kvquota.dev/v1alpha1"))

    found = described(published["components"]["schemas"][f"dev.kvquota.v1alpha1.{resource.kind}"])

    assert found == described(object_schema(resource.model))
    assert "" not in found.values()


QUOTA_STATUS = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Enforced",
            "message": "2 of 2 pods enforce it",
            "lastTransitionTime": "2026-11-01T00:00:00Z",
            "observedGeneration": 1,
        }
    ],
    "state": "Enforced",
    "priority": 100,
    "soft": {"blocks": 7372, "tokens": 117952},
    "hard": {"blocks": 11058, "tokens": 176928},
    "reserved": {"blocks": 500, "tokens": 8000},
    "used": {"blocks": 250, "tokens": 4000},
    "overSoft": {"blocks": 0, "tokens": 0},
    "inFlight": 3,
    "recent": {
        "admitted": 12,
        "rejectedTotal": 4,
        "rejected": {"tenant_kv_quota_exceeded": 3, "kv_pool_contended": 1},
        "wouldReject": {},
        "evicted": 1,
        "degraded": {"Truncate": 2},
    },
    "prefixHitRatePercent": 37,
    "lastRefusal": {
        "code": "tenant_kv_quota_exceeded",
        "message": "shorten the input",
        "time": "2026-11-01T00:00:00Z",
    },
}
POOL_STATUS = {
    "observedGeneration": 1,
    "conditions": [],
    "state": "Governed",
    "planHash": "10908b6159e9d8ef",
    "memory": {
        "planned": {"weights": "14Gi", "activation": "6Gi", "kvPool": "36Gi", "other": 1, "safetyMargin": "6Gi"}
    },
    "kv": {
        "bytesPerToken": 131072,
        "blockTokens": 16,
        "bytesPerBlock": 2097152,
        "cap": {"blocks": 18432, "tokens": 294912},
        "measured": {"blocks": 18432, "tokens": 294912},
        "reserved": {"blocks": 500, "tokens": 8000},
        "used": {"blocks": 250, "tokens": 4000},
        "accounting": "Estimated",
    },
    "pressurePercent": 101,
    "rung": "Shed",
    "capacity": [{"contextTokens": 1024, "requests": 287}],
    "prefixHitRatePercent": 37,
    "recent": {"admitted": 12, "rejectedTotal": 4, "rejected": {}, "wouldReject": {}, "evicted": 1, "degraded": {}},
    "pods": {"expected": 3, "reporting": 2, "stale": 1, "summary": "2/3"},
    "advice": [{"reason": "QuantiseWeights", "message": "fp8 weights save 6 GiB"}],
}


def columns(api: ApiServer, *arguments: str) -> dict[str, str]:
    """Heading -> cell of the one row, without the age."""
    heading, row = api.kubectl("get", *arguments, "-n", KEPT).splitlines()
    starts = [heading.index(word) for word in heading.split()]
    ends = [*starts[1:], None]
    cells = {heading[a:b].strip(): row[a:b].strip() for a, b in zip(starts, ends, strict=True)}
    del cells["AGE"]
    return cells


def test_get_tq_shows_the_columns(api: ApiServer) -> None:
    found = with_status(api, named("columns", quota(tier="gold")), QUOTA_STATUS)

    assert found["status"] == QUOTA_STATUS
    assert columns(api, "tq", "columns", "-o", "wide") == {
        "NAME": "columns",
        "TENANT": "search",
        "POOL": "llama",
        "SOFT": "117952",
        "HARD": "176928",
        "USED": "4000",
        "INFLIGHT": "3",
        "REJECTED-10M": "4",
        "EVICTED-10M": "1",
        "STATE": "Enforced",
        "SOFT-BLOCKS": "7372",
        "HARD-BLOCKS": "11058",
        "USED-BLOCKS": "250",
        "PRIORITY": "100",
        "TIER": "gold",
        "LAST-REFUSAL": "tenant_kv_quota_exceeded",
    }


def test_get_kvmp_shows_the_columns(api: ApiServer) -> None:
    found = with_status(api, named("columns", pool()), POOL_STATUS)

    assert found["status"] == POOL_STATUS
    assert columns(api, "kvmp", "columns", "-o", "wide") == {
        "NAME": "columns",
        "MODEL": "llama-3.1-8b-instruct",
        "CAP-TOKENS": "294912",
        "USED": "4000",
        "PRESSURE": "101",
        "RUNG": "Shed",
        "PODS": "2/3",
        "STATE": "Governed",
        "ENGINE": "vLLM",
        "GPU": "80Gi",
        "KV": "36Gi",
        "WEIGHTS": "14Gi",
        "HIT-PERCENT": "37",
        "REJECTED-10M": "4",
        "EVICTED-10M": "1",
    }


NARROW = {
    "tq": ["NAME", "TENANT", "POOL", "SOFT", "HARD", "USED", "INFLIGHT", "REJECTED-10M", "EVICTED-10M", "STATE", "AGE"],
    "kvmp": ["NAME", "MODEL", "CAP-TOKENS", "USED", "PRESSURE", "RUNG", "PODS", "STATE", "AGE"],
}
"""Short name -> the columns of `kubectl get` without -o wide, in their order."""


@pytest.mark.parametrize(("short", "headings"), NARROW.items(), ids=NARROW)
def test_get_shows_what_matters_first(api: ApiServer, short: str, headings: list[str]) -> None:
    kept(api, named("narrow", pool() if short == "kvmp" else quota()))

    assert api.kubectl("get", short, "narrow", "-n", KEPT).splitlines()[0].split() == headings


def test_a_number_that_nobody_measured_is_blank(api: ApiServer) -> None:
    kept(api, named("blank", quota()))

    shown = columns(api, "tq", "blank")

    assert (shown["SOFT"], shown["USED"], shown["INFLIGHT"], shown["STATE"]) == ("", "", "", "")


def test_a_status_is_written_beside_the_spec_only(api: ApiServer) -> None:
    assert "status" not in kept(api, {**named("beside", quota()), "status": QUOTA_STATUS})


def test_both_kinds_are_in_the_category(api: ApiServer) -> None:
    named = api.kubectl("api-resources", "--categories=kvquota", "-o", "name").split()

    assert sorted(named) == sorted(NAMES.values())
