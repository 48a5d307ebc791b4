"""Numbers on the command lines of the benchmarks, for argparse: those with which something is measured."""

from __future__ import annotations

import math
import shutil
import subprocess
from argparse import ArgumentTypeError
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """Reads a whole number that is not below `least`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ArgumentTypeError(f"{text!r} is not a whole number from {least}")
        return int(text)

    return read


def percent(text: str) -> int:
    """A whole number from 0 to 100."""
    if not text.isdecimal() or int(text) > 100:
        raise ArgumentTypeError(f"{text!r} is not a whole percent: give 0 to 100")
    return int(text)


def program(text: str) -> str:
    """The path of a program that there is."""
    found = shutil.which(text)
    if found is None:
        raise ArgumentTypeError(f"there is no program {text}; give the path of another Python of this version")
    return found


def python_of(python: str) -> dict[str, str]:
    """An interpreter and how it was built: one that is not optimised by profile is slower by a fifth."""
    show = "import sys, sysconfig; print(sys.version.split()[0]); print(sysconfig.get_config_var('CONFIG_ARGS'))"
    told = subprocess.run([python, "-c", show], capture_output=True, text=True, check=True).stdout
    version, _, built = told.partition("\n")
    return {"path": python, "version": version, "built": built.strip()}


def port(text: str) -> int:
    """Of TCP."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ArgumentTypeError(f"{text!r} is not a port: give 1 to 65535")
    return int(text)


def seconds(text: str) -> float:
    """More than none, and an end."""
    return above_zero(text, "seconds")


def per_second(text: str) -> float:
    """How many requests a second, more than none."""
    return above_zero(text, "requests a second")


def above_zero(text: str, what: str) -> float:
    """A number that has an end."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a number of {what} above 0")
    return found
