"""What the pods report, added up."""

import msgspec
import pytest

import reconcile_builders as make
from kvquota_api.quota import RecentCounts
from kvquota_api.usage import Counts, Refusal
from kvquota_operator.reconcile.usage import MAX_SEQUENCES, PoolSums, pool_sums, recent_counts, tenant_sums

KV = make.decided().configs[0].kv
SEARCH = "inference/search"


def sums(*reports):
    return tenant_sums(reports, KV)[SEARCH]


def pooled(*reports):
    return pool_sums(reports, tenant_sums(reports, KV), KV)


def test_a_tenant_is_summed_over_the_pods():
    first = make.tenant_usage("search", reserved=100, used=80, over_soft=20, in_flight=3, recent=Counts(admitted=5))
    second = make.tenant_usage(
        "search", reserved=10, used=8, over_soft=2, in_flight=1, recent=Counts(admitted=2, guarantee_missed=1)
    )
    found = sums(make.report(first), make.report(second, make.tenant_usage("batch", reserved=7)))
    assert (found.reserved, found.used, found.over_soft, found.in_flight) == (110, 88, 22, 4)
    assert (found.recent.admitted, found.guarantee_missed, found.last_refusal) == (7, 1, None)


@pytest.mark.parametrize(
    ("counts", "percent"),
    [
        pytest.param([Counts(), Counts()], None, id="no engine said"),
        pytest.param([Counts(prompt_tokens=300, cached_tokens=100), Counts(prompt_tokens=100)], 25, id="over all pods"),
        pytest.param([Counts(prompt_tokens=100, cached_tokens=2**62)], 100, id="no claim beyond the prompts"),
    ],
)
def test_the_prefix_hit_rate_of_a_tenant(counts, percent):
    reports = [make.report(make.tenant_usage("search", recent=each)) for each in counts]
    assert sums(*reports).prefix_hit_rate_percent == percent


def test_a_tenant_that_no_pod_names_has_no_sums():
    assert tenant_sums([make.report()], KV) == {}


@pytest.mark.parametrize(
    ("blocks", "most"),
    [
        pytest.param(1_001, 1_000, id="what its engine has"),
        pytest.param(10**12, 18_431, id="the cap where it claims a larger engine"),
        pytest.param(None, 18_431, id="the cap where it does not say"),
    ],
)
def test_a_pod_is_believed_up_to(blocks, most):
    claim = make.tenant_usage("search", reserved=2**62, used=2**62, over_soft=2**62, in_flight=2**62)
    engine = make.pool_usage(reserved=2**62, used=2**62, unattributed=2**62)
    given = make.report(claim, blocks=blocks, pool=engine)
    found, pool = sums(given), pooled(given)
    assert (found.reserved, found.used, found.over_soft, found.in_flight) == (most, most, most, MAX_SEQUENCES)
    assert (pool.reserved, pool.used, pool.unattributed) == (most, most, most)


def refusal(at, code="kv_pool_contended", message="m"):
    return make.report(make.tenant_usage("search", refusal=Refusal(code=code, message=message, at=at)))


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param([refusal(10.0, "a"), refusal(30.0, "b"), refusal(20.0, "c")], ("b", 30), id="the newest"),
        pytest.param([refusal(5.0, "a"), refusal(5.0, "b")], ("b", 5), id="of two at once always the same"),
        pytest.param([refusal(5.0, "b"), refusal(5.0, "a")], ("b", 5), id="in whatever order they come"),
        pytest.param([refusal(1e300, "a"), refusal(-1.0, "b"), refusal(7.9, "c")], ("c", 7), id="no impossible times"),
        pytest.param(
            [refusal(float("nan"), "a"), refusal(float("inf"), "b")], None, id="none where all are impossible"
        ),
        pytest.param([refusal(1.0, "x" * 253)], ("x" * 64, 1), id="a code as long as a status can carry"),
    ],
)
def test_the_last_refusal(reports, expected):
    last = sums(*reports).last_refusal
    assert (None if last is None else (last.code, int(last.time.timestamp()))) == expected


