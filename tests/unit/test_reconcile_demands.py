"""What a report says of what tenants ask for."""

import pytest

import reconcile_builders as make
from kvquota_api.amounts import Blocks
from kvquota_api.usage import Counts, UsageReport
from kvquota_operator.planning.demand import Demand
from kvquota_operator.reconcile.demands import demands_of
from kvquota_operator.reconcile.pods import LivePod
from kvquota_operator.reconcile.usage import MAX_SEQUENCES

USABLE = Blocks(1_000)
SEARCH = "inference/search"


def live(report: UsageReport | None, *, fresh: bool = True) -> LivePod:
    return LivePod(make.pod(), report, fresh=fresh, asked=True, awaited=False, error=None)


def says(recent: Counts | None = None, **usage: int) -> LivePod:
    return live(
        make.report(make.tenant_usage("search", recent=recent, **usage), make.tenant_usage("other", reserved=9))
    )


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(live(None, fresh=False), None, id="it never reported: nobody knows"),
        pytest.param(live(make.report(), fresh=False), None, id="its report is old: nobody knows"),
        pytest.param(live(make.report()), {}, id="it does not name the tenant"),
        pytest.param(says(reserved=70, in_flight=3), {SEARCH: Demand(Blocks(70), 3)}, id="what is held"),
        pytest.param(
            says(reserved=2**60, in_flight=2**60), {SEARCH: Demand(USABLE, MAX_SEQUENCES)}, id="no more than can be"
        ),
        pytest.param(
            says(Counts(admitted=8, rejected={"tenant_kv_quota_exceeded": 5, "tenant_concurrency_exceeded": 4})),
            {SEARCH: Demand(refused_blocks=5, refused_sequences=4, admitted=8)},
            id="refused for want of its part",
        ),
        pytest.param(
            says(Counts(rejected={"request_exceeds_kv_quota": 5, "kv_pool_contended": 4})),
            {SEARCH: Demand()},
            id="refused for other reasons",
        ),
        pytest.param(
            says(Counts(would_reject={"tenant_kv_quota_exceeded": 5, "tenant_concurrency_exceeded": 4})),
            {SEARCH: Demand(refused_blocks=5, refused_sequences=4)},
            id="only counted",
        ),
        pytest.param(says(Counts(ended=2)), {SEARCH: Demand(refused_blocks=2)}, id="ended since it grew past its part"),
    ],
)
def test_what_is_asked_for_on_a_pod(pod: LivePod, expected: dict[str, Demand] | None) -> None:
    assert demands_of(pod, {SEARCH}, USABLE) == expected
