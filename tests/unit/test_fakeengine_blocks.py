"""The fake engine's pool of blocks: sharing, reuse, and its invariants under any order of calls."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from kvquota_fakeengine.blocks import BlockPool
from kvquota_fakeengine.prefix_chain import BlockName, extend_chain


def names_of(tokens: list[int], salt: str | None = None) -> list[BlockName]:
    """The names of the full blocks of two tokens each."""
    names: list[BlockName] = []
    extend_chain(names, tokens, block_tokens=2, salt=salt, upto=len(tokens))
    return names


def hold(pool: BlockPool, holder: str, names: list[BlockName]) -> None:
    """Take as many blocks as there are names, finding those that are known, and publish them all."""
    known = pool.known_prefix(names)
    assert pool.open_table(holder, shared=names[:known], fresh=len(names) - known)
    for index, name in enumerate(names):
        pool.publish(holder, index, name)


def test_a_new_pool_has_all_but_the_null_block_free() -> None:
    pool = BlockPool(4)
    assert (pool.usable, pool.free, pool.held, pool.cached) == (3, 3, 0, 0)
    assert pool.open_table("a", shared=[], fresh=3)
    assert pool.table("a") == (1, 2, 3)


def test_a_pool_without_a_usable_block_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one more, not 1"):
        BlockPool(1)


def test_a_holder_has_one_table() -> None:
    pool = BlockPool(4)
    pool.open_table("a", shared=[], fresh=1)
    with pytest.raises(ValueError, match="a has a table already"):
        pool.open_table("a", shared=[], fresh=1)


def test_what_does_not_fit_takes_nothing() -> None:
    pool = BlockPool(4)
    assert not pool.open_table("a", shared=[], fresh=4)
    assert (pool.free, pool.holders()) == (3, frozenset())


def test_a_full_pool_does_not_grow_anybody() -> None:
    pool = BlockPool(4)
    pool.open_table("a", shared=[], fresh=2)
    assert pool.grow("a")
    assert not pool.grow("a")
    assert pool.table("a") == (1, 2, 3)


def test_equal_beginnings_share_blocks_and_pay_for_them_once() -> None:
    pool = BlockPool(8)
    hold(pool, "a", names_of([1, 1, 2, 2, 3, 3]))
    hold(pool, "b", names_of([1, 1, 2, 2, 4, 4]))
    assert pool.table("a")[:2] == pool.table("b")[:2]
    assert pool.held == 4


def test_shared_blocks_stay_held_until_the_last_holder_goes() -> None:
    pool = BlockPool(8)
    hold(pool, "a", names_of([1, 1, 2, 2]))
    hold(pool, "b", names_of([1, 1, 2, 2]))
    pool.close_table("a")
    assert (pool.held, pool.cached) == (2, 0)
    pool.close_table("b")
    assert (pool.held, pool.cached) == (0, 2)


def test_cached_blocks_that_nobody_holds_count_as_free_and_are_found_again() -> None:
    pool = BlockPool(4)
    names = names_of([1, 1, 2, 2])
    hold(pool, "a", names)
    blocks = pool.table("a")
    pool.close_table("a")
    assert pool.known_prefix(names) == 2
    hold(pool, "b", names)
    assert pool.table("b") == blocks


def test_cached_hits_are_not_counted_as_room_for_fresh_blocks() -> None:
    pool = BlockPool(4)
    names = names_of([1, 1, 2, 2])
    hold(pool, "a", names)
    pool.close_table("a")
    assert not pool.open_table("b", shared=names, fresh=2)
    assert pool.open_table("b", shared=names, fresh=1)


def test_empty_blocks_are_reused_before_cached_ones_and_prefixes_from_their_end() -> None:
    pool = BlockPool(6)
    hold(pool, "old", names_of([1, 1, 2, 2]))
    hold(pool, "new", names_of([3, 3, 4, 4]))
    pool.close_table("old")
    pool.close_table("new")
    assert pool.open_table("c", shared=[], fresh=2)
    assert pool.known_prefix(names_of([1, 1, 2, 2])) == 1
    assert pool.known_prefix(names_of([3, 3, 4, 4])) == 2


def test_a_salt_changes_every_name_of_a_prompt() -> None:
    plain, salted, other = (names_of([1, 1, 2, 2], salt) for salt in (None, "a", "b"))
    assert len({*plain, *salted, *other}) == 6


def test_a_block_s_name_depends_on_all_tokens_before_it() -> None:
    assert names_of([1, 1, 2, 2])[1] != names_of([9, 1, 2, 2])[1]
    assert names_of([1, 1, 2, 2])[1] == names_of([1, 1, 2, 2, 3])[1]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda pool: pool._free.update({0: None}), "the null block is free, held or named"),
        (lambda pool: setattr(pool._blocks[1], "references", 2), "block 1 miscounts its references"),
        (lambda pool: pool._free.update({3: None}), "block 3 is free and held, or neither"),
        (lambda pool: pool._free.pop(4), "block 4 is free and held, or neither"),
        (lambda pool: pool._named.clear(), "names and blocks disagree"),
        (lambda pool: pool._free.move_to_end(2, last=False), "a cached block would be reused before an empty one"),
    ],
    ids=["a free null block", "a reference too many", "free and held", "lost", "a forgotten name", "the wrong order"],
)
def test_damage_is_found(damage: Callable[[BlockPool], object], says: str) -> None:
    pool = BlockPool(5)
    hold(pool, "cached", names_of([9, 9, 1, 1]))
    pool.close_table("cached")
    hold(pool, "a", names_of([5, 5]))
    pool.check_integrity()
    damage(pool)
    with pytest.raises(AssertionError, match=says):
        pool.check_integrity()


class PoolMachine(RuleBasedStateMachine):
    """Holders come with one of a few prompts, grow, publish and go; the pool is small enough to run short."""

    holders = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(9)
        self.count = 0

    @rule(target=holders, tokens=st.lists(st.integers(0, 1), min_size=2, max_size=8), salt=st.sampled_from([None, "a"]))
    def start(self, tokens: list[int], salt: str | None) -> str | None:
        names = names_of(tokens, salt)
        known = self.pool.known_prefix(names)
        self.count += 1
        holder = f"h{self.count}"
        before = self.pool.free
        if not self.pool.open_table(holder, shared=names[:known], fresh=len(names) - known):
            assert self.pool.free == before
            return None
        for index, name in enumerate(names):
            self.pool.publish(holder, index, name)
        assert self.pool.known_prefix(names) == len(names)
        return holder

    @rule(holder=holders)
    def grow(self, holder: str | None) -> None:
        if holder is not None:
            free = self.pool.free
            assert self.pool.grow(holder) == (free > 0)
            assert self.pool.free == max(0, free - 1)

    @rule(holder=consumes(holders))
    def end(self, holder: str | None) -> None:
        if holder is not None:
            self.pool.close_table(holder)
            assert self.pool.table(holder) == ()

    @precondition(lambda self: not self.pool.holders())
    @rule()
    def an_idle_pool_has_everything_free(self) -> None:
        assert self.pool.held == 0

    @invariant()
    def holds_together(self) -> None:
        self.pool.check_integrity()
        distinct = {number for holder in self.pool.holders() for number in self.pool.table(holder)}
        assert self.pool.held == len(distinct)


TestPoolMachine = PoolMachine.TestCase
