"""Which pods count, and which of them report."""

from dataclasses import replace

import pytest

import reconcile_builders as make
from kvquota_operator.reconcile.observed import PoolClaim
from kvquota_operator.reconcile.pods import pods_seen

OLDER = PoolClaim("2026-09-30T00:00:00Z", "elder")
YOUNGER = PoolClaim("2026-10-02T00:00:00Z", "younger")
TWIN = PoolClaim(make.POOL_CREATED, "a-twin")


def names(pods):
    return [each.name for each in pods]


@pytest.mark.parametrize(
    ("pod", "live", "ungoverned", "disputed"),
    [
        pytest.param(make.pod("p"), ["p"], [], [], id="a pod with the sidecar counts"),
        pytest.param(make.pod("p", ready=False, ip=None), ["p"], [], [], id="a pod that starts counts already"),
        pytest.param(make.pod("p", deleting=True), [], [], [], id="a pod that is being deleted does not"),
        pytest.param(make.pod("p", governed=False), [], ["p"], [], id="a pod without the sidecar is named"),
        pytest.param(make.pod("p", others=(OLDER,)), [], [], ["p"], id="a pod of an older pool is left to that"),
        pytest.param(make.pod("p", others=(YOUNGER,)), ["p"], [], ["p"], id="a pod that a younger pool selects stays"),
        pytest.param(
            make.pod("p", others=(TWIN,)), [], [], ["p"], id="of two pools of one age the first by name has it"
        ),
        pytest.param(make.pod("p", others=(YOUNGER, OLDER)), [], [], ["p"], id="the oldest of three has it"),
    ],
)
def test_which_pods_count(pod, live, ungoverned, disputed):
    found = pods_seen(make.observed(pods=(pod,)), make.NOW)
    assert (names(each.pod for each in found.live), names(found.ungoverned), names(found.disputed)) == (
        live,
        ungoverned,
        disputed,
    )


def test_a_pool_of_unknown_age_counts_as_the_oldest():
    found = pods_seen(make.observed(pool=make.unread_pool(), pods=(make.pod("p", others=(OLDER,)),)), make.NOW)
    assert names(each.pod for each in found.live) == ["p"]


def test_pods_come_by_name():
    found = pods_seen(make.observed(pods=(make.pod("b"), make.pod("a"), make.pod("c"))), make.NOW)
    assert names(each.pod for each in found.live) == ["a", "b", "c"]


READY, STARTING = make.pod(), make.pod(ready=False)


@pytest.mark.parametrize(
    ("pod", "reports", "sync_seconds", "fresh", "stale"),
    [
        pytest.param(READY, make.reported(make.report(), age=9.9), 2.0, 1, 0, id="10 seconds are allowed at least"),
        pytest.param(READY, make.reported(make.report(), age=10.0), 2.0, 0, 1, id="then the pod is stale"),
        pytest.param(READY, make.reported(make.report(), age=14.9), 5.0, 1, 0, id="3 periods are allowed"),
        pytest.param(READY, make.reported(make.report(), age=15.0), 5.0, 0, 1, id="then the pod is stale too"),
        pytest.param(
            READY, make.reported(make.report(), age=1.0, error="timeout"), 2.0, 1, 0, id="one failure is no silence yet"
        ),
        pytest.param(READY, make.reported(None, error="refused"), 2.0, 0, 1, id="ready, asked, never reported: stale"),
        pytest.param(STARTING, make.reported(None, error="refused"), 2.0, 0, 0, id="starting is no reason to worry"),
        pytest.param(
            STARTING, make.reported(make.report(), age=60.0), 2.0, 0, 1, id="not ready any more and silent: stale"
        ),
        pytest.param(READY, {}, 2.0, 0, 0, id="not asked yet: nothing is concluded"),
    ],
)
def test_which_reports_count(pod, reports, sync_seconds, fresh, stale):
    found = pods_seen(make.observed(pods=(pod,), reports=reports, sync_seconds=sync_seconds), make.NOW)
    assert (len(found.fresh), len(found.stale)) == (fresh, stale)


def awaited(**fields):
    before = make.observed()
    stored = make.carried_out(before, make.reconcile(before, make.NOW, make.WALL))
    (live,) = pods_seen(replace(stored, **{"reports": {}} | fields), make.NOW).live
    return live.awaited


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, True, id="a ready pod with a durable copy that was not asked yet"),
        pytest.param({"reports": make.reported(None, error="timeout")}, False, id="not when it was asked in vain"),
        pytest.param({"configs": {}}, False, id="not a new pod"),
        pytest.param({"pods": (make.pod(ready=False),)}, False, id="not a pod that is not ready"),
        pytest.param({"pods": (make.pod(ip=None),)}, False, id="not a pod without an address"),
    ],
)
def test_which_pods_are_awaited(fields, expected):
    assert awaited(**fields) is expected


@pytest.mark.parametrize(
    ("pod", "reports", "expected"),
    [
        pytest.param(STARTING, {}, False, id="nobody heard of it"),
        pytest.param(STARTING, make.reported(None, error="timeout"), False, id="it was asked in vain"),
        pytest.param(STARTING, make.reported(make.report(), age=600.0), True, id="it reported, however long ago"),
        pytest.param(READY, {}, True, id="it is ready"),
    ],
)
def test_which_pods_have_run(pod, reports, expected):
    (live,) = pods_seen(make.observed(pods=(pod,), reports=reports), make.NOW).live
    assert live.has_run is expected
