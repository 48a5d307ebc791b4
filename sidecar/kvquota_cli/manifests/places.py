"""Where something stands in a file, and what was found there.

Decides how a finding is written: `file:line: kind namespace/name: path of the field: sentence`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

FieldPath = tuple[str | int, ...]
Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A line of a file, counted from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Names one object of a namespace."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `object` and `field` are empty where the file itself is the trouble."""

    place: Place
    message: str
    object: str = ""
    field: str = ""
    severity: Severity = "error"

    def __str__(self) -> str:
        parts = [str(self.place), self.severity, self.object, self.field, self.message]
        return ": ".join(part for part in parts if part)


def dotted(path: Sequence[str | int]) -> str:
    """A path as people write it: `spec.tiers[0].kv.soft`, a key with dots in brackets."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif "." in step or not step:
            text += f"[{step!r}]"
        else:
            text += f".{step}"
    return text.removeprefix(".")


def line_of(path: Sequence[str | int], lines: Mapping[FieldPath, int], otherwise: int) -> int:
    """The line of the field, or of the nearest one above it that is there."""
    for length in range(len(path), 0, -1):
        if (line := lines.get(tuple(path[:length]))) is not None:
            return line
    return otherwise
