"""The rules of docs/accounting.md on pods of unequal plans, one test for each."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

import reconcile_builders as make
from kvquota_api.model_pool import ModelPool
from kvquota_api.pod_config import PodConfig
from kvquota_operator.reconcile.observed import Observed

OLD = make.pool()
NEW = make.pool(model__kvCacheDtype="fp8", engine__blockSize=32)
LARGER = make.pool(memory__kvPool={"percent": 50})
UNKNOWN = make.pool(model__config={"inline": {"architectures": ["Nobody"], "model_type": "nobody"}})
H_OLD, H_NEW = make.plan_hash(OLD), make.plan_hash(NEW)


def decided(observed: Observed) -> dict[str, PodConfig]:
    return {config.pod.name: config for config in make.reconcile(observed, make.NOW, make.WALL).configs}


def rolled(first: ModelPool, then: ModelPool, old: str | None, *, block_tokens: int = 16) -> Observed:
    """A pool with a pod, from `first` to `then`, where a new pod joins."""
    engine = make.report(block_tokens=block_tokens)
    before = make.observed(pool=first, pods=(make.pod("old", plan=old),), reports=make.reported(engine, name="old"))
    known = make.carried_out(before, make.reconcile(before, make.NOW, make.WALL))
    new = make.pod("new", plan=H_NEW if then is NEW else "-")
    return replace(known, pool=then, pods=(*known.pods, new))


def block_tokens(observed: Observed) -> dict[str, int]:
    return {name: config.kv.block_tokens for name, config in decided(observed).items()}


def test_plan_of_a_pod() -> None:
    rolling = rolled(OLD, NEW, H_OLD)
    assert block_tokens(rolling) == {"old": 16, "new": 32}
    assert {name: config.plan for name, config in decided(rolling).items()} == {"old": H_OLD, "new": H_NEW}
    assert block_tokens(replace(rolling, pool=OLD)) == {"old": 16, "new": 16}, "of the new plan nothing was stored"


def test_plan_of_a_pod__that_no_copy_tells() -> None:
    rolling = replace(rolled(OLD, NEW, H_OLD), configs={})
    assert decided(rolling)["old"].kv.block_tokens == 16
    engine = make.reported(make.report(block_tokens=32), name="old")
    assert decided(replace(rolling, reports=engine))["old"].kv == decided(rolling)["new"].kv


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        pytest.param({"block_tokens": 16}, 16, id="as it was started before the change"),
        pytest.param({"block_tokens": 32}, 32, id="as is planned now"),
        pytest.param({"block_tokens": 8}, 32, id="as neither says"),
    ],
)
def test_plan_by_hand(engine: dict[str, int], expected: int) -> None:
    reports = make.reported(make.report(**engine), name="old")
    assert block_tokens(replace(rolled(OLD, NEW, None), reports=reports))["old"] == expected


def test_plan_at_once() -> None:
    quota = make.seen(make.quota("search", kv={"hard": {"percent": 10}}))
    observed = replace(rolled(OLD, NEW, H_OLD), quotas=quota)
    assert {name: make.hards(config)["search"] for name, config in decided(observed).items()} == {
        "old": 1_843,
        "new": 1_843,
    }
    assert decided(replace(observed, pool=LARGER))["old"].kv.cap_blocks == 20_480


def test_plan_measured() -> None:
    observed = rolled(OLD, UNKNOWN, H_OLD)
    engine = make.reported(make.report(blocks=3_001, block_tokens=64), name="new")
    observed = replace(observed, reports={**observed.reports, **engine})
    found = decided(observed)
    assert {name: (config.kv.cap_blocks, config.plan) for name, config in found.items()} == {
        "old": (18_432, H_OLD),
        "new": (3_001, "-"),
    }
    known = replace(observed, configs={config.pod.uid: config for config in found.values()}, pool=NEW)
    assert decided(known)["new"].kv.block_tokens == 64


@pytest.mark.parametrize(
    ("hard", "expected"),
    [
        pytest.param({"tokens": 64_000}, {"old": 2_000, "new": 1_000}, id="32,000 tokens on each"),
        pytest.param({"bytes": "8Gi"}, {"old": 2_048, "new": 2_048}, id="4 GiB on each"),
        pytest.param({"percent": 10}, {"old": 1_843, "new": 1_843}, id="a tenth of the memory of both"),
    ],
)
def test_unequal_limits(hard: dict[str, object], expected: dict[str, int]) -> None:
    quota = make.seen(make.quota("search", scope="Pool", maxContextTokens=1_600, kv={"hard": hard}))
    observed = replace(rolled(OLD, NEW, H_OLD), quotas=quota)
    reports = {**observed.reports, **make.reported(make.report(block_tokens=32), name="new")}
    copies = {uid: msgspec.structs.replace(config, tenants=()) for uid, config in observed.configs.items()}
    found = decided(replace(observed, reports=reports, configs=copies))
    assert {name: make.hards(config)["search"] for name, config in found.items()} == expected


def test_unequal_sums() -> None:
    observed = rolled(OLD, NEW, H_OLD)
    usage = make.tenant_usage("search", reserved=300, used=100)
    reports = {
        **make.reported(make.report(usage), name="old"),
        **make.reported(make.report(usage, block_tokens=32), name="new"),
    }
    plan = make.reconcile(replace(observed, reports=reports), make.NOW, make.WALL)
    status = plan.quota_statuses["search"]
    assert status["reserved"] == {"blocks": 600, "tokens": 300 * 16 + 300 * 32}
    assert (status["planHash"], plan.pool_status["planHash"]) == (H_NEW, H_NEW)
    assert make.condition(plan.pool_status, "PartitionApplied")[1] == "EarlierPlan"
