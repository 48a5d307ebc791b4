"""The room that a tenant has left: what every answer tells its client, good or refused."""

from __future__ import annotations

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.memory.worth import Worth
from kvquota_api.usage import Rung
from kvquota_sidecar.records import LeafValue


class Room(LeafValue, frozen=True):
    """One tenant on this pod.

    `reserved` is C(t) of docs/accounting.md, `hard` never more than the pool, both in blocks; `worth` says what those
    are in tokens.
    `in_flight` and `max_concurrent` count sequences; `pressure_percent` is of the pool, at least 0.
    """

    reserved: Blocks
    soft: Blocks
    hard: Blocks
    worth: Worth
    in_flight: int
    max_concurrent: int | None
    rung: Rung
    pressure_percent: float

    def tokens(self, amount: Blocks) -> Tokens:
        """What `amount` blocks can hold, in tokens."""
        return self.worth.tokens(amount)
