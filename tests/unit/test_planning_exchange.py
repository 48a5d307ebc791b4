"""A limit over pods of unequal plans: in which unit it is counted, and what each pod's part of it is."""

import pytest

from kvquota_api.amounts import UNLIMITED, Blocks
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import KvPlan
from kvquota_api.quota import Share
from kvquota_operator.planning.effective import EffectiveQuota
from kvquota_operator.planning.exchange import (
    MOST_UNITS,
    Measure,
    blocks_in,
    exchange_of,
    least_blocks_in,
    most_blocks_in,
)
from kvquota_operator.planning.granting import PodRoom, grant_shares
from kvquota_operator.planning.holding import Holding, Holdings


def plan(block_tokens, bytes_per_block):
    return KvPlan(
        cap_blocks=1_001,
        null_blocks=1,
        block_tokens=block_tokens,
        bytes_per_block=bytes_per_block,
        max_model_len=1_600,
        groups=(LayerGroup(kind="Full", block_tokens=block_tokens),),
    )


SMALL, LARGE = plan(16, 1_000), plan(32, 4_000)
TWO = ((SMALL, Blocks(1_000)), (LARGE, Blocks(500)))  # 1 MB of small blocks and 2 MB of large ones


def wholes(hard, pods=TWO, plans=(SMALL, LARGE)):
    found = exchange_of(hard, pods, plans)
    return found.total, [found.measures[kv].whole for kv in plans]


@pytest.mark.parametrize(
    ("hard", "expected"),
    [
        pytest.param(Share(tokens=3_200), [200, 100], id="tokens: so many on pods of any plan"),
        pytest.param(Share(bytes=400_000), [400, 100], id="bytes: so many on pods of any plan"),
        pytest.param(Share(percent=50), [1_500, 375], id="a percent: of the memory of all pods together"),
        pytest.param(None, [3_000, 750], id="no limit: the memory of all pods together"),
        pytest.param(Share(bytes=10**9), [3_000, 750], id="more than there is: all that there is"),
        pytest.param(Share(bytes=3_999), [3, 0], id="less than a large block"),
        pytest.param(Share(bytes=999), [0, 0], id="less than any block"),
    ],
)
def test_a_limit_as_each_plan_sees_it(hard, expected):
    assert wholes(hard)[1] == expected


@pytest.mark.parametrize(
    ("hard", "expected"),
    [
        pytest.param(Share(tokens=3_200), Measure(Blocks(200), 1, 200), id="the unit is a block"),
        pytest.param(Share(bytes=999), Measure(Blocks(0), 1, 0), id="a limit of nothing"),
    ],
)
def test_in_a_pool_of_one_plan(hard, expected):
    assert exchange_of(hard, [(SMALL, Blocks(1_000))], [SMALL]).measures == {SMALL: expected}


def test_one_block_of_each_plan_is_its_part_of_the_limit():
    found = exchange_of(Share(tokens=3_200), TWO, [SMALL, LARGE])
    assert (found.total, [each.rate for each in found.measures.values()]) == (200, [1, 2])
    measure = found.measures[LARGE]
    assert [measure.units(blocks) for blocks in (0, 7, 100, 101, 10**30)] == [0, 14, 200, 201, 201]
    assert [measure.blocks(units) for units in (0, 1, 2, 15, 200)] == [0, 0, 1, 7, 100]


def test_a_block_that_is_larger_than_the_limit_is_more_than_the_limit():
    found = exchange_of(Share(bytes=3_999), TWO, [SMALL, LARGE])
    assert (found.measures[LARGE].units(1), found.measures[LARGE].blocks(found.total)) == (found.total + 1, 0)


def test_however_many_plans_there_are_the_units_can_be_counted():
    plans = [plan(16, size) for size in (1_009, 1_013, 1_019, 1_021, 1_031, 1_033)]
    found = exchange_of(Share(bytes=10**9), [(kv, Blocks(10**6)) for kv in plans], plans)
    assert found.total == MOST_UNITS
    for kv in plans:
        whole = found.measures[kv].whole
        assert whole - 1 <= found.measures[kv].blocks(found.total) <= whole
        assert found.measures[kv].units(whole + 1) == found.total + 1
        assert found.measures[kv].units(whole) >= found.total, "rounded up, so that nothing is given by rounding"


