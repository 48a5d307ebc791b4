"""Figures as engines print them: what was printed, how far it was rounded, and on which line.

Pure. Invariants:

1. GiB and GB, MiB and MB, KiB and KB are the same: every engine that prints "GB" divides by powers of 1024
   (docs/memory.md).
2. A figure never claims to be more exact than it was printed. Two decimals are the least rounding, however many are
   printed: "13.1 GiB" is what is left of 13.10.

It does not know what a figure is about: that is the engine's rules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

COUNT: Final = r"([0-9]{1,18}(?:,[0-9]{3}){0,6})"  # bounded: no figure in a log is longer
NUMBER: Final = r"(-?[0-9]{1,18}(?:,[0-9]{3}){0,6}(?:\.[0-9]{1,12})?)"
SIZE: Final = NUMBER + r"\s{0,4}([KkMGT]i?B|bytes|B)\b"
END: Final = r"(?!\w)(?!\r?\n[0-9]{1,24}(?![0-9.\-]))"  # no digit follows, also not on the next line of a cut message

_LEAST_DECIMALS: Final = 2  # engines round to two decimals and some then drop the zeros at the end
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}  # bytes, by the first letter


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes, at most `rounding` bytes away from what the engine meant, printed on `line` (from 1)."""

    bytes: int
    rounding: int
    line: int


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number, printed on `line` (from 1)."""

    value: int
    line: int


@dataclass(frozen=True, slots=True)
class Ratio:
    """A number with decimals, at most `rounding` away from what the engine meant, printed on `line` (from 1)."""

    value: Fraction
    rounding: Fraction
    line: int


@dataclass(frozen=True, slots=True)
class Word:
    """A name, printed on `line` (from 1)."""

    value: str
    line: int


def size(number: str, unit: str, line: int) -> Size:
    """The size of a number that matches NUMBER and a unit that matches SIZE."""
    factor = _unit_bytes(unit)
    printed = Fraction(number.replace(",", "")) * factor
    return Size(round(printed), math.ceil(_rounding(number) * factor) if factor > 1 else 0, line)


def count(digits: str, line: int) -> Count:
    """The count of digits that match COUNT."""
    return Count(int(digits.replace(",", "")), line)


def ratio(number: str, line: int) -> Ratio:
    """The ratio of a number that matches NUMBER."""
    return Ratio(Fraction(number.replace(",", "")), _rounding(number), line)


def _unit_bytes(unit: str) -> int:
    letter = unit[0].upper() if unit not in ("bytes", "B") else ""
    return _UNITS[letter]


def _rounding(number: str) -> Fraction:
    """Half of the last decimal; a whole unit where none is printed, since such figures are cut rather than rounded."""
    _, point, decimals = number.partition(".")
    if not point:
        return Fraction(1)
    return Fraction(1, 2 * 10 ** max(_LEAST_DECIMALS, len(decimals)))
