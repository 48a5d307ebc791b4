"""How many requests of which length a cache holds."""

from fractions import Fraction

from kvquota_api.amounts import Tokens
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.memory.cache_plan import CacheGroup, CachePlan
from kvquota_api.memory.capacity import Capacity, capacity_of


def cache(*costs: LayerGroup, blocks: int = 101, longest: int = 8192) -> CachePlan:
    return CachePlan(
        blocks=blocks,
        null_blocks=1,
        block_tokens=16,
        bytes_per_token=1,
        bytes_per_block=16,
        kv_bytes=16 * blocks,
        tokens=16 * blocks,
        logged_tokens=None,
        concurrency=Fraction(1),
        max_model_len=longest,
        min_bytes=16,
        groups=tuple(CacheGroup(cost.kind, 1, 16, cost) for cost in costs),
    )


def test_requests_fit_as_often_as_their_blocks_do_without_the_one_that_is_never_handed_out() -> None:
    full = LayerGroup(kind="Full", block_tokens=16)
    assert capacity_of(cache(full), (Tokens(320), Tokens(321), Tokens(1600), Tokens(1601))) == (
        Capacity(Tokens(320), 20, 5),
        Capacity(Tokens(321), 21, 4),
        Capacity(Tokens(1600), 100, 1),
        Capacity(Tokens(1601), 101, 0),
    )


def test_all_groups_of_a_request_take_from_the_same_blocks() -> None:
    groups = (
        LayerGroup(kind="Full", block_tokens=16),
        LayerGroup(kind="Sliding", block_tokens=16, window_tokens=64),
        LayerGroup(kind="State", block_tokens=16, fixed_blocks=2),
    )
    assert capacity_of(cache(*groups), (Tokens(160),)) == (Capacity(Tokens(160), 10 + 5 + 2, 5),)


def test_a_request_that_is_longer_than_the_engine_allows_does_not_fit_at_all() -> None:
    full = LayerGroup(kind="Full", block_tokens=16)
    assert capacity_of(cache(full, longest=100), (Tokens(100), Tokens(101))) == (
        Capacity(Tokens(100), 7, 14),
        Capacity(Tokens(101), 7, 0),
    )


def test_what_costs_no_block_is_held_as_often_as_there_are_blocks() -> None:
    free = LayerGroup(kind="State", block_tokens=16)
    assert capacity_of(cache(free), (Tokens(16),)) == (Capacity(Tokens(16), 0, 100),)


def test_a_pool_of_nothing_holds_nothing() -> None:
    full = LayerGroup(kind="Full", block_tokens=16)
    assert capacity_of(cache(full, blocks=0), (Tokens(1),)) == (Capacity(Tokens(1), 1, 0),)
