"""Where an engine's own figures differ from a plan of it, by how much, and why if the log tells.

Decides which figures are compared and how far two may be apart before they differ. Pure. Invariants:

1. Only what both log and plan say is compared, each subject at most once.
2. Two figures are within rounding if what the log cut off explains all of the difference. Where the plan was made from
   the log's own rounded budget, the blocks that the rounding is worth count too.
   A figure that the plan has from this log is shown and never agrees.
3. Of several processes the one that decides counts: with the least cache or card, with the most of every other part.

It does not know why two figures differ: that is `causes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal

from kvquota_api.memory.cache_plan import CachePlan
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.layers import ModelShape
from kvquota_api.memory.startup_log.cases import Case, Figure, PlannedMemory, Subject
from kvquota_api.memory.startup_log.causes import cause_of
from kvquota_api.memory.startup_log.facts import LogFacts, RankFacts
from kvquota_api.memory.startup_log.figures import Count, Size
from kvquota_api.memory.startup_log.stating import card_memory, kv_memory

Verdict = Literal["Equal", "WithinRounding", "Different", "TakenFromLog"]

_ESTIMATED: Final = ("weights", "activation", "nonTorch", "graphs")  # docs/memory.md: derived, and checked on few logs


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of the log against the plan's.

    `engine`, `plan`: blocks, tokens, requests or bytes on one GPU, by `subject`; `rounding`: how far apart they may be;
    `line` of the log; `cause`: a sentence, None where the log does not tell or nothing differs; `taken`: the plan has
    it from this log.
    """

    subject: Subject
    engine: Fraction
    plan: Fraction
    rounding: Fraction
    line: int
    cause: str | None = None
    taken: bool = False

    @property
    def delta(self) -> Fraction:
        """Engine minus plan."""
        return self.engine - self.plan

    @property
    def relative(self) -> Fraction | None:
        """Engine minus plan, as a part of the plan; None where the plan has 0."""
        return self.delta / self.plan if self.plan else None

    @property
    def estimated(self) -> bool:
        """Whether the plan has no rule for it but an estimate, so that a difference is no wonder."""
        return self.subject in _ESTIMATED

    @property
    def verdict(self) -> Verdict:
        """Equal, apart by less than the log's rounding, different, or not to be compared."""
        if self.taken:
            return "TakenFromLog"
        if not self.delta:
            return "Equal"
        return "WithinRounding" if abs(self.delta) <= self.rounding else "Different"


def compare(
    facts: LogFacts,
    plan: CachePlan,
    inputs: EngineInputs | None = None,
    memory: PlannedMemory | None = None,
    model: ModelShape | None = None,
) -> tuple[Difference, ...]:
    """All figures that log and plan have in common, equal ones too. `inputs`, `model`: what the plan was made for;
    `memory`: the parts of its card. Without them fewer figures are compared and fewer causes found."""
    case = Case(facts, plan, inputs, memory or PlannedMemory(), model)
    figures = (*_capacity(case), *_lengths(case), *_cache(case), *_parts(case))
    return tuple(_difference(case, figure, figures) for figure in figures)


def _difference(case: Case, figure: Figure, figures: tuple[Figure, ...]) -> Difference:
    taken = figure.subject in case.memory.taken
    found = Difference(figure.subject, figure.engine, figure.plan, figure.rounding, figure.line, taken=taken)
    return replace(found, cause=cause_of(case, figure, figures)) if found.verdict == "Different" else found


def _capacity(case: Case) -> Iterator[Figure]:
    """Blocks, printed tokens, concurrency."""
    plan, ranks, slack = case.plan, case.facts.ranks, _slack_blocks(case)
    share = slack / plan.blocks if plan.blocks else Fraction(0)
    blocks = min((rank.blocks for rank in ranks if rank.blocks is not None), key=_value, default=None)
    if blocks is not None:
        yield Figure("blocks", Fraction(blocks.value), Fraction(plan.blocks), slack, blocks.line)
    tokens = _tokens(case.facts)
    if tokens is not None and plan.logged_tokens is not None:
        rounding = share * plan.logged_tokens
        yield Figure("loggedTokens", Fraction(tokens.value), Fraction(plan.logged_tokens), rounding, tokens.line)
    printed = [rank.concurrency for rank in ranks if rank.concurrency is not None]
    for least in sorted(printed, key=lambda each: each.value)[:1]:
        rounding = least.rounding + share * plan.concurrency
        yield Figure("concurrency", least.value, plan.concurrency, rounding, least.line)


