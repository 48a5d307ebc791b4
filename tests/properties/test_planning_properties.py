"""Dividing pods between tenants: nothing is promised twice, and splitting creates nothing."""

from hypothesis import given
from hypothesis import strategies as st

from kvquota_api.amounts import Blocks
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import KvPlan, Ladder, TenantShare
from kvquota_api.quota import Share
from kvquota_operator.planning.blocks import blocks_of
from kvquota_operator.planning.effective import EffectiveQuota
from kvquota_operator.planning.granting import PodRoom, grant_shares
from kvquota_operator.planning.guarantees import given_softs, guarantee_limit
from kvquota_operator.planning.lending import Priorities, largest_request, shed_threshold
from kvquota_operator.planning.spreading import filled, pods_served

KV = KvPlan(
    cap_blocks=18_432,
    null_blocks=1,
    block_tokens=16,
    bytes_per_block=2 * 2**20,
    max_model_len=32_768,
    groups=(LayerGroup(kind="Full", block_tokens=16),),
)

blocks = st.integers(0, 20_000)
percents = st.integers(0, 10_000).map(lambda hundredths: Share(percent=f"{hundredths / 100:.2f}"))
shares = (
    st.none() | percents | blocks.map(lambda n: Share(tokens=n * 16)) | blocks.map(lambda n: Share(bytes=n * 2**21))
)
usables = st.lists(blocks.map(Blocks), min_size=1, max_size=6)


@st.composite
def tenants(draw, most=6):
    """Quotas and kept shares of different tenants."""
    quotas = [
        EffectiveQuota(
            tenant=f"t{place}",
            quota=f"q{place}",
            priority=draw(st.integers(0, 1000)),
            scope=draw(st.sampled_from(["Pool", "PerReplica"])),
            soft=draw(shares),
            hard=draw(shares),
            max_concurrent_requests=draw(st.none() | st.integers(1, 9)),
            max_context_tokens=draw(st.none() | st.integers(1, 100_000)),
            enforcement=draw(st.sampled_from(["Enforce", "Enforce", "Shadow"])),
        )
        for place in range(draw(st.integers(0, most)))
    ]
    kept = [
        TenantShare(id=f"k{place}", quota=f"k{place}", priority=0, soft_blocks=draw(blocks), hard_blocks=20_000)
        for place in range(draw(st.integers(0, 2)))
    ]
    return quotas, tuple(kept)


@given(tenants(), usables, st.integers(0, 100))
def test_softs_sum_to_at_most_what_shed_leaves(who, pods, shed):
    quotas, kept = who
    for pod in grant_shares(quotas, [PodRoom(usable, KV, kept) for usable in pods], shed):
        given_out = sum(share.soft_blocks for share in pod.shares)
        assert given_out == pod.softs_given <= pod.usable * shed // 100 == pod.limit


@given(tenants(), usables)
def test_no_soft_is_above_its_hard_and_no_hard_above_its_pod(who, pods):
    quotas, kept = who
    names = {quota.tenant for quota in quotas}
    for pod in grant_shares(quotas, [PodRoom(usable, KV, kept) for usable in pods], 85):
        computed = [share for share in pod.shares if share.id in names]
        assert all(share.soft_blocks <= share.hard_blocks <= pod.usable for share in computed)
        assert all(share.soft_blocks == 0 for share in computed if share.enforcement == "Shadow")


@given(tenants(), usables)
def test_a_pool_limit_is_never_passed_by_the_pods_together(who, pods):
    quotas, kept = who
    together = Blocks(sum(pods))
    divided = grant_shares(quotas, [PodRoom(usable, KV, kept) for usable in pods], 85)
    for quota in (each for each in quotas if each.scope == "Pool"):
        parts = [pod.grants[quota.tenant].share for pod in divided]
        limit = together if quota.hard is None else blocks_of(quota.hard, together, KV)
        assert sum(part.hard_blocks for part in parts) <= limit
        if quota.max_concurrent_requests is not None:
            able = [part.max_concurrent_requests for part in parts if part.hard_blocks]
            assert sum(able) <= quota.max_concurrent_requests