def test_blocks_that_take_as_much_memory():
    assert [blocks_in(LARGE, 7, SMALL), blocks_in(SMALL, 7, LARGE), blocks_in(SMALL, 7, SMALL)] == [1, 28, 7]


def test_blocks_by_memory_or_by_tokens():
    assert [most_blocks_in(LARGE, 7, SMALL), least_blocks_in(LARGE, 7, SMALL)] == [4, 1]
    assert [most_blocks_in(SMALL, 7, LARGE), least_blocks_in(SMALL, 7, LARGE)] == [28, 14]
    assert [most_blocks_in(SMALL, 7, SMALL), least_blocks_in(SMALL, 7, SMALL)] == [7, 7]
    assert [most_blocks_in(SMALL, 0, LARGE), least_blocks_in(SMALL, 0, LARGE)] == [0, 0]


def test_no_amount_is_more_than_a_config_can_state():
    """The blocks of one plan may be as small beside those of another as the API allows."""
    least, largest = plan(1, 1), plan(2**31 - 1, 2**40)
    assert [most_blocks_in(least, 2**40, largest), least_blocks_in(least, 2**40, largest)] == [UNLIMITED, UNLIMITED]
    assert wholes(None, ((largest, Blocks(2**40)),), (least, largest))[1] == [UNLIMITED, 2**40]


def over_all(hard, **limits):
    plain = {"priority": 0, "scope": "Pool", "soft": None, "max_concurrent_requests": None, "max_context_tokens": 160}
    return EffectiveQuota(tenant="a", quota="a", hard=hard, enforcement="Enforce", **(plain | limits))


def parts(wanted, *rooms, leaving=()):
    """By pod, the tenant's hard and the whole that it is a part of."""
    shares = [each.grants["a"].share for each in grant_shares([wanted], rooms, 85, leaving)]
    return [(each.hard_blocks, each.whole_hard_blocks) for each in shares]


def room(usable, kv, *, held=0, given=0):
    holding = Holding(Blocks(held), 1, Blocks(given), 1)
    return PodRoom(Blocks(usable), kv, (), Holdings({"a": holding}))


@pytest.mark.parametrize(
    ("hard", "expected"),
    [
        pytest.param(Share(tokens=3_200), [(100, 200), (50, 100)], id="1,600 tokens on each"),
        pytest.param(Share(bytes=400_000), [(200, 400), (50, 100)], id="200 kB on each"),
        pytest.param(Share(percent=50), [(750, 1_500), (187, 375)], id="750 kB on each, rounded down to blocks"),
        pytest.param(None, [(1_000, 3_000), (500, 750)], id="no limit but their own size"),
    ],
)
def test_pods_of_two_plans_have_equal_parts_of_a_limit(hard, expected):
    assert parts(over_all(hard), room(1_000, SMALL), room(500, LARGE)) == expected


def test_what_a_pod_of_an_earlier_plan_holds_is_given_to_nobody_else():
    limit = over_all(Share(tokens=3_200))
    assert parts(limit, room(1_000, SMALL, held=150, given=100), room(500, LARGE)) == [(100, 200), (25, 100)]
    leaving = [room(1_000, SMALL, held=150, given=150)]
    assert parts(limit, room(500, LARGE), leaving=leaving) == [(25, 100)]


def test_a_soft_is_in_blocks_of_the_pods_own_plan():
    wanted = over_all(None, scope="PerReplica", soft=Share(tokens=3_200))
    found = grant_shares([wanted], [room(1_000, SMALL), room(500, LARGE)], 85)
    assert [(each.kv, each.grants["a"].share.soft_blocks, each.limit) for each in found] == [
        (SMALL, 200, 850),
        (LARGE, 100, 425),
    ]


def test_pods_of_unequal_plans_are_not_alike():
    one, other, third = grant_shares([over_all(None)], [room(500, SMALL), room(500, LARGE), room(500, SMALL)], 85)
    assert (one is third, one is other) == (True, False)
