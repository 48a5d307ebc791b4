"""Single values out of the text that an engine's /metrics gives.

Decides which value a name has, whatever the engine's version calls it. Pure.

Invariants:

1. A name that is not there is None, never 0.
2. Only the lines of the names asked for are read: an engine's exposition has thousands.
3. One engine that reports a gauge from several processes counts once (the largest); several engines add up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ENGINE: Final = "engine"  # the label that vLLM numbers its engines with


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Mapping[str, str]
    value: float


class Exposition:
    """The samples of a fixed set of names."""

    def __init__(self, names: frozenset[str]) -> None:
        alternatives = "|".join(re.escape(name) for name in sorted(names))
        self._line = re.compile(rf"^({alternatives})(?:\{{(.*)\}})?[ \t]+(\S+)", re.MULTILINE)

    def read(self, text: str) -> dict[str, list[Sample]]:
        """The samples by name; a value that is no number is left out."""
        found: dict[str, list[Sample]] = {}
        for name, labels, value in self._line.findall(text):
            number = _number(value)
            if number is not None:
                found.setdefault(name, []).append(Sample(dict(_LABEL.findall(labels)), number))
        return found


def first_of(found: Mapping[str, list[Sample]], aliases: tuple[str, ...]) -> list[Sample]:
    """The samples of the first alias that is there; empty where none is."""
    return next((found[alias] for alias in aliases if alias in found), [])


def by_engine(samples: list[Sample]) -> dict[str, float]:
    """The largest value of each engine."""
    largest: dict[str, float] = {}
    for sample in samples:
        engine = sample.labels.get(_ENGINE, "")
        largest[engine] = max(sample.value, largest.get(engine, sample.value))
    return largest


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
