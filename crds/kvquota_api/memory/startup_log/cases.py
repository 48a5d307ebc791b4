"""One comparison: the log's facts beside the plan, and the figures that both have.

Pure values, and what both sides of a comparison ask of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from kvquota_api.memory.cache_plan import CachePlan
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.layers import ModelShape
from kvquota_api.memory.startup_log.facts import LogFacts
from kvquota_api.memory.startup_log.figures import Count, Size

Subject = Literal[
    "blocks",
    "loggedTokens",
    "concurrency",
    "maxModelLen",
    "blockTokens",
    "kvBytes",
    "minBytes",
    "card",
    "weights",
    "activation",
    "nonTorch",
    "graphs",
]


@dataclass(frozen=True, slots=True)
class PlannedMemory:
    """The parts of one card as planned, in bytes, None where the plan does not say.

    `kv`: the budget for the cache, of which the plan takes whole blocks; `graphs`: CUDA graphs; `part`: of the card,
    that the engine may use; `taken`: subjects that the plan has from this very log, which are not compared.
    """

    card: int | None = None
    kv: int | None = None
    weights: int | None = None
    activation: int | None = None
    non_torch: int | None = None
    graphs: int | None = None
    part: Fraction | None = None
    taken: frozenset[Subject] = frozenset()


@dataclass(frozen=True, slots=True)
class Figure:
    """What engine and plan say of one subject; `rounding`: how far apart they may be; `line` of the log."""

    subject: Subject
    engine: Fraction
    plan: Fraction
    rounding: Fraction
    line: int

    @classmethod
    def of_size(cls, subject: Subject, said: Size, planned: int, grain: int = 0) -> Figure:
        """A size; `grain`: bytes of the steps in which the plan takes memory, of which it leaves less than one."""
        rounding = Fraction(said.rounding + max(grain - 1, 0))
        return cls(subject, Fraction(said.bytes), Fraction(planned), rounding, said.line)


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison. `inputs`, `model`: what the plan was made for, None where that is not known."""

    facts: LogFacts
    plan: CachePlan
    inputs: EngineInputs | None
    memory: PlannedMemory
    model: ModelShape | None = None

    @property
    def longest(self) -> Count | None:
        """The longest request for which the engine prints its concurrency."""
        said = [rank.concurrency_length for rank in self.facts.ranks if rank.concurrency_length is not None]
        return min(said, key=lambda each: each.value, default=None)

    @property
    def block_tokens(self) -> Count | None:
        """The tokens of a block that the engine says it uses."""
        notice = self.facts.notice("BlockTokens")
        if notice is not None and notice.value is not None:
            return Count(int(notice.value.value), notice.line)
        return next((rank.block_tokens for rank in self.facts.ranks if rank.block_tokens is not None), None)

    def planned_block(self, engine: int) -> int:
        """The tokens of the plan's block that a line about a block of `engine` tokens is about: groups may differ. With
        decode-context parallelism a block of the plan holds the tokens of all of its ranks, the line those of one."""
        ranks = 1 if self.inputs is None else max(1, self.inputs.decode_context)
        planned = {group.cost.block_tokens // ranks for group in self.plan.groups if group.cost.kind != "State"}
        return engine if engine in planned else min(planned, default=self.plan.block_tokens // ranks)
