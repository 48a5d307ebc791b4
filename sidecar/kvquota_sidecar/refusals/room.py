"""The room that a tenant has left: what every answer tells its client, good or refused."""

from __future__ import annotations

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.usage import Rung
from kvquota_sidecar.records import LeafValue


class Allowance(LeafValue, frozen=True):
    """What a tenant may have on this pod: the same for all its answers until there is another config, or another pool.

    `hard` is never more than the pool, both amounts in blocks; `rate`: so many tokens are worth so many blocks, as in
    `Worth`; `hard_tokens`: what hard is. `max_concurrent` counts sequences. `policy` and `amounts`: header lines that
    tell of it.
    """

    soft: Blocks
    hard: Blocks
    rate: tuple[int, int]
    max_concurrent: int | None
    hard_tokens: Tokens
    policy: str
    amounts: str


class Room(LeafValue, frozen=True):
    """One tenant on this pod.

    `reserved` is C(t) of docs/accounting.md, in blocks. `in_flight` counts sequences; `pressure_percent` is of the
    pool, at least 0.
    """

    allowance: Allowance
    reserved: Blocks
    in_flight: int
    rung: Rung
    pressure_percent: float

    @property
    def soft(self) -> Blocks:
        return self.allowance.soft

    @property
    def hard(self) -> Blocks:
        return self.allowance.hard

    @property
    def max_concurrent(self) -> int | None:
        return self.allowance.max_concurrent

    def tokens(self, amount: Blocks) -> Tokens:
        """What `amount` blocks can hold, in tokens."""
        of_tokens, of_blocks = self.allowance.rate
        return Tokens(amount * of_tokens // of_blocks)
