"""A limit over pods of any plans: no part of it is given twice, and nobody's share depends on how large blocks are."""

from hypothesis import given
from hypothesis import strategies as st

from kvquota_api.amounts import Blocks
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import KvPlan
from kvquota_api.quota import Share
from kvquota_operator.planning.effective import EffectiveQuota
from kvquota_operator.planning.exchange import MOST_UNITS, blocks_in, exchange_of
from kvquota_operator.planning.granting import PodRoom, grant_shares
from kvquota_operator.planning.holding import Holding, Holdings


@st.composite
def plans(draw):
    tokens = draw(st.sampled_from([1, 16, 32, 528]))
    kinds = st.sampled_from(
        [LayerGroup(kind="Full", block_tokens=tokens), LayerGroup(kind="State", block_tokens=tokens)]
    )
    groups = (LayerGroup(kind="Full", block_tokens=tokens), *draw(st.lists(kinds, max_size=2)))
    sizes = st.integers(1, 2**24)
    return KvPlan(
        cap_blocks=100_001,
        null_blocks=1,
        block_tokens=tokens,
        bytes_per_block=draw(sizes),
        max_model_len=draw(st.integers(1, 100_000)),
        groups=groups,
    )


limits = st.one_of(
    st.none(),
    st.integers(0, 10**7).map(lambda tokens: Share(tokens=tokens)),
    st.integers(0, 2**40).map(lambda size: Share(bytes=size)),
    st.integers(0, 100).map(lambda percent: Share(percent=percent)),
)
pods = st.lists(
    st.tuples(plans(), st.integers(0, 100_000).map(Blocks), st.integers(0, 100_000)), min_size=1, max_size=6
)


@given(hard=limits, found=pods)
def test_parts_of_unequal_pods_never_sum_to_more_than_the_limit(hard, found):
    quota = EffectiveQuota("a", "a", 0, "Pool", None, hard, None, 160, "Enforce")
    holdings = [min(held, usable) for _, usable, held in found]
    rooms = [
        PodRoom(usable, kv, (), Holdings({"a": Holding(Blocks(held), 1, Blocks(held), 1)}))
        for (kv, usable, _), held in zip(found, holdings, strict=True)
    ]
    exchange = exchange_of(hard, [(room.kv, room.usable) for room in rooms], {room.kv for room in rooms})
    shares = [each.grants["a"].share for each in grant_shares([quota], rooms, 85)]
    after = before = 0
    for room, share, held in zip(rooms, shares, holdings, strict=True):
        measure = exchange.measures[room.kv]
        assert (share.hard_blocks <= room.usable, share.whole_hard_blocks) == (True, measure.whole)
        after += max(share.hard_blocks, held) * measure.rate
        before += held * measure.rate
    assert after <= max(exchange.total, before)


@given(hard=limits, found=pods)
def test_units_are_whole_and_bounded(hard, found):
    exchange = exchange_of(hard, [(kv, usable) for kv, usable, _ in found], {kv for kv, _, _ in found})
    assert exchange.total <= max(MOST_UNITS, 2**40)
    for measure in exchange.measures.values():
        assert measure.units(measure.blocks(exchange.total)) <= exchange.total
        assert measure.blocks(exchange.total) <= max(measure.whole, exchange.total // measure.rate)
        assert measure.units(measure.blocks(exchange.total) + 1) > exchange.total


@given(one=plans(), other=plans(), blocks=st.integers(0, 10**9))
def test_blocks_of_another_plan_take_no_more_memory(one, other, blocks):
    found = blocks_in(one, blocks, other)
    assert found * one.bytes_per_block <= blocks * other.bytes_per_block < (found + 1) * one.bytes_per_block
