"""The largest single request that an idle pool gives a tenant."""

from fractions import Fraction

import pytest

from kvquota_api.amounts import Blocks
from kvquota_api.pod_config import Ladder, Threshold
from kvquota_operator.planning.lending import Priorities, largest_request, shed_threshold

LADDER = Ladder()


@pytest.mark.parametrize(
    ("priority", "pool", "percent"),
    [
        pytest.param(10, Priorities(10, 100), 85, id="the lowest is refused at shed"),
        pytest.param(100, Priorities(10, 100), 92, id="the highest is refused at evict"),
        pytest.param(55, Priorities(10, 100), Fraction(885, 10), id="half way between them, half way"),
        pytest.param(50, Priorities(50, 50), 85, id="all equal are refused at shed"),
    ],
)
def test_shed_threshold(priority, pool, percent):
    assert shed_threshold(priority, pool, LADDER) == Fraction(percent) / 100


@pytest.mark.parametrize(
    ("soft", "others", "percent", "largest"),
    [
        pytest.param(0, 0, 85, 849, id="below the shed threshold: 850 of 1,000 would reach it"),
        pytest.param(0, 100, 92, 900, id="beside the guarantees of the others"),
        pytest.param(0, 600, 92, 800, id="the guarantees of the others count up to the reserve of 20 percent"),
        pytest.param(870, 0, 85, 870, id="everything inside soft"),
    ],
)
def test_largest_request_of_an_idle_pool(soft, others, percent, largest):
    assert largest_request(Blocks(1_000), Blocks(soft), others, Fraction(percent, 100), LADDER) == largest


@pytest.mark.parametrize(
    ("soft", "largest"),
    [
        pytest.param(0, 424, id="below the shed threshold of the rank that runs it"),
        pytest.param(450, 450, id="everything inside soft"),
        pytest.param(600, 500, id="a soft that no rank can hold in one request"),
    ],
)
def test_a_request_runs_on_one_of_two_ranks(soft, largest):
    assert largest_request(Blocks(1_000), Blocks(soft), 0, Fraction(85, 100), LADDER, ranks=2) == largest


def test_a_threshold_between_two_blocks_is_never_reached_by_what_is_lent():
    ladder = Ladder(shed=Threshold(enter_percent=85, exit_percent=80), guarantee_reserve_percent=0)
    lent = largest_request(Blocks(999), Blocks(0), 0, Fraction(85, 100), ladder)
    assert (lent, lent * 100 < 85 * 999, (lent + 1) * 100 < 85 * 999) == (849, True, False)


@pytest.mark.parametrize(
    ("priorities", "span"),
    [
        pytest.param([5, 900, 0], Priorities(0, 900), id="from the lowest to the highest"),
        pytest.param([], Priorities(0, 0), id="of nobody: nothing"),
    ],
)
def test_the_span_of_priorities(priorities, span):
    assert Priorities.of(priorities) == span
