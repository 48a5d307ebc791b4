"""What goes into the books and what comes out: the values of their interface.

Those that are made for every request are structs, which cost a tenth of a frozen dataclass; none of them can be part
of a cycle, so the collector need not look at them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from kvquota_api.amounts import Blocks, Tokens
from kvquota_sidecar.records import LeafValue
from kvquota_sidecar.refusals import Refusal

Kind = Literal["Generate", "Pool"]
Growth = Literal["Seen", "Unseen"]  # whether the output shows while it is made: streamed, or only at the end


class LedgerError(Exception):
    """The caller broke the books' rules (a second release, an unknown ticket, no config): a bug, never a tenant's."""


class AskedPrompt(LeafValue, frozen=True):
    """One prompt, as far as it is known before the engine reads it.

    `tokens`: the estimate. `most`: the upper bound, equal to it where it is exact. `chain`: one hash for each whole
    CHUNK_BYTES of the prompt, over everything up to its end; () where nothing can be shared. `size`: bytes that
    `tokens` stand for. `guessed`: it counts as exact, as nobody could say its tokens in time.
    """

    tokens: Tokens
    most: Tokens
    chain: tuple[int, ...] = ()
    size: int = 0
    guessed: bool = False


class Ask(LeafValue, frozen=True):
    """One request that wants to run.

    `tenant`: "namespace/tenant". `prompts`: at least one. `copies`: outputs for each prompt (n, best_of, beams), at
    least 1. `output_limit`: of each sequence, what the engine will use; None: the client set none. `growth`: as long as
    it is Unseen nobody can be ended for it, so the whole limit is reserved. `kind`: Pool makes no output (embeddings,
    scores), and its prompts are done batch by batch.
    `final`: the doubt in what the tenant runs has had its time, so the answer is not Close for it once more.
    """

    tenant: str
    prompts: tuple[AskedPrompt, ...]
    copies: int
    output_limit: Tokens | None
    growth: Growth = "Unseen"
    kind: Kind = "Generate"
    final: bool = False


class Admitted(LeafValue, frozen=True):
    """`ticket` names the request until it is released; `reserved` blocks are charged to its tenant.

    `rank`: the data-parallel rank that has to run it; None where the engine has one, or chooses by itself. `protected`:
    its tenant's soft covers it. `is_doubtful`: it may hold more, as its prompts are known by estimate; `count`: these
    are to be counted now, while it runs (`Books.count`). `limit`: of each sequence, to be set in the request, as its
    client set none and the engine would go on to the model's context; None: nothing is to be set.
    """

    ticket: int
    reserved: Blocks
    rank: int | None = None
    protected: bool = False
    is_doubtful: bool = False
    count: bool = False
    limit: Tokens | None = None


class Waiting(LeafValue, frozen=True):
    """The request is guaranteed and there is no room yet: a Turn says later what becomes of `ticket`.

    `is_doubtful` and `count` as in Admitted.
    """

    ticket: int
    is_doubtful: bool = False
    count: bool = False


class Close(LeafValue, frozen=True):
    """A size decides, and is known too roughly. Nothing was taken or counted; ask again.

    Where the prompts are not exact, it is theirs: they neither fit at their upper bounds, nor would they be refused
    whatever they hold; ask with exact ones. Where they are, it is that of the tenant's other requests, which were
    admitted by estimates: ask when these were counted, for the last time with `final`.
    """


Answer = Admitted | Waiting | Close | Refusal


class Ending(LeafValue, frozen=True):
    """A request that must not go on, and what its client is told. Its charge is gone already."""

    ticket: int
    refusal: Refusal


class Turn(LeafValue, frozen=True):
    """What is to be done now; each ticket stands in it once.

    `admitted`: of those that waited. `missed`: those that waited and get no room in time; they are out of the books.
    `endings`: running requests to end; who ends one still releases its ticket, with Cause.ENDED.
    """

    admitted: tuple[Admitted, ...] = ()
    missed: tuple[Ending, ...] = ()
    endings: tuple[Ending, ...] = ()


class Cause(Enum):
    """Why a request is over. Only FINISHED says how long its output is; the others say how long at least."""

    FINISHED = "finished"  # the engine came to the end of its answer
    CLIENT_GONE = "client_gone"
    ENGINE_FAILED = "engine_failed"  # it did not answer, broke off, or refused the request itself
    ENDED = "ended"  # by an Ending
    DRAINED = "drained"  # the pod is leaving


@dataclass(frozen=True, slots=True)
class RankSample:
    """What the engine says of one data-parallel rank; `rank` is the number that a request names it by."""

    rank: int
    used_blocks: Blocks | None = None
    running: int | None = None
    waiting: int | None = None


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One reading of the engine's gauges; None is "the engine does not say", never 0.

    `blocks`: the pool of one rank with its null block, the smallest where ranks differ. `block_tokens`: tokens of one
    block. `used_blocks`: in use, without those that are only cached; like `running` and `waiting` over all ranks
    together. `preemptions`: how often a running request lost its blocks since the engine started. `started_at`: names
    one life of the engine, in Unix seconds: its start, or where it does not say, when it was first seen. `ranks`: by
    number, where there are several and the engine tells them apart. `finished`: sequences that it answered to the end,
    `prompt_tokens`: that it looked up in its prefix cache, `cached_tokens`: that it found there, all since it started.
    """

    blocks: Blocks | None = None
    block_tokens: Tokens | None = None
    used_blocks: Blocks | None = None
    running: int | None = None
    waiting: int | None = None
    started_at: float | None = None
    ranks: tuple[RankSample, ...] = ()
    preemptions: int | None = None
    finished: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def present(self) -> int | None:
        """Sequences that it has, running or waiting; None where it does not say what it runs."""
        return None if self.running is None else self.running + (self.waiting or 0)
