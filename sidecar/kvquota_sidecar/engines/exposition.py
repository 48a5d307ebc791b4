"""Single values out of the text that an engine's /metrics gives.

Decides which value a name has, whatever the engine's version calls it. Pure.

Invariants:

1. A name that is not there is None, never 0; so is a value that cannot be one: negative, endless, beyond 2^53.
2. Only the lines of the names asked for are looked at: an engine's exposition has thousands.
3. A rank that reports a gauge from several processes counts once, with the largest; ranks are never mixed.
4. Time grows with the length of the text and no faster, whatever stands in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.usage import MAX_BLOCK_TOKENS, MAX_BLOCKS

_LABEL: Final = re.compile(r'(?<![a-zA-Z0-9_])([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_REST: Final = re.compile(r'(?:\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*)\})?[ \t]+([^\s]+)')
LARGEST: Final = 2**53  # above it a float is no exact count

_K = TypeVar("_K")


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Mapping[str, str]
    value: float


Found = Mapping[str, list[Sample]]


def read(text: str, names: Iterable[str]) -> Found:
    """The samples by name; what has no believable value is left out."""
    text = "\n" + text
    found = {name: list(_samples(text, f"\n{name}")) for name in names}
    return {name: samples for name, samples in found.items() if samples}


def _samples(text: str, opening: str) -> Iterator[Sample]:
    at = text.find(opening)
    while at >= 0:
        end = at + len(opening)
        line = _REST.match(text, end)
        value = None if line is None else _number(line[2])
        if line is not None and value is not None:
            yield Sample(dict(_LABEL.findall(line[1] or "")), value)
        at = text.find(opening, end)


def first_of(found: Found, aliases: tuple[str, ...]) -> list[Sample]:
    """The samples of the first alias that is there; empty where none is."""
    return next((found[alias] for alias in aliases if alias in found), [])


def by_label(samples: list[Sample], label: str) -> dict[str, float]:
    """The largest value for each value of the label; samples without it are under the empty name."""
    largest: dict[str, float] = {}
    for sample in samples:
        name = sample.labels.get(label, "")
        largest[name] = max(sample.value, largest.get(name, sample.value))
    return largest


def total(values: Mapping[_K, float]) -> int | None:
    """The sum, whole; None where there is nothing."""
    return round(sum(values.values())) if values else None


def sum_of(found: Found, names: Iterable[str]) -> float | None:
    """Of all samples of all the names; None where none of them is there."""
    values = [sample.value for name in names for sample in found.get(name, ())]
    return sum(values) if values else None


def counted(samples: list[Sample]) -> int | None:
    """The sum of a counter's samples, whole; None where there is none."""
    return round(sum(sample.value for sample in samples)) if samples else None


def rank_of(values: Mapping[str, float], rank: str) -> int | None:
    """The value of one rank, whole; None where it does not say."""
    return round(values[rank]) if rank in values else None


def ranks_in(*gauges: Mapping[str, float]) -> list[str]:
    """The ranks that gauges name, in the order of their numbers; empty where they do not tell several apart."""
    names = {name for gauge in gauges for name in gauge}
    return sorted(names, key=int) if len(names) > 1 and all(map(_is_number, names)) else []


def added(blocks: Iterable[Blocks | None]) -> Blocks | None:
    """The sum; None where there is nothing, or a part of it is not known."""
    known = list(blocks)
    whole = [each for each in known if each is not None]
    return Blocks(sum(whole)) if known and len(whole) == len(known) else None


def of_a_card(blocks: int | None) -> Blocks | None:
    """Blocks of one engine; None where it has none, or more than any card: who says so is not believed."""
    return Blocks(blocks) if blocks and blocks <= MAX_BLOCKS else None


def of_a_block(tokens: int | None) -> Tokens | None:
    """Tokens of one block, as above."""
    return Tokens(tokens) if tokens and tokens <= MAX_BLOCK_TOKENS else None


def _is_number(name: str) -> bool:
    return name.isdecimal() and len(name) < 9 and name == str(int(name))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= LARGEST else None