def test_counts_are_summed_by_code():
    first = Counts(admitted=1, rejected={"b": 1, "a": 2}, would_reject={"c": 1}, evicted=1, degraded={"Truncate": 4})
    second = Counts(admitted=2, rejected={"a": 3, "zero": 0}, evicted=1)
    assert recent_counts([first, second]) == RecentCounts(
        admitted=3,
        rejected_total=6,
        rejected={"a": 5, "b": 1},
        would_reject={"c": 1},
        evicted=2,
        degraded={"Truncate": 4},
    )


def test_what_was_ended_past_its_own_hard_counts_as_refused_and_not_as_ended_for_others():
    """Its client was told the same code."""
    first = Counts(admitted=1, rejected={"tenant_kv_quota_exceeded": 2, "draining": 1}, ended=3)
    assert recent_counts([first, Counts(ended=1), RecentCounts(admitted=0, rejected_total=0, evicted=0)]) == (
        RecentCounts(admitted=1, rejected_total=7, rejected={"draining": 1, "tenant_kv_quota_exceeded": 6}, evicted=0)
    )


def test_claims_of_counts_end_where_a_status_ends():
    codes = {f"code-{number:03}": 2**62 for number in range(100)}
    found = recent_counts([Counts(admitted=2**62, rejected=codes, evicted=2**62)])
    assert (found.admitted, found.evicted, found.rejected_total) == (2**53, 2**53, 2**53)
    assert (len(found.rejected), set(found.rejected.values())) == (64, {2**53})


def test_a_code_that_is_none_of_ours_does_not_fill_the_status():
    found = recent_counts([Counts(rejected={"a" * 64: 1, "b" * 65: 2})])
    assert (found.rejected, found.rejected_total) == ({"a" * 64: 1}, 1)


def test_the_pool_is_summed_over_the_pods():
    first = make.report(
        make.tenant_usage("search", recent=Counts(admitted=1)),
        pool=make.pool_usage(
            reserved=5, used=4, unattributed=1, pressure_percent=40.4, rung="Evict", accounting="Exact"
        ),
    )
    second = make.report(
        make.tenant_usage("batch", recent=Counts(admitted=2)),
        blocks=1_000,
        pool=make.pool_usage(
            reserved=7, used=6, unattributed=0, pressure_percent=90.6, rung="Shed", accounting="Exact"
        ),
    )
    found = pooled(first, second)
    assert found == PoolSums(
        measured=19_432,
        reserved=12,
        used=10,
        unattributed=1,
        accounting="Exact",
        pressure_percent=91,
        rung="Evict",
        recent=RecentCounts(admitted=3, rejected_total=0, evicted=0),
    )


NOTHING = msgspec.structs.replace(make.report(blocks=None), pool=None)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param([], PoolSums(None, None, None, None, None, None, None, None), id="without reports nothing"),
        pytest.param([NOTHING], PoolSums(None, None, None, None, None, None, None, None), id="pods that say nothing"),
        pytest.param(
            [NOTHING, make.report(blocks=5)],
            PoolSums(5, 0, 0, 0, "Estimated", 0, "Normal", None),
            id="only those that say something are summed",
        ),
    ],
)
def test_absent_is_not_zero(reports, expected):
    assert pooled(*reports) == expected


def test_one_estimate_makes_the_sum_an_estimate():
    exact = make.report(pool=make.pool_usage(accounting="Exact"))
    assert pooled(exact, make.report()).accounting == "Estimated"


@pytest.mark.parametrize(
    ("claimed", "percent"),
    [
        pytest.param(-3.0, 0, id="not below 0"),
        pytest.param(1e9, 100, id="not above 100"),
        pytest.param(84.6, 85, id="to the nearest percent"),
        pytest.param(float("inf"), 100, id="not without end"),
    ],
)
def test_pressure_is_a_percent(claimed, percent):
    assert pooled(make.report(pool=make.pool_usage(pressure_percent=claimed))).pressure_percent == percent
