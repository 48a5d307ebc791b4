"""Victims and shared beginnings against models that know every block by name."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import given, note, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvquota_api.amounts import Blocks
from kvquota_sidecar.admission.victims import Candidate, Holding, victims
from kvquota_sidecar.ledger.sharing import Prefixes


@dataclass(frozen=True)
class Request:
    """`blocks`: by name; requests of one tenant share those of the same name."""

    ticket: int
    priority: int
    sent: bool
    blocks: frozenset[int]


@dataclass(frozen=True)
class Tenant:
    """`work` in order of admission."""

    name: str
    soft: int
    work: tuple[Request, ...]

    def left(self, gone: frozenset[int]) -> list[Request]:
        return [each for each in self.work if each.ticket not in gone]

    def held(self, gone: frozenset[int]) -> int:
        return len(frozenset().union(*(each.blocks for each in self.left(gone))))

    def over_soft(self, gone: frozenset[int]) -> list[Request]:
        """By the words of the rule: all behind the longest prefix whose distinct blocks fit soft."""
        left = self.left(gone)
        sums = [len(frozenset().union(*(each.blocks for each in left[: end + 1]))) for end in range(len(left))]
        return [each for each, total in zip(left, sums, strict=True) if total > self.soft]

    def holding(self) -> Holding:
        paid: frozenset[int] = frozenset()
        work = []
        for each in self.work:
            charge = Blocks(len(each.blocks - paid))
            work.append(Candidate(each.ticket, self.name, each.priority, charge, each.sent))
            paid |= each.blocks
        return Holding(self.name, Blocks(self.soft), tuple(work))


@dataclass(frozen=True)
class Pool:
    tenants: tuple[Tenant, ...]

    def held(self, gone: frozenset[int]) -> int:
        return sum(each.held(gone) for each in self.tenants)

    def over_soft(self, gone: frozenset[int]) -> list[tuple[Tenant, Request]]:
        return [(tenant, each) for tenant in self.tenants for each in tenant.over_soft(gone)]

    def freed(self, gone: frozenset[int], ticket: int) -> int:
        return self.held(gone) - self.held(gone | {ticket})

    def next_victim(self, gone: frozenset[int]) -> int | None:
        """By the words of the rule."""

        def order(pair: tuple[Tenant, Request]) -> tuple[int, int, bool, int]:
            tenant, each = pair
            return each.priority, tenant.soft - tenant.held(gone), each.sent, -each.ticket

        return min(((order(pair), pair[1].ticket) for pair in self.over_soft(gone)), default=(None, None))[1]

    def by_the_rule(self, missing: int) -> tuple[int, ...]:
        picked: list[int] = []
        while self.held(frozenset()) - self.held(frozenset(picked)) < missing:
            victim = self.next_victim(frozenset(picked))
            if victim is None:
                return tuple(picked)
            picked.append(victim)
        for ticket in picked[-2::-1]:
            without = [each for each in picked if each != ticket]
            if self.held(frozenset()) - self.held(frozenset(without)) >= missing:
                picked = without
        return tuple(picked)

    def victims(self, missing: int) -> tuple[int, ...]:
        return victims([each.holding() for each in self.tenants], missing, self.freed)


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    names = draw(st.lists(st.sampled_from("abcd"), max_size=4, unique=True))
    owners = draw(st.lists(st.sampled_from(names), max_size=10)) if names else []

    def request(ticket: int) -> Request:
        first, size, own = draw(st.sampled_from([0, 0, 1])), draw(st.integers(0, 6)), draw(st.integers(0, 6))
        blocks = {100 * first + each for each in range(size)} | {1000 * ticket + each for each in range(own)}
        return Request(ticket, draw(st.sampled_from([0, 0, 5])), draw(st.booleans()), frozenset(blocks))

    work = {ticket: request(ticket) for ticket in range(1, len(owners) + 1)}

    def tenant(name: str) -> Tenant:
        return Tenant(
            name, draw(st.integers(0, 25)), tuple(work[at + 1] for at, each in enumerate(owners) if each == name)
        )

    return Pool(tuple(tenant(name) for name in names))


@given(pool=pools(), missing=st.integers(-1, 60))
def test_victims_are_those_of_the_rule(pool: Pool, missing: int) -> None:
    assert pool.victims(missing) == pool.by_the_rule(missing)


@given(pool=pools(), missing=st.integers(-1, 60))
def test_no_victim_is_protected_when_its_turn_comes(pool: Pool, missing: int) -> None:
    picked = pool.victims(missing)
    for at, ticket in enumerate(picked):
        assert ticket in [each.ticket for _, each in pool.over_soft(frozenset(picked[:at]))]


@given(pool=pools(), missing=st.integers(-1, 60))
def test_enough_is_freed_or_nothing_over_soft_is_left(pool: Pool, missing: int) -> None:
    gone = frozenset(pool.victims(missing))
    freed = pool.held(frozenset()) - pool.held(gone)
    note(f"{sorted(gone)} free {freed}")
    assert freed >= missing or not pool.over_soft(gone)


@given(pool=pools(), missing=st.integers(-1, 60))
def test_where_it_is_enough_each_one_is_needed(pool: Pool, missing: int) -> None:
    gone = frozenset(pool.victims(missing))
    everything = pool.held(frozenset())
    if everything - pool.held(gone) >= missing:
        assert [each for each in gone if everything - pool.held(gone - {each}) >= missing] == []


@given(pool=pools(), missing=st.integers(1, 60), data=st.data())
def test_the_order_of_the_tenants_does_not_matter(pool: Pool, missing: int, data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(pool.tenants))
    assert Pool(tuple(shuffled)).victims(missing) == pool.victims(missing)


class PrefixesMachine(RuleBasedStateMachine):
    """Distinct chunks by the tree, against sets of them."""

    def __init__(self) -> None:
        super().__init__()
        self.prefixes: Prefixes[int] = Prefixes()
        self.live: dict[int, tuple[int, ...]] = {}  # in order of arrival
        self.names: dict[str, int] = {}
        self.key = 0

    def chain(self, text: str) -> tuple[int, ...]:
        """A number for each beginning."""
        ends = range(1, len(text) + 1)
        return tuple(self.names.setdefault(text[:end], len(self.names)) for end in ends)

    def leading(self, key: int, gone: frozenset[int] = frozenset()) -> int:
        older: set[int] = set()
        for each, chunks in self.live.items():
            if each == key:
                return len(older.intersection(chunks))
            if each not in gone:
                older.update(chunks)
        raise AssertionError(key)

    def fallen(self, keys: frozenset[int], gone: frozenset[int]) -> dict[int, int]:
        left = [each for each in self.live if each not in keys | gone]
        before = {each: self.leading(each, gone) for each in left}
        after = {each: self.leading(each, keys | gone) for each in left}
        return {each: after[each] for each in left if after[each] < before[each]}

    @rule(text=st.text("ab", max_size=12), tail=st.text("xyz", max_size=3))
    def add(self, text: str, tail: str) -> None:
        self.key += 1
        self.live[self.key] = self.chain(text + tail)
        assert self.prefixes.add(self.key, self.live[self.key]) == self.leading(self.key)

    @rule(times=st.integers(1, 6))
    def go_on(self, times: int) -> None:
        """A conversation: each prompt is the one before and a little more."""
        for number in range(times):
            self.add("ab" * number, "x" * (number % 2))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.live)), "key")
        expected = self.fallen(frozenset({key}), frozenset())
        assert self.prefixes.remove(key) == expected
        del self.live[key]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def what_if(self, data: st.DataObject) -> None:
        some = st.frozensets(st.sampled_from(sorted(self.live)), max_size=4)
        keys, gone = data.draw(some, "keys"), data.draw(some, "gone")
        assert self.prefixes.fallen(keys - gone, gone) == self.fallen(keys - gone, gone)
        for key in self.live.keys() - gone:
            assert self.prefixes.leading(key, gone) == self.leading(key, gone)

    @invariant()
    def what_is_paid_is_what_is_held(self) -> None:
        self.prefixes.check_integrity()
        paid = sum(len(chain) - self.prefixes.leading(key) for key, chain in self.live.items())
        assert paid == len(set().union(*self.live.values()))
        assert len(self.prefixes) == len(self.live)

    @invariant()
    def memory_follows_what_is_live(self) -> None:
        runs = [self.prefixes._root]
        for run in runs:
            runs.extend(run.next.values())
        assert sum(len(run.chunks) for run in runs) == len(set().union(*self.live.values()))


PrefixesMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestPrefixes = PrefixesMachine.TestCase
