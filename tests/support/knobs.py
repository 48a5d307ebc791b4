"""Variables by which a person has tests run longer, or a run again: docs/testing.md. A bad one is no default."""

import math
import os

import pytest


def seconds(variable: str, otherwise: float) -> float:
    """What it says, or `otherwise` where it is not set. Raises pytest.UsageError, which says what to set."""
    text = os.environ.get(variable)
    if not text:
        return otherwise
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise pytest.UsageError(f"{variable}={text!r} is not a number of seconds above 0: set one, or unset it")
    return found


def seed(variable: str, otherwise: int) -> int:
    """What it says, or `otherwise` where it is not set. Raises pytest.UsageError, which says what to set."""
    text = os.environ.get(variable)
    if not text:
        return otherwise
    if not text.isdecimal():
        raise pytest.UsageError(f"{variable}={text!r} is not a whole number: set what a run printed, or unset it")
    return int(text)
