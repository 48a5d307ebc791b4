"""What a start-up log says. Pure values, the same for all engines.

Invariants:

1. What the log does not say is None or missing, never a default.
2. Every figure keeps the line that it came from.
3. Where a process says the same thing again, the later line counts; where a container started again and again into one
   log, only the last start counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvquota_api.memory.inputs import EngineName
from kvquota_api.memory.startup_log.figures import Count, Ratio, Size, Word

NoticeKind = Literal[
    "BlockTokens",  # the engine changed the tokens of a block; `value` is the new number
    "PaddingLayers",  # layers allocated that nothing uses; `value` is their number
    "StatePadding",  # the page of recurrent state grew; `value` is the percentage
    "PackedLatent",  # latents are stored in 656 bytes (fp8_ds_mla)
    "HybridDisabled",  # sliding and chunked layers keep every token
    "BlocksOverridden",  # the number of blocks is the user's; `value` is the number
    "LengthReduced",  # the longest request was cut to what fits; `value` is the new length
]
RefusalKind = Literal[
    "LengthAboveCapacity",  # `length` tokens asked for, `capacity` fit
    "LengthAboveMemory",  # `needed` bytes for `length`, `available` are there, `estimated_length` would fit
    "NoMemoryForCache",  # nothing is left after weights and activations
    "StatesExhausted",  # `sequences` at once, `capacity` blocks for their states
    "CardTaken",  # `available` bytes are free at start, `needed` were asked for
]


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What one process, or for llama.cpp one device, says. Sizes are of one GPU.

    `label`: as the log names it, None where it names none. `total`, `free`: of the card, before loading; `requested`:
    what the engine may use of it, `memory_fraction` the fraction; `weights`, `activation`, `non_torch`: what is in use
    beside the cache; `graphs`, `estimated_graphs`: CUDA graphs as captured, as set aside; `compute`: buffers of a step;
    `available_kv`: what is left for the cache, may be negative; `allocated_kv`: what the cache takes; `free_after`: the
    rest. `blocks`, `host_blocks`: of the pool on the GPU, in host memory; `block_tokens`; `tokens`: the printed
    size; `concurrency`: requests of `concurrency_length` tokens at once.
    """

    label: str | None
    total: Size | None = None
    free: Size | None = None
    requested: Size | None = None
    memory_fraction: Ratio | None = None
    weights: Size | None = None
    activation: Size | None = None
    non_torch: Size | None = None
    graphs: Size | None = None
    estimated_graphs: Size | None = None
    available_kv: Size | None = None
    allocated_kv: Size | None = None
    compute: Size | None = None
    free_after: Size | None = None
    blocks: Count | None = None
    host_blocks: Count | None = None
    block_tokens: Count | None = None
    tokens: Count | None = None
    concurrency: Ratio | None = None
    concurrency_length: Count | None = None


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """One cache that was allocated: `rank` that has it, `bytes` on it, `tokens` (cells) and `layers` that it is for,
    `sequences`, and the types of keys and values."""

    rank: str | None
    size: Size
    tokens: int | None = None
    layers: int | None = None
    sequences: int | None = None
    key_type: str | None = None
    value_type: str | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """One flag or property as the log prints it: `name` is the engine's own."""

    name: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the engine decided by itself, in the process `rank`."""

    kind: NoticeKind
    line: int
    value: Ratio | None = None
    rank: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the engine did not start: one of RefusalKind, with the figures that it printed."""

    kind: RefusalKind
    line: int
    length: int | None = None
    capacity: int | None = None
    sequences: int | None = None
    estimated_length: int | None = None
    needed: Size | None = None
    available: Size | None = None


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """An allocation that failed.

    `tried`: what was asked for; `gpu`: its number; `capacity`, `free`: of the card; `in_use`: by the process with the
    number `in_use_by`, None for the failing one; `allocated`: by live tensors; `reserved_idle`: held by the allocator
    and not by tensors; `reserved_total`: both together.
    """

    line: int
    rank: str | None
    tried: Size
    gpu: int | None = None
    capacity: Size | None = None
    free: Size | None = None
    in_use: Size | None = None
    in_use_by: int | None = None
    allocated: Size | None = None
    reserved_idle: Size | None = None
    reserved_total: Size | None = None


@dataclass(frozen=True, slots=True)
class LogFacts:
    """A whole log. `starts`: how often an engine started in it, at least 1; the rest is of the last start.

    `device`: the word before "KV cache size"; `ranks`: in the order in which they first speak.
    """

    engine: EngineName | None
    version: Word | None
    starts: int
    device: Word | None
    ranks: tuple[RankFacts, ...]
    caches: tuple[CacheFacts, ...]
    settings: tuple[Setting, ...]
    notices: tuple[Notice, ...]
    refusals: tuple[Refusal, ...]
    out_of_memory: tuple[OutOfMemory, ...]

    def setting(self, *names: str) -> Setting | None:
        """The last setting with the first of the names that the log has."""
        for name in names:
            found = [each for each in self.settings if each.name == name]
            if found:
                return found[-1]
        return None

    def notice(self, kind: NoticeKind) -> Notice | None:
        """The last notice of that kind."""
        return next((each for each in reversed(self.notices) if each.kind == kind), None)
