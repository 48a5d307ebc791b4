"""A plan as a person reads it: the card as a bar, the cache, the capacity, what was assumed, the ways out.

Decides the lines. Pure.

Invariants:

1. No line is wider than the columns given, but for a single word that is.
2. Whatever colour says is said by the characters too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from kvquota_api.amounts import format_bytes
from kvquota_api.memory.advice import Advice
from kvquota_api.memory.cache_plan import CachePlan
from kvquota_api.memory.capacity import Capacity
from kvquota_api.memory.partition import Partition
from kvquota_api.memory.planning import CardPlan
from kvquota_cli.planning.bar import end_of_card, widths
from kvquota_cli.planning.flags import ENGINES
from kvquota_cli.planning.report import Report
from kvquota_cli.planning.sizes import short_length
from kvquota_cli.wrapping import wrapped

MAX_BAR: Final = 100  # columns: a wider bar shows no more
_NAMES: Final = {name: option for option, name in ENGINES.items()}


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a line and its colour, as rich names it; "" for none."""

    text: str
    colour: str = ""


Line = tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One character for each part of the card, in its order."""

    weights: str
    activation: str
    kv: str
    other: str
    margin: str
    free: str
    end: str


BLOCKS: Final = Glyphs("█", "▓", "▒", "░", "·", " ", "▲")
LETTERS: Final = Glyphs("W", "A", "K", "o", ".", " ", "^")  # where the output cannot show the blocks


@dataclass(frozen=True, slots=True)
class _Part:
    label: str
    size: int
    glyph: str
    colour: str


def drawn(report: Report, glyphs: Glyphs, columns: int) -> tuple[Line, ...]:
    """The whole picture, at most `columns` wide."""
    plan = report.plan
    blocks = (
        _text(_headline(report.name, plan), columns),
        _card(plan.partition, glyphs, columns),
        _problem(plan, columns),
        _cache(plan, columns),
        _capacity(report.capacity, plan, columns),
        _listed("Warnings:", report.warnings, columns),
        _advice(plan, report.advice, columns),
        _listed("Assumed, since it was not given:", plan.assumptions, columns),
    )
    lines: list[Line] = []
    for block in blocks:
        found = tuple(block)
        lines.extend(((), *found) if lines and found else found)
    return tuple(lines)


def _text(text: str, columns: int, colour: str = "") -> Iterator[Line]:
    for line in wrapped(text, columns):
        yield (Segment(line, colour),)


def _headline(name: str, plan: CardPlan) -> str:
    inputs, card = plan.inputs, plan.request.card
    gpus = inputs.tensor * inputs.pipeline * inputs.data
    spread = ", ".join(
        f"{label} {number}"
        for label, number in (
            ("tp", inputs.tensor),
            ("pp", inputs.pipeline),
            ("dp", inputs.data),
            ("dcp", inputs.decode_context),
        )
        if number > 1
    )
    engine = " ".join(part for part in (_NAMES[inputs.engine], inputs.version, f"({inputs.platform})") if part)
    cards = f"{gpus} GPU{'s' if gpus > 1 else ''}{f' ({spread})' if spread else ''}"
    size = "" if card is None else f" of {format_bytes(card.memory)}"
    return f"{name} ({plan.model.architecture}) on {engine}, {cards}{size}"


def _card(parts: Partition | None, glyphs: Glyphs, columns: int) -> Iterator[Line]:
    if parts is None:
        return
    shown = _parts(parts, glyphs)
    bar = min(columns, MAX_BAR)
    characters = widths([part.size for part in shown], bar)
    yield tuple(
        Segment(part.glyph * width, part.colour) for part, width in zip(shown, characters, strict=True) if width
    )
    end = end_of_card(parts.card, parts.total, bar)
    if end is not None:
        yield (Segment(_mark(end, f"the card ends here: {format_bytes(parts.card)}", glyphs.end, bar), "red"),)
    label, size = max(len(part.label) for part in shown), max(len(format_bytes(part.size)) for part in shown)
    for part in shown:
        text = f" {part.label:<{label}}  {format_bytes(part.size):>{size}}  {_percent(part.size, parts.card):>4}"
        yield (Segment(part.glyph, part.colour), Segment(text))


def _mark(end: int, text: str, glyph: str, columns: int) -> str:
    """The text beside the place where the card ends."""
    place = min(end, columns - 1)
    if place + len(text) + 2 <= columns:
        return f"{' ' * place}{glyph} {text}"
    return f"{text:>{max(0, place - 1)}} {glyph}"


def _parts(parts: Partition, glyphs: Glyphs) -> tuple[_Part, ...]:
    shown = (
        _Part("weights", parts.weights, glyphs.weights, "blue"),
        _Part("activation", parts.activation, glyphs.activation, "magenta"),
        _Part("KV cache", parts.kv_pool, glyphs.kv, "green"),
        _Part("other", parts.other, glyphs.other, "yellow"),
        _Part("margin", parts.safety_margin, glyphs.margin, "bright_black"),
        _Part("free", max(0, parts.free), glyphs.free, ""),
    )
    return tuple(part for part in shown if part.size or part.label == "KV cache")


def _percent(size: int, card: int) -> str:
    percent = size * 100 / max(1, card)
    return "<1 %" if 0 < percent < 1 else f"{percent:.0f} %"


def _problem(plan: CardPlan, columns: int) -> Iterator[Line]:
    if plan.problem is not None:
        yield from _text(f"Does not fit: {plan.problem}", columns, "red")


def _cache(plan: CardPlan, columns: int) -> Iterator[Line]:
    cache = plan.cache
    if cache is None:
        return
    if not cache.blocks:
        yield from _text(f"KV cache: no block of {format_bytes(cache.bytes_per_block)} fits", columns)
        return
    each = f"of {cache.block_tokens:,} tokens, {format_bytes(cache.bytes_per_block)} each on one GPU"
    yield from _text(f"KV cache: {cache.blocks:,} blocks {each}, {format_bytes(cache.kv_bytes)} together", columns)
    yield from _text(
        f"holds {cache.tokens:,} tokens of requests of {cache.max_model_len:,} tokens (max-model-len):"
        f" {float(cache.concurrency):.2f} of them; {cache.bytes_per_token:,} B per token",
        columns,
    )
    if cache.logged_tokens is not None:
        yield from _text(f"the engine logs a size of {cache.logged_tokens:,} tokens", columns)
    if len(cache.groups) > 1:
        yield from _groups(cache, columns)


def _groups(cache: CachePlan, columns: int) -> Iterator[Line]:
    for (kind, cost), alike in groupby(cache.groups, key=lambda group: (group.kind, group.cost)):
        layers = [group.layers for group in alike]
        groups = "" if len(layers) == 1 else f" in {len(layers)} groups"
        window = f", window {cost.window_tokens:,}" if cost.window_tokens else ""
        fixed = f", {cost.fixed_blocks} blocks each" if cost.kind == "State" else ""
        counted = f"{sum(layers)} layer{'s' if sum(layers) > 1 else ''}{groups}"
        yield from _text(f"  {kind}: {counted}, {cost.block_tokens:,} tokens in a block{window}{fixed}", columns)


def _capacity(capacity: Sequence[Capacity], plan: CardPlan, columns: int) -> Iterator[Line]:
    if plan.cache is None or not plan.cache.blocks or not capacity:
        return
    longest = plan.cache.max_model_len
    sessions = [
        f"{short_length(line.context)}: {line.requests:,}"
        + (" session" if line.requests == 1 else " sessions") * (index == 0)
        + (" (longer than max-model-len)" if line.context > longest else "")
        for index, line in enumerate(capacity)
    ]
    copies = f" in each of {plan.inputs.data} copies" if plan.inputs.data > 1 else ""
    yield from _text(f"Requests that fit at the same time{copies}, by length: {', '.join(sessions)}", columns)


def _advice(plan: CardPlan, advice: Sequence[Advice], columns: int) -> Iterator[Line]:
    title = "Advice:" if plan.problem is None else "Ways out, in this order:"
    if advice:
        yield (Segment(title, "bold"),)
        for number, each in enumerate(advice, start=1):
            yield from _text(f"{number:>2}.  {each.message}", columns)
    elif plan.problem is not None:
        yield from _text("No other type, context or number of GPUs that is known makes it fit: a larger card", columns)


def _listed(title: str, sentences: Sequence[str], columns: int) -> Iterator[Line]:
    if sentences:
        yield (Segment(title, "bold"),)
    for sentence in sentences:
        yield from _text(f"  -  {sentence}", columns)
