"""What one tenant has, may hold and asks for on one pod.

Decides who has a part where not all pods can have one, and what a pod brings into the division of a limit: once counted
in units of memory, once in sequences. Pure.

Invariants:

1. A pod that never ran has room for no more than it may hold already.
2. Less than the tenant's longest request, or than its guarantee on the pod, is of no use there.

It does not know the other pods.
"""

from __future__ import annotations

from typing import NamedTuple

from kvquota_api.amounts import Blocks
from kvquota_operator.planning.demand import Demand
from kvquota_operator.planning.exchange import Measure
from kvquota_operator.planning.following import Place
from kvquota_operator.planning.holding import Holding


class Stake(NamedTuple):
    """One tenant on one pod: what it may hold there already, and whether it may get more than that.

    `demand`: what it asks for there, None where nobody knows. `soft`: its guarantee there. `measure`: how the pod's
    plan measures the limit; `longest`: blocks of its longest request.
    """

    usable: Blocks
    holding: Holding
    grows: bool
    demand: Demand | None
    soft: Blocks
    longest: Blocks
    measure: Measure

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
        units, demand, holding = self.measure.units, self.demand, self.holding
        return Place(
            room=units(self._room(self.usable, holding.blocks)),
            held=units(holding.blocks),
            given=units(holding.given_blocks),
            least=max(least, units(self.soft)),
            uses=None if demand is None else units(demand.blocks),
            asks=0 if demand is None else units(demand.asks_blocks(self.longest)),
        )

    def sequences(self, limit: int) -> Place:
        demand, holding = self.demand, self.holding
        return Place(
            room=self._room(limit, holding.sequences),
            held=holding.sequences,
            given=holding.given_sequences,
            least=1,
            uses=None if demand is None else demand.sequences,
            asks=0 if demand is None else demand.asks_sequences(),
        )

    def _room(self, most: int, held: int) -> int:
        return most if self.grows else min(most, held)
