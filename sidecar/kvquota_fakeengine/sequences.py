"""One sequence of tokens on its way through the engine."""

from dataclasses import dataclass, field
from enum import StrEnum

from kvquota_fakeengine.prefix_chain import BlockName


class Finish(StrEnum):
    """Why a sequence ended; the values are what clients and metrics see."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is asked of the engine for one sequence: at least one prompt token, and `output_tokens` to produce; 0 where
    only the prompt is to be computed, for an embedding or a score."""

    prompt: tuple[int, ...]
    output_tokens: int
    finish: Finish
    salt: str | None
    priority: int


@dataclass(slots=True, eq=False, kw_only=True)
class RunningSequence:
    """The engine's own state of a sequence. `computed` counts tokens whose keys and values are in blocks."""

    key: str
    work: Work
    arrival: int
    tokens: list[int]
    names: list[BlockName] = field(default_factory=list)
    computed: int = 0
    cached_tokens: int | None = None
    untold_preemptions: int = 0
    stalled: bool = False

    @property
    def produced(self) -> int:
        return len(self.tokens) - len(self.work.prompt)

    @property
    def uncomputed(self) -> int:
        return len(self.tokens) - self.computed


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """One token of a sequence's answer; `position` counts from 0. `finish` is set on the last one.

    `token` is None where only the prompt was to be computed.
    """

    key: str
    token: int | None
    position: int
    prompt_tokens: int
    cached_tokens: int
    finish: Finish | None