@given(tenants(), usables)
def test_splitting_over_more_pods_creates_no_memory(who, pods):
    quotas, _ = who
    for quota in quotas:
        for pod in grant_shares([quota], [PodRoom(usable, KV) for usable in pods], 85):
            share = pod.grants[quota.tenant].share
            assert 0 <= share.soft_blocks <= share.hard_blocks <= pod.usable
        if quota.scope == "Pool" and quota.hard is not None and quota.hard.byte_count is not None:
            parts = grant_shares([quota], [PodRoom(usable, KV) for usable in pods], 85)
            held = sum(pod.grants[quota.tenant].share.hard_blocks for pod in parts)
            assert held * KV.bytes_per_block <= quota.hard.byte_count


@given(percents, blocks.map(Blocks))
def test_a_percent_of_a_pool_is_the_same_blocks_when_written_as_tokens_or_bytes(percent, usable):
    part = blocks_of(percent, usable, KV)
    assert blocks_of(Share(tokens=KV.worth.tokens(part)), usable, KV) == part
    assert blocks_of(Share(bytes=part * KV.bytes_per_block), usable, KV) == part


@given(tenants(), usables)
def test_dividing_again_with_everything_kept_changes_nothing(who, pods):
    quotas, kept = who
    first = grant_shares(quotas, [PodRoom(usable, KV, kept) for usable in pods], 85)
    again = grant_shares([], [PodRoom(pod.usable, KV, pod.shares) for pod in first], 85)
    assert [pod.shares for pod in again] == [pod.shares for pod in first]


@given(st.integers(0, 10**6), st.lists(st.integers(0, 10**4), max_size=8))
def test_parts_create_nothing_and_lose_nothing(total, rooms):
    parts = filled(total, (rooms,))
    assert sum(parts) == min(total, sum(rooms))
    assert all(0 <= part <= room for part, room in zip(parts, rooms, strict=True))


@given(st.integers(0, 10**6), st.lists(st.integers(0, 10**4), min_size=1, max_size=8))
def test_parts_of_pods_with_room_differ_by_one_at_most(total, rooms):
    parts = filled(total, (rooms,))
    spare = [part for part, room in zip(parts, rooms, strict=True) if part < room]
    full = [part for part, room in zip(parts, rooms, strict=True) if part == room]
    assert max(spare, default=0) - min(spare, default=0) <= 1
    assert not spare or max(full, default=0) <= max(spare) + 1


@given(st.integers(0, 10**6), st.integers(1, 10**4), st.integers(1, 50))
def test_every_pod_that_is_served_gets_enough_where_there_is_enough(total, least, pods):
    served = pods_served(total, least, pods)
    parts = filled(total, ([total] * served,))
    assert 1 <= served <= pods
    assert total < least or min(parts) >= least


@given(st.dictionaries(st.sampled_from("abcdef"), blocks), blocks)
def test_softs_keep_their_proportion(asked, limit):
    given_out = given_softs(asked, {}, Blocks(limit))
    total = sum(asked.values())
    if total <= limit:
        assert given_out == asked
    else:
        assert all(0 <= asked[each] * limit / total - given_out[each] < 1 for each in asked)


@given(blocks, st.integers(0, 100))
def test_the_limit_of_guarantees_is_within_the_pod(usable, shed):
    assert 0 <= guarantee_limit(Blocks(usable), shed) <= usable


@given(blocks, st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), blocks)
def test_what_is_lent_leaves_the_guarantees_and_the_threshold(usable, one, two, three, others):
    lowest, priority, highest = sorted((one, two, three))
    threshold = shed_threshold(priority, Priorities(lowest, highest), Ladder())
    lent = largest_request(Blocks(usable), Blocks(0), others, threshold, Ladder())
    assert lent == 0 or (lent < threshold * usable and usable - lent >= min(others, usable // 5))
