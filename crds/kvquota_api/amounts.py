"""Units of memory and the arithmetic on them.

Decides how amounts are written, read and added. Pure.

Invariants:

1. A sum never passes UNLIMITED and a difference never passes 0 (saturating); UNLIMITED plus or minus anything is
   UNLIMITED.
2. A quantity is read exactly as Kubernetes reads it, and a fraction of a byte is rounded up, as there.
3. A percent is an exact number of hundredths: "2.5" is 250, never a float. A percent of blocks is rounded down, so the
   parts of a pool whose percents sum to 100 or less never sum to more than the pool.

It does not know how many bytes a block has: that is the plan's (`kvquota_api.memory`).
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final, NewType

Tokens = NewType("Tokens", int)
Blocks = NewType("Blocks", int)
Bytes = NewType("Bytes", int)
Hundredths = NewType("Hundredths", int)  # of a percent: 10_000 is the whole

UNLIMITED: Final = Blocks(2**63 - 1)
WHOLE: Final = Hundredths(100_00)

# apimachinery pkg/api/resource/suffix.go: the suffixes that a Quantity may have.
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL: Final = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "P": Decimal(10**15), "E": Decimal(10**18),
}  # fmt: skip
QUANTITY_PATTERN: Final = r"^\+?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2}|[numkMGTPE]|[KMGTPE]i)?$"
PERCENT_PATTERN: Final = r"^(?:100(?:\.0{1,2})?|[0-9]{1,2}(?:\.[0-9]{1,2})?)$"
_QUANTITY: Final = re.compile(
    r"^\+?(?P<number>[0-9]+\.?[0-9]*|\.[0-9]+)(?P<suffix>[eE][+-]?[0-9]{1,2}|[numkMGTPE]|[KMGTPE]i)?$"
)


class AmountError(ValueError):
    """An amount that cannot be read; the text says what would be accepted."""


def plus(left: Blocks, right: Blocks) -> Blocks:
    """Sum of two amounts of at least 0 blocks, at most UNLIMITED."""
    return Blocks(min(UNLIMITED, left + right))


def minus(left: Blocks, right: Blocks) -> Blocks:
    """What is left of `left` without `right`: at least 0 blocks; UNLIMITED stays UNLIMITED."""
    return UNLIMITED if left >= UNLIMITED else Blocks(max(0, left - right))


def parse_quantity(value: int | str) -> Bytes:
    """Bytes of a Kubernetes quantity ("8Gi", "1.5G", "100e6", 1024), at least 0, a fraction rounded up.

    Raises AmountError for anything else, and for what does not fit in 63 bits.
    """
    match = _QUANTITY.match(str(value))
    if match is None or isinstance(value, bool):
        raise AmountError(f"{value!r} is not a quantity of bytes: write a number and a suffix, as in 8Gi or 500M")
    scaled = Decimal(match["number"]) * _scale(match["suffix"] or "")
    whole = int(scaled.to_integral_value(rounding="ROUND_CEILING"))
    if whole > UNLIMITED:
        raise AmountError(f"{value!r} is more than 2^63 bytes")
    return Bytes(whole)


def _scale(suffix: str) -> Decimal:
    if suffix in _DECIMAL:
        return _DECIMAL[suffix]
    return Decimal(_BINARY[suffix]) if suffix in _BINARY else Decimal(f"1{suffix}")


def parse_percent(value: int | float | str) -> Hundredths:
    """Hundredths of a percent between 0 and 100 with at most two decimals (40, "2.5").

    Raises AmountError for anything else.
    """
    text = str(value)
    if isinstance(value, bool) or re.match(PERCENT_PATTERN, text) is None:
        raise AmountError(f"{value!r} is not a percent: write a number from 0 to 100 with at most two decimals")
    return Hundredths(int(Decimal(text) * 100))


def percent_of(whole: Blocks, percent: Hundredths) -> Blocks:
    """`percent` of `whole` blocks, rounded down."""
    return Blocks(whole * percent // WHOLE)


def format_bytes(size: int) -> str:
    """A size in bytes as a person reads it: binary units, two decimals at most ("36 GiB", "2 MiB", "512 B")."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{size / scale:.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{size} B"
