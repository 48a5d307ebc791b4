"""What one tenant has, may hold and asks for on one pod.

Decides who has a part where not all pods can have one, and what a pod brings into the division of a limit: once counted
in units of memory, once in sequences. Pure.

Invariants:

1. A pod that never ran has room for no more than it may hold already.
2. Less than the tenant's longest request, or than its guarantee on the pod, is of no use there.

It does not know the other pods. A pass asks it of every tenant on every pod, so what is the same on many pods is in
`Terms`.
"""

from __future__ import annotations

import msgspec

from kvquota_api.amounts import Blocks
from kvquota_operator.planning.demand import Demand
from kvquota_operator.planning.exchange import Measure
from kvquota_operator.planning.following import Place
from kvquota_operator.planning.holding import Holding


class Terms(msgspec.Struct, frozen=True):
    """What holds for one tenant on all pods of one plan and one size.

    `measure`: how their plan measures the limit; `longest`: blocks of the tenant's longest request. In units of the
    limit, `room` is U, and `soft` the guarantee on each of them.
    """

    usable: Blocks
    longest: Blocks
    measure: Measure
    room: int
    soft: int


class Stake(msgspec.Struct, frozen=True, gc=False):
    """One tenant on one pod: what it may hold there already, and whether it may get more than that.

    `demand`: what it asks for there, None where nobody knows.
    """

    terms: Terms
    holding: Holding
    grows: bool
    demand: Demand | None

    @property
    def counts(self) -> bool:
        """Whether the pod may have a part of the whole, and adds to it."""
        return self.grows or self.holding.blocks > 0

    @property
    def turn(self) -> tuple[int, bool]:
        """Where not all can have a part: who has one and uses it, who was refused for want of one, who has one."""
        has, demand = self.holding.given_blocks > 0, self.demand
        if has and (demand is None or not demand.is_idle):
            return 0, not self.grows
        refused = demand is not None and demand.is_refused
        return 1 if refused else 2 if has else 3, not self.grows

    def units(self, least: int) -> Place:
        """Its blocks, in units of the limit; fewer than `least` units are of no use on any pod."""
        terms, demand, holding = self.terms, self.demand, self.holding
        units, blocks, part = terms.measure.units, holding.blocks, holding.given_blocks
        held = units(blocks)
        room = terms.room if self.grows else units(min(terms.usable, blocks))
        given = held if part == blocks else units(part)
        least = least if least > terms.soft else terms.soft
        if demand is None:
            return Place(room, held, given, least, None, 0)
        asks = units(demand.asks_blocks(terms.longest)) if demand.refused_blocks else 0
        return Place(room, held, given, least, units(demand.blocks), asks)

    def sequences(self, limit: int) -> Place:
        """Its sequences, of `limit` on all pods."""
        demand, held, given = self.demand, self.holding.sequences, self.holding.given_sequences
        room = limit if self.grows else min(limit, held)
        if demand is None:
            return Place(room, held, given, 1, None, 0)
        asks = demand.asks_sequences() if demand.refused_sequences else 0
        return Place(room, held, given, 1, demand.sequences, asks)
