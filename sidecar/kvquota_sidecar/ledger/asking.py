"""What goes into the books and what comes out: the values of their interface."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from kvquota_api.amounts import Blocks, Tokens
from kvquota_sidecar.refusals import Refusal

Growth = Literal["Seen", "Unseen"]  # whether the output shows while it is made: streamed, or only at the end


class LedgerError(Exception):
    """The caller broke the books' rules (a second release, an unknown ticket, no config): a bug, never a tenant's."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request that wants to run.

    `tenant`: "namespace/tenant". `prompts`: estimated tokens of each, at least one. `copies`: outputs for each prompt
    (n, best_of, beams), at least 1. `output_limit`: of each sequence, what the engine will use; None: the client set
    none. `growth`: as long as it is Unseen nobody can be ended for it, so the whole limit is reserved.
    """

    tenant: str
    prompts: tuple[Tokens, ...]
    copies: int
    output_limit: Tokens | None
    growth: Growth = "Unseen"


@dataclass(frozen=True, slots=True)
class Admitted:
    """`ticket` names the request until it is released; `reserved` blocks are charged to its tenant."""

    ticket: int
    reserved: Blocks


Answer = Admitted | Refusal


@dataclass(frozen=True, slots=True)
class Ending:
    """A running request that must be ended now, and what its client is told.

    Its charge is gone already. Who ends it still releases `ticket`, with Cause.ENDED.
    """

    ticket: int
    refusal: Refusal


class Cause(Enum):
    """Why a request is over. Only FINISHED says how long its output is; the others say how long at least."""

    FINISHED = "finished"  # the engine came to the end of its answer
    CLIENT_GONE = "client_gone"
    ENGINE_FAILED = "engine_failed"  # it did not answer, broke off, or refused the request itself
    ENDED = "ended"  # by an Ending
    DRAINED = "drained"  # the pod is leaving


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One reading of the engine's gauges; None is "the engine does not say", never 0.

    `blocks`: the pool with the null block. `block_tokens`: tokens of one block. `used_blocks`: in use, without those
    that are only cached. `started_at`: when the engine started, Unix seconds.
    """

    blocks: Blocks | None = None
    block_tokens: Tokens | None = None
    used_blocks: Blocks | None = None
    running: int | None = None
    waiting: int | None = None
    started_at: float | None = None
