"""Faults of this program itself, as log lines.

Decides what is told of an exception. Pure.

Invariants:

1. Where it happened is told, and what kind it is, never its own words: they may quote what a client sent.
2. Of a group every exception in it is told.
"""

from __future__ import annotations

import traceback
from pathlib import PurePath
from typing import Final

_FRAMES: Final = 8  # the innermost ones: more says what calls everything anyway


def described(error: BaseException | None) -> str:
    """Kind and place, as in `KeyError at books.py:12 ask < clerk.py:70 take`; several are joined by `; `."""
    if error is None:
        return ""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(described(each) for each in error.exceptions)
    frames = traceback.extract_tb(error.__traceback__)[: -_FRAMES - 1 : -1]
    places = [f"{PurePath(each.filename).name}:{each.lineno} {each.name}" for each in frames]
    return f"{type(error).__name__} at {' < '.join(places) or 'nowhere'}"
