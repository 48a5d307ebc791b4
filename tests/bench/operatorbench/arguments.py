"""Numbers on the command lines of the benchmarks, for argparse: those with which something is measured."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """Reads a whole number that is not below `least`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ArgumentTypeError(f"{text!r} is not a whole number from {least}")
        return int(text)

    return read


def port(text: str) -> int:
    """Of TCP."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ArgumentTypeError(f"{text!r} is not a port: give 1 to 65535")
    return int(text)


def seconds(text: str) -> float:
    """More than none, and an end."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return found
