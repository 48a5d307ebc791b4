"""What a decision on one request is made from: the request, its tenant, the pool.

Values only; the books gather them, the rules read them. Amounts in blocks unless the name says tokens. They are made
anew for every request, so they are structs, which cost a tenth of a frozen dataclass; none of them can be part of a
cycle, so the collector need not look at them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.memory.worth import Worth
from kvquota_api.pod_config import TenantShare
from kvquota_sidecar.records import LeafValue

Known = Literal["Exactly", "About", "AtLeast"]
Wait = Callable[[int], float]  # an amount -> seconds until that much is expected to be given back


class Demand(LeafValue, frozen=True):
    """What the request asks.

    `prompt`: tokens of its longest prompt. `output_limit`: of each sequence, None where the client set none.
    `full`: blocks of all sequences at their limits. `reserve`: r of docs/accounting.md, what is charged on admission.
    `kind`: whether it generates, or is a list of texts that only goes through the model. `known`: how well the blocks
    are known, as they follow from the prompts.
    """

    prompt: Tokens
    output_limit: Tokens | None
    sequences: int
    full: Blocks
    reserve: Blocks
    kind: Literal["Generate", "Pool"] = "Generate"
    known: Known = "Exactly"


class Holder(LeafValue, frozen=True):
    """The tenant that asks: its share in the config, and how it stands.

    `soft`: in force (scaled, and 0 in Shadow). `held`: C. `pressed`: its running work has passed hard by growth.
    `requests`: how many it has running or waiting for room. `doubt`: blocks of `held` that it may not hold, as nobody
    has counted its prompts yet.
    """

    share: TenantShare
    soft: Blocks
    held: Blocks
    sequences: int
    pressed: bool
    shed_percent: float
    blocks_wait: Wait
    sequences_wait: Wait
    requests: int = 0
    doubt: Blocks = Blocks(0)


class Pool(LeafValue, frozen=True):
    """`name`: of the ModelPool, for messages. `usable`: U. `free`: F, negative where more is held than there is.

    Both over all ranks; `rank_usable` is of one rank, and `rank_free` of the one with the most room. `reserve`: R.
    `claimed`: G, what the other tenants may still claim of their softs; `other_softs`: all of those. `lends_in`:
    seconds until over-soft work is admitted again after an eviction, 0 where it is.
    """

    name: str
    usable: Blocks
    free: int
    rank_usable: Blocks
    rank_free: int
    reserve: Blocks
    claimed: Blocks
    other_softs: Blocks
    worth: Worth
    max_model_len: Tokens
    shadow: bool
    wait: Wait
    lends_in: float = 0.0

    @property
    def kept(self) -> int:
        """Blocks that stay free for the guarantees of others: min(G, R)."""
        return min(self.claimed, self.reserve)


class Case(LeafValue, frozen=True):
    demand: Demand
    holder: Holder
    pool: Pool

    @property
    def missing_of_kept(self) -> int:
        """Blocks that the request would take of what is kept for others; none where it is 0 or less."""
        return self.pool.kept - (self.pool.free - self.demand.reserve)

    def tokens(self, blocks: int) -> int:
        """Blocks as a reader of messages counts them: tokens that they hold."""
        of_tokens, of_blocks = self.pool.worth.rate
        return blocks * of_tokens // of_blocks
