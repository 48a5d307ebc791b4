"""The largest single request that an idle pool gives a tenant.

Decides from which size on a request of this tenant is refused for good although its hard would allow it. Pure.

Invariants:

1. A request inside soft is always given where one rank can hold it; more than one rank holds is never given.
2. Over-soft work leaves free what the others may still claim, and stays below the tenant's shed threshold on its rank.

The rule is that of the admission (what can never be), so that the status can say it before a client meets it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from kvquota_api.amounts import Blocks, Hundredths, percent_of
from kvquota_api.pod_config import Ladder


@dataclass(frozen=True, slots=True)
class Priorities:
    """The lowest and the highest priority of the tenants of one pool."""

    lowest: int
    highest: int

    @classmethod
    def of(cls, priorities: Iterable[int]) -> Priorities:
        """The span of these priorities; of none: 0."""
        present = tuple(priorities)
        return cls(min(present, default=0), max(present, default=0))


def shed_threshold(priority: int, pool: Priorities, ladder: Ladder) -> Fraction:
    """The part of the pool from which on over-soft work of this priority is refused: linear between shed and evict."""
    shed, evict = (Fraction(rung.enter_percent, 100) for rung in (ladder.shed, ladder.evict))
    if pool.highest == pool.lowest:
        return shed
    return shed + (evict - shed) * Fraction(priority - pool.lowest, pool.highest - pool.lowest)


def largest_request(
    usable: Blocks, soft: Blocks, other_softs: int, threshold: Fraction, ladder: Ladder, *, ranks: int = 1
) -> Blocks:
    """Blocks of the largest request that an idle pool gives: of `usable` blocks on `ranks` equal ranks, one of which
    runs it; `other_softs` is their sum."""
    of_rank = usable // ranks
    reserve = percent_of(usable, Hundredths(ladder.guarantee_reserve_percent * 100))
    beside_guarantees = usable - min(other_softs, reserve)
    below_threshold = -(-of_rank * threshold.numerator // threshold.denominator) - 1
    return Blocks(min(of_rank, max(soft, min(beside_guarantees, below_threshold))))
