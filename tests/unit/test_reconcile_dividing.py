"""What pods keep, and what those that leave still hold."""

from dataclasses import replace
from typing import Any

import pytest

import reconcile_builders as make
from kvquota_operator.reconcile.observed import Observed
from kvquota_operator.reconcile.reconcile import reconcile

SPEC: dict[str, Any] = {"kv": {"hard": {"tokens": 16_000}}, "maxContextTokens": 160}


def settled(*names: str, **spec: Any) -> Observed:
    """Pods that have their configs in force, which they would not find changed after a restart."""
    pods = tuple(make.pod(name) for name in names)
    quotas = make.seen(make.quota("search", **(SPEC | spec)))
    reports = {f"uid-{name}": make.reported(make.report(), name=name)[f"uid-{name}"] for name in names}
    before = make.observed(quotas=quotas, pods=pods, reports=reports)
    return all_in_force(make.carried_out(before, reconcile(before, make.NOW, make.WALL)))


def all_in_force(observed: Observed) -> Observed:
    reports: dict[str, Any] = {}
    for pod in observed.pods:
        config = observed.configs.get(pod.uid)
        report = make.report() if config is None else make.report(in_force=make.in_force(config))
        reports |= make.reported(report, name=pod.name)
    return replace(observed, reports=reports)


def parts(observed: Observed) -> dict[str, tuple[int, int | None]]:
    """Hard and sequences, by pod."""
    configs = reconcile(observed, make.NOW, make.WALL).configs
    shares = {config.pod.name: config.tenants[0] for config in configs}
    return {pod: (share.hard_blocks, share.max_concurrent_requests) for pod, share in shares.items()}


@pytest.mark.parametrize(
    ("spec", "another"),
    [
        pytest.param({}, (1_000, None), id="a share of each pod: the same"),
        pytest.param({"scope": "Pool"}, (0, None), id="a part of a whole: nothing"),
        pytest.param({"scope": "Pool", "maxConcurrentRequests": 6}, (0, 1), id="a part of sequences: nothing either"),
    ],
)
def test_what_another_pod_gets_of_a_quota_that_nobody_can_read(
    spec: dict[str, Any], another: tuple[int, int | None]
) -> None:
    before = settled("a", **spec)
    now = replace(before, quotas=(), invalid=(make.unread("search"),), pods=(*before.pods, make.pod("b")))
    assert parts(all_in_force(now)) == {"a": (1_000, spec.get("maxConcurrentRequests")), "b": another}


def test_a_pod_that_leaves_holds_its_part_until_it_is_gone() -> None:
    before = settled("a", "b", scope="Pool", maxConcurrentRequests=6)
    assert parts(before) == {"a": (500, 3), "b": (500, 3)}
    leaving = replace(before, pods=(make.pod("a"), make.pod("b", deleting=True)))
    assert parts(leaving) == {"a": (500, 3)}
    assert parts(replace(before, pods=(make.pod("a"),))) == {"a": (1_000, 6)}


def test_of_too_many_pods_those_that_have_a_part_keep_it() -> None:
    before = settled("m", "n", scope="Pool", maxConcurrentRequests=2)
    joined = all_in_force(replace(before, pods=(make.pod("a"), *before.pods)))
    assert parts(joined) == {"a": (0, 1), "m": (500, 1), "n": (500, 1)}


def test_a_part_that_has_not_come_yet_is_no_ceiling() -> None:
    before = settled("a", kv={"hard": {"tokens": 16_000}, "soft": {"tokens": 8_000}}, scope="Pool")
    joined = replace(before, pods=(*before.pods, make.pod("b")))
    assert parts(joined)["b"] == (0, None)
    status = reconcile(joined, make.NOW, make.WALL).quota_statuses["search"]
    told = {each["type"]: each["reason"] for each in status["conditions"]}
    assert told["QuotaWithinCapacity"] == "WithinCapacity"
