"""What pods keep, and what those that leave still hold."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

import reconcile_builders as make
from kvquota_api.usage import Counts
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


@pytest.mark.parametrize(
    "ready", [pytest.param(True, id="to a new pod"), pytest.param(False, id="to one that never ran")]
)
def test_a_part_that_has_not_come_yet_is_no_ceiling(ready: bool) -> None:
    before = settled("a", kv={"hard": {"tokens": 16_000}, "soft": {"tokens": 8_000}}, scope="Pool")
    joined = replace(before, pods=(*before.pods, make.pod("b", ready=ready)))
    assert parts(joined)["b"] == (0, None)
    status = reconcile(joined, make.NOW, make.WALL).quota_statuses["search"]
    told = {each["type"]: each["reason"] for each in status["conditions"]}
    assert told["QuotaWithinCapacity"] == "WithinCapacity"


PENDING = tuple(make.pod(f"p{place}", ready=False, ip=None) for place in range(6))
NO_PARTS = {pod.name: (0, 1) for pod in PENDING}


def with_pending(**spec: Any) -> Observed:
    before = settled("a", "b", scope="Pool", maxConcurrentRequests=6, **spec)
    return replace(before, pods=(*before.pods, *PENDING))


@pytest.mark.parametrize(
    ("hard", "serving"),
    [
        pytest.param({"tokens": 16_000}, 500, id="of a number of tokens"),
        pytest.param({"percent": 10}, 1_843, id="nor does a percent grow by what they are planned to have"),
        pytest.param(None, make.CAP - 1, id="of all there is"),
    ],
)
def test_pods_that_never_ran_take_nothing_from_those_that_serve(hard: dict[str, int] | None, serving: int) -> None:
    joined = with_pending(kv={} if hard is None else {"hard": hard})
    assert parts(joined) == {"a": (serving, 3), "b": (serving, 3)} | NO_PARTS


def test_pods_that_never_ran_take_nothing_after_the_operator_starts_anew_either() -> None:
    before = with_pending()
    known = make.carried_out(before, reconcile(before, make.NOW, make.WALL))
    tried = {pod.uid: make.reported(None, error="timeout")[make.pod().uid] for pod in known.pods}
    for reports in ({}, tried):
        assert parts(replace(known, reports=reports)) == {"a": (500, 3), "b": (500, 3)} | NO_PARTS


def test_a_pod_that_is_not_ready_and_silent_keeps_its_part_when_the_operator_starts_anew() -> None:
    before = settled("a", "b", scope="Pool", maxConcurrentRequests=6)
    silent = replace(before, reports={}, pods=(make.pod("a", ready=False), make.pod("b")))
    assert parts(silent) == {"a": (500, 3), "b": (500, 3)}


def test_a_pod_that_never_ran_keeps_what_it_may_hold_and_grows_by_nothing() -> None:
    raised = make.quota("search", **(SPEC | {"scope": "Pool", "kv": {"hard": {"tokens": 32_000}}}))
    before = settled("a", "b", scope="Pool")
    reports = {uid: report for uid, report in before.reports.items() if uid != "uid-a"}
    unheard = replace(
        before, quotas=make.seen(raised), reports=reports, pods=(make.pod("a", ready=False), make.pod("b"))
    )
    assert parts(unheard) == {"a": (500, None), "b": (1_500, None)}


def test_a_pod_gets_its_part_once_it_has_reported() -> None:
    before = with_pending()
    reports = dict(before.reports) | make.reported(make.report(), name="p0")
    shrunk = replace(before, reports=reports)
    assert parts(shrunk) == {"a": (334, 2), "b": (333, 2)} | NO_PARTS
    followed = all_in_force(make.carried_out(shrunk, reconcile(shrunk, make.NOW, make.WALL)))
    followed = replace(followed, reports={uid: followed.reports[uid] for uid in reports})
    assert parts(followed) == {"a": (334, 2), "b": (333, 2)} | NO_PARTS | {"p0": (333, 2)}


def test_while_no_pod_has_run_all_have_parts() -> None:
    first = make.observed(
        quotas=make.seen(make.quota("search", **(SPEC | {"scope": "Pool"}))), pods=PENDING[:4], reports={}
    )
    assert parts(first) == {f"p{place}": (250, None) for place in range(4)}


def asking(observed: Observed, refused: dict[str, int], held: dict[str, int] | None = None) -> Observed:
    """The same, with so many requests refused on these pods in ten minutes, and so much held."""
    reports = dict(observed.reports)
    for pod in observed.pods:
        report = reports[pod.uid].report
        assert report is not None
        counts = Counts(rejected={"tenant_kv_quota_exceeded": refused.get(pod.name, 0)})
        usage = make.tenant_usage("search", reserved=(held or {}).get(pod.name, 0), in_flight=1, recent=counts)
        reports |= make.reported(msgspec.structs.replace(report, tenants=(usage,)), name=pod.name)
    return replace(observed, reports=reports)


def test_parts_follow_what_pods_refuse_and_stay_when_the_operator_starts_anew() -> None:
    before = settled("a", "b", scope="Pool")
    rush = asking(before, {"a": 50}, {"a": 480, "b": 60})
    lowered = make.carried_out(rush, reconcile(rush, make.NOW, make.WALL))
    assert parts(lowered) == {"a": (500, None), "b": (125, None)}, "b has yet to let go"
    followed = asking(all_in_force(lowered), {"a": 50}, {"a": 480, "b": 60})
    assert parts(followed) == {"a": (875, None), "b": (125, None)}
    after = all_in_force(make.carried_out(followed, reconcile(followed, make.NOW, make.WALL)))
    quiet = asking(after, {}, {})
    for anew in (quiet, replace(quiet, reports={})):
        assert parts(anew) == {"a": (875, None), "b": (125, None)}


def test_a_part_on_its_way_from_pod_to_pod_is_in_the_status_all_the_time() -> None:
    rush = asking(settled("a", "b", scope="Pool"), {"a": 50}, {"a": 480, "b": 60})
    assert sum(hard for hard, _ in parts(rush).values()) < 1_000
    [status] = reconcile(rush, make.NOW, make.WALL).quota_statuses.values()
    assert status["hard"]["blocks"] == 1_000


def test_a_report_that_is_old_says_nothing_of_demand() -> None:
    rush = asking(settled("a", "b", scope="Pool"), {"a": 50})
    old = {uid: replace(seen, received_at=make.NOW - 60) for uid, seen in rush.reports.items()}
    assert parts(replace(rush, reports=rush.reports | {"uid-b": old["uid-b"]})) == {"a": (500, None), "b": (500, None)}
    assert parts(replace(rush, reports=rush.reports | {"uid-a": old["uid-a"]})) == {"a": (500, None), "b": (500, None)}