def _tokens(facts: LogFacts) -> Count | None:
    """The least size that a process prints; where none does, that of the cache that keeps the most."""
    said = [rank.tokens for rank in facts.ranks if rank.tokens is not None]
    caches = [Count(cache.tokens, cache.size.line) for cache in facts.caches if cache.tokens is not None]
    return min(said, key=_value, default=None) or max(caches, key=_value, default=None)


def _value(count: Count) -> int:
    return count.value


def _slack_blocks(case: Case) -> Fraction:
    """Blocks that the plan may have more or less because the budget that it was made from is rounded. What TensorRT-LLM
    prints is its result, which the plan rounds up to whole blocks a second time."""
    budget, plan = kv_memory(case.facts), case.plan
    if budget is None or not budget.rounding or not plan.bytes_per_block:
        return Fraction(0)
    rounded_up = plan.bytes_per_block if case.facts.engine == "TensorRTLLM" else 0
    above = plan.kv_bytes - budget.bytes
    if not -budget.rounding - plan.bytes_per_block < above <= budget.rounding + rounded_up:
        return Fraction(0)
    return Fraction(budget.rounding // plan.bytes_per_block + 1)


def _lengths(case: Case) -> Iterator[Figure]:
    """Tokens of the longest request, and of a block."""
    longest, block = case.longest, case.block_tokens
    if longest is not None:
        planned = Fraction(case.plan.max_model_len)
        yield Figure("maxModelLen", Fraction(longest.value), planned, Fraction(0), longest.line)
    if block is not None:
        planned = Fraction(case.planned_block(block.value))
        yield Figure("blockTokens", Fraction(block.value), planned, Fraction(0), block.line)


def _cache(case: Case) -> Iterator[Figure]:
    """Bytes of the cache; bytes that one longest request needs, which only a refusal prints."""
    budget, plan = kv_memory(case.facts), case.plan
    if budget is not None:
        yield Figure.of_size("kvBytes", budget, *_planned_cache(case))
    for refusal in case.facts.refusals:
        if refusal.needed is not None and refusal.length == plan.max_model_len:
            yield Figure.of_size("minBytes", refusal.needed, plan.min_bytes)
            return


def _planned_cache(case: Case) -> tuple[int, int]:
    """Bytes that the plan has for the cache, and of one step in which it takes them: llama.cpp takes what it needs,
    whatever there is, the others what they are given."""
    if case.facts.engine == "LlamaCpp":
        return case.plan.kv_bytes, 0
    return (case.plan.kv_bytes, case.plan.bytes_per_block) if case.memory.kv is None else (case.memory.kv, 0)


def _parts(case: Case) -> Iterator[Figure]:
    """The smallest card, as the plan is of it, and its parts beside the cache."""
    memory, ranks, card = case.memory, case.facts.ranks, card_memory(case.facts)
    if memory.card is not None and card is not None:
        yield Figure.of_size("card", card, memory.card)
    said: tuple[tuple[Subject, int | None, list[Size | None]], ...] = (
        ("weights", memory.weights, [rank.weights for rank in ranks]),
        ("activation", memory.activation, [rank.activation for rank in ranks]),
        ("nonTorch", memory.non_torch, [rank.non_torch for rank in ranks]),
        ("graphs", memory.graphs, [_graphs(rank) for rank in ranks]),
    )
    for subject, planned, sizes in said:
        most = max((size for size in sizes if size is not None), key=lambda size: size.bytes, default=None)
        if planned is not None and most is not None:
            yield Figure.of_size(subject, most, planned)


def _graphs(rank: RankFacts) -> Size | None:
    """What is set aside for CUDA graphs is taken from the cache; where nothing is, what they were seen to take."""
    return rank.estimated_graphs or rank.graphs
