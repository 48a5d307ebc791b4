"""Who has to give back: which running requests are ended so that at least so many blocks come free.

Decides by docs/accounting.md (protected, victims, victims-again, victims-spared). Pure.

Invariants:

1. A victim is over-soft, also when those before it in the answer have been ended; nobody protected is ever ended.
2. The answer frees what is missing, or nothing over-soft is left beside it.
3. Where it frees what is missing, each one in it is needed for that.
4. The same work gives the same answer, in whatever order the tenants come.
5. For n requests it asks `freed` at most 3n times and takes n log n steps beside that.

It does not know why blocks are missing, nor which blocks requests share: `freed` does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvquota_api.amounts import Blocks

Freed = Callable[[frozenset[int], int], int]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One running request. `charge`: blocks that its tenant pays for it. `sent`: its client has seen the first byte.

    A larger `ticket` was given later, among all tenants.
    """

    ticket: int
    tenant: str
    priority: int
    charge: Blocks
    sent: bool


@dataclass(frozen=True, slots=True)
class Holding:
    """All live work of one tenant, in order of admission; `soft`: in force, in blocks."""

    tenant: str
    soft: Blocks
    work: tuple[Candidate, ...]


def victims(holdings: Sequence[Holding], missing: int, freed: Freed) -> tuple[int, ...]:
    """Tickets to end so that `missing` blocks come free, in the order in which they were picked.

    `freed(gone, ticket)`: blocks that ending `ticket` frees when `gone` have been ended: what its tenant is charged
    before, less what it is charged after. Blocks that others of the tenant share stay.
    """
    picked, beyond = _pick(holdings, missing, freed)
    return _spare(picked, beyond, freed)


def _pick(holdings: Sequence[Holding], missing: int, freed: Freed) -> tuple[tuple[int, ...], int]:
    """The next victim again and again; and what they free beyond what is missing, below 0 where that is less."""
    standings = [_Standing(each) for each in holdings]
    order = [rank for standing in standings if (rank := standing.rank()) is not None]
    by_tenant = {standing.tenant: standing for standing in standings}
    heapq.heapify(order)
    picked: dict[int, None] = {}
    while order and missing > 0:
        tenant = heapq.heappop(order).tenant
        standing = by_tenant[tenant]
        victim = standing.worst().ticket
        blocks = freed(frozenset(picked), victim)
        picked[victim] = None
        missing -= blocks
        standing.end(victim, blocks, frozenset(picked), freed)
        if (rank := standing.rank()) is not None:
            heapq.heappush(order, rank)
    return tuple(picked), -missing


def _spare(picked: tuple[int, ...], beyond: int, freed: Freed) -> tuple[int, ...]:
    """Those that are needed: from the last but one back, whoever frees no more than what is beyond stays."""
    needed = set(picked)
    for ticket in reversed(picked[:-1]):
        blocks = freed(frozenset(needed - {ticket}), ticket)
        if blocks <= beyond:
            beyond -= blocks
            needed.remove(ticket)
    return tuple(ticket for ticket in picked if ticket in needed)


@dataclass(frozen=True, slots=True, order=True)
class _Rank:
    """Where a tenant's next victim stands among those of all tenants: the smallest goes first."""

    priority: int
    below_soft: int  # blocks, negative: the furthest over soft goes first
    sent: bool
    older: int  # the ticket, negative: the youngest goes first
    tenant: str


class _Standing:
    """One tenant while victims are picked: its over-soft work, and how far it is over soft."""

    __slots__ = ("_excess", "_order", "_over", "_room", "tenant")

    def __init__(self, holding: Holding) -> None:
        self.tenant = holding.tenant
        self._excess = sum(each.charge for each in holding.work) - holding.soft
        self._room = int(holding.soft)  # blocks of soft that protected work leaves
        self._over = {each.ticket: each for each in holding.work}
        self._protect(lambda each: each.charge)
        self._order = sorted(self._over.values(), key=lambda each: (-each.priority, not each.sent))

    def rank(self) -> _Rank | None:
        """None where nothing is over-soft."""
        if not self._over:
            return None
        worst = self.worst()
        return _Rank(worst.priority, -self._excess, worst.sent, -worst.ticket, self.tenant)

    def worst(self) -> Candidate:
        """The next victim of this tenant: lowest priority, nothing sent, youngest."""
        while self._order[-1].ticket not in self._over:
            self._order.pop()
        return self._order[-1]

    def end(self, ticket: int, blocks: int, gone: frozenset[int], freed: Freed) -> None:
        """`ticket` has gone with `gone`; behind the oldest over-soft one others may be protected now."""
        self._excess -= blocks
        was_first = next(iter(self._over)) == ticket
        del self._over[ticket]
        if was_first:
            self._protect(lambda each: freed(gone.union(self._over) - {each.ticket}, each.ticket))

    def _protect(self, charge: Callable[[Candidate], int]) -> None:
        """`charge`: of the oldest that is left; alone of all over-soft work it would free just that."""
        for each in tuple(self._over.values()):
            blocks = charge(each)
            if blocks > self._room:
                return
            self._room -= blocks
            del self._over[each.ticket]
