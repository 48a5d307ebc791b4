"""Sizes and lengths as people write them on a command line.

Decides how "79.18GiB", "19.47 GiB" and "32k" are read. Pure; what cannot be read is an argparse.ArgumentTypeError.

Invariants:

1. KiB, MiB, GiB, TiB (and Ki, Mi, Gi, Ti, as in Kubernetes) are powers of 1024; k, M, G, T powers of 1000, as there; a
   bare whole number is bytes. A fraction of a byte is dropped: a plan must not count on it.
2. A context of 1k is 1024 tokens, 1m is 1024k.
3. What some read in one way and some in another (GB, a max-model-len of 32k) is refused, and so is a size that has
   lost its unit.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from fractions import Fraction
from typing import Final

from kvquota_api.amounts import Bytes, Tokens
from kvquota_api.memory.inputs import LONGEST
from kvquota_api.quoting import quoted

MAX_SIZE: Final = 2**53  # bytes: what JSON carries exactly; no card is near it
LEAST_MEMORY: Final = 2**20  # bytes of a card or of its KV cache: a smaller number has lost its unit
MAX_LENGTH: Final = 2**31 - 1  # tokens: the bound of every length in the API
MAX_CONTEXTS: Final = 32  # lines of a table that a person still reads, as in spec.workload.contextMix

_SIZE: Final = re.compile(r"(?P<number>[0-9]{1,16}(?:\.[0-9]{1,20})?) ?(?P<unit>[A-Za-z]*)")
_UNITS: Final = {"": 1, "b": 1} | {
    f"{letter}{rest}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for rest, base in (("ib", 1024), ("i", 1024), ("", 1000))
}
_TWO_MEANINGS: Final = frozenset({"kb", "mb", "gb", "tb"})
_LENGTH: Final = re.compile(r"(?P<number>[0-9]{1,10})(?P<unit>[kKmM]?)")
_THOUSANDS: Final = {"": 1, "k": 1024, "m": 1024**2}


def size(text: str) -> Bytes:
    """Bytes of "79.18GiB", "80Gi", "80GB" or "8589934592"; at least 1, at most MAX_SIZE."""
    match = _SIZE.fullmatch(text)
    if match is not None and match["unit"].lower() in _TWO_MEANINGS:
        unit = match["unit"]
        raise ArgumentTypeError(
            f"{quoted(text)}: {unit} is a power of 1000 to some and of 1024 to others: write {unit[0]}iB"
        )
    scale = None if match is None else _UNITS.get(match["unit"].lower())
    if match is None or scale is None:
        raise ArgumentTypeError(f"{quoted(text)} is no size of memory: write a number and a unit, as in 79.18GiB")
    if "." in match["number"] and not match["unit"]:
        raise ArgumentTypeError(f"{quoted(text)} has no unit: add it, as in {text}GiB")
    size_bytes = int(Fraction(match["number"]) * scale)
    if not 1 <= size_bytes <= MAX_SIZE:
        raise ArgumentTypeError(f"{quoted(text)} is not from 1 byte to {MAX_SIZE // 2**40} TiB")
    return Bytes(size_bytes)


def memory(text: str) -> Bytes:
    """Bytes of a card or of a KV cache, at least LEAST_MEMORY where no unit is said."""
    size_bytes = size(text)
    if size_bytes < LEAST_MEMORY and text.isdigit():
        raise ArgumentTypeError(f"{quoted(text)} has no unit, and is less than 1 MiB of bytes: add it, as in {text}GiB")
    return size_bytes


def fraction(text: str) -> Fraction:
    """A part of the card, above 0 and at most 1, exactly as it is written."""
    if re.fullmatch(r"[01]?(?:\.[0-9]{1,20})?", text) is None or not text or not 0 < Fraction(text) <= 1:
        raise ArgumentTypeError(f"{quoted(text)} is not a part of the card above 0 and at most 1, as in 0.9")
    return Fraction(text)


def count(text: str) -> int:
    """A whole number of at least 1."""
    return _whole(text, 1)


def count_or_none(text: str) -> int:
    """A whole number of at least 0."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if re.fullmatch(r"[0-9]{1,10}", text) is None or not least <= int(text) <= MAX_LENGTH:
        raise ArgumentTypeError(f"{quoted(text)} is not a whole number from {least} to {MAX_LENGTH:,}")
    return int(text)


def length(text: str) -> int:
    """Tokens of the longest request, or LONGEST for "auto" and "-1"."""
    if text in ("auto", "-1"):
        return LONGEST
    if re.fullmatch(r"[0-9.]+[kKmM]", text):
        raise ArgumentTypeError(
            f"{quoted(text)} is read as thousands by some engines and as 1024s by others: write the number of tokens"
        )
    return _whole(text, 1)


def contexts(text: str) -> tuple[Tokens, ...]:
    """Lengths of requests in tokens, "1k,8k,131072", shortest first."""
    lengths = [_context(part.strip()) for part in text.split(",")]
    if len(lengths) > MAX_CONTEXTS:
        raise ArgumentTypeError(f"{len(lengths)} lengths are more than the {MAX_CONTEXTS} that a table shows")
    if len(set(lengths)) < len(lengths):
        raise ArgumentTypeError(f"{quoted(text)} has a length twice: keep one")
    return tuple(sorted(lengths))


def _context(text: str) -> Tokens:
    match = _LENGTH.fullmatch(text)
    tokens = 0 if match is None else int(match["number"]) * _THOUSANDS[match["unit"].lower()]
    if not 1 <= tokens <= MAX_LENGTH:
        raise ArgumentTypeError(
            f"{quoted(text)} is no length of a request: write tokens, with k for 1024 and m for 1024k, as in 1k,8k,1m"
        )
    return Tokens(tokens)


def short_length(tokens: int) -> str:
    """The length as `contexts` reads it, as short as it is exact: "8k", "1m", "1000"."""
    for unit in ("m", "k"):
        if tokens % _THOUSANDS[unit] == 0:
            return f"{tokens // _THOUSANDS[unit]}{unit}"
    return str(tokens)
