"""Units of memory and the arithmetic on them.

Decides how amounts are written, read and added. Pure.

Invariants:

1. A sum never passes UNLIMITED and a difference never passes 0 (saturating); UNLIMITED plus or minus anything is
   UNLIMITED.
2. A quantity is read exactly as Kubernetes reads it, and a fraction of a byte is rounded up, as there; what is more
   than 2^63-1 bytes is UNLIMITED, where Kubernetes gives that or a wrong number. Two quantities compare as there too,
   fractions of a byte included.
3. A percent is an exact number of hundredths: "2.5" is 250, never a float. A percent of blocks is rounded down, so the
   parts of a pool whose percents sum to 100 or less never sum to more than the pool.

It does not know how many bytes a block has: that is the plan's (`kvquota_api.memory`).
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Final, NewType

from kvquota_api.quoting import quoted

Tokens = NewType("Tokens", int)
Blocks = NewType("Blocks", int)
Bytes = NewType("Bytes", int)
Hundredths = NewType("Hundredths", int)  # of a percent: 10_000 is the whole

UNLIMITED: Final = Blocks(2**63 - 1)
WHOLE: Final = Hundredths(100_00)

# apimachinery pkg/api/resource/suffix.go: the suffixes that a Quantity may have.
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}  # powers of 10
MAX_QUANTITY_LENGTH: Final = 32  # characters: more than any size of memory needs; bounds the arithmetic
QUANTITY_PATTERN: Final = r"^\+?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2}|[numkMGTPE]|[KMGTPE]i)?$"
PERCENT_PATTERN: Final = r"^(?:100(?:\.0{1,2})?|[0-9]{1,2}(?:\.[0-9]{1,2})?)$"
_QUANTITY: Final = re.compile(
    r"\+?(?P<number>[0-9]+\.?[0-9]*|\.[0-9]+)(?P<suffix>[eE][+-]?[0-9]{1,2}|[numkMGTPE]|[KMGTPE]i)?"
)
_PERCENT: Final = re.compile(PERCENT_PATTERN)
_NANO: Final = 10**9  # parts of a byte: the finest that Kubernetes tells apart; what is finer is rounded up


class AmountError(ValueError):
    """An amount that cannot be read; the text says what would be accepted."""


def plus(*amounts: Blocks) -> Blocks:
    """Sum of amounts of at least 0 blocks, at most UNLIMITED."""
    return Blocks(min(UNLIMITED, sum(amounts)))


def minus(left: Blocks, right: Blocks) -> Blocks:
    """What is left of `left` without `right`: at least 0 blocks; UNLIMITED stays UNLIMITED."""
    return UNLIMITED if left >= UNLIMITED else Blocks(max(0, left - right))


def parse_quantity(value: int | str) -> Bytes:
    """Bytes of a Kubernetes quantity ("8Gi", "1.5G", "100e6", 1024), at least 0, a fraction rounded up.

    Raises AmountError for anything else.
    """
    return Bytes(min(UNLIMITED, math.ceil(exact_quantity(value))))


def exact_quantity(value: int | str) -> Fraction:
    """A Kubernetes quantity as Kubernetes compares it: in billionths of a byte, with a binary suffix at most 2^63-1.

    Source: ParseQuantity of apimachinery, pkg/api/resource/quantity.go. Raises AmountError as `parse_quantity`.
    """
    text = str(value)
    match = _QUANTITY.fullmatch(text)
    if match is None or isinstance(value, bool) or len(text) > MAX_QUANTITY_LENGTH:
        raise AmountError(f"{quoted(value)} is not a quantity of bytes: write a number and a suffix, as in 8Gi or 500M")
    suffix = match["suffix"] or ""
    scaled = Fraction(match["number"]) * _scale(suffix)
    rounded = Fraction(math.ceil(scaled * _NANO), _NANO)
    return min(rounded, Fraction(UNLIMITED)) if suffix in _BINARY else rounded


def _scale(suffix: str) -> Fraction:
    if suffix in _BINARY:
        return Fraction(_BINARY[suffix])
    return Fraction(10) ** (_DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:]))


def parse_percent(value: int | float | str) -> Hundredths:
    """Hundredths of a percent between 0 and 100 with at most two decimals (40, "2.5").

    Raises AmountError for anything else.
    """
    text = str(value)
    if isinstance(value, bool) or _PERCENT.fullmatch(text) is None:
        raise AmountError(f"{quoted(value)} is not a percent: write a number from 0 to 100 with at most two decimals")
    return Hundredths(int(Fraction(text) * 100))


def percent_of(whole: Blocks, percent: Hundredths) -> Blocks:
    """`percent` of `whole` blocks, rounded down."""
    return Blocks(whole * percent // WHOLE)


def format_quantity(size: Bytes) -> str:
    """The quantity of exactly `size` bytes with the largest binary suffix that loses nothing ("36Gi", "1536Mi")."""
    for suffix, scale in reversed(_BINARY.items()):
        if size and size % scale == 0:
            return f"{size // scale}{suffix}"
    return str(size)


def format_bytes(size: int) -> str:
    """A size in bytes as a person reads it: binary units, two decimals at most ("36 GiB", "2 MiB", "512 B")."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{size / scale:.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{size} B"
