"""What a decision on one request is made from: the request, its tenant, the pool.

Values only; the books gather them, the rules read them. Amounts in blocks unless the name says tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.memory.worth import Worth
from kvquota_api.pod_config import TenantShare

Wait = Callable[[int], float]  # an amount -> seconds until that much is expected to be given back


@dataclass(frozen=True, slots=True)
class Demand:
    """What the request asks.

    `prompt`: tokens of its longest prompt. `output_limit`: of each sequence, None where the client set none.
    `full`: blocks of all sequences at their limits. `reserve`: r of docs/accounting.md, what is charged on admission.
    """

    prompt: Tokens
    output_limit: Tokens | None
    sequences: int
    full: Blocks
    reserve: Blocks


@dataclass(frozen=True, slots=True)
class Holder:
    """The tenant that asks: its share in the config, and how it stands.

    `soft`: in force (scaled, and 0 in Shadow). `pressed`: its running work has passed hard by growth.
    """

    share: TenantShare
    soft: Blocks
    held: Blocks
    sequences: int
    pressed: bool
    shed_percent: float
    blocks_wait: Wait
    sequences_wait: Wait


@dataclass(frozen=True, slots=True)
class Pool:
    """`name`: of the ModelPool, for messages. `usable`: U. `free`: F, negative where more is held than there is.

    `reserve`: R. `claimed`: G, what the other tenants may still claim of their softs; `other_softs`: all of those.
    """

    name: str
    usable: Blocks
    free: int
    reserve: Blocks
    claimed: Blocks
    other_softs: Blocks
    worth: Worth
    max_model_len: Tokens
    shadow: bool
    wait: Wait


@dataclass(frozen=True, slots=True)
class Case:
    demand: Demand
    holder: Holder
    pool: Pool

    @property
    def guaranteed(self) -> bool:
        """Whether the tenant's soft covers the request."""
        return self.holder.held + self.demand.reserve <= self.holder.soft

    def tokens(self, blocks: int) -> int:
        """Blocks as a reader of messages counts them: tokens that they hold."""
        return self.pool.worth.tokens(blocks)
