"""Prose that fits the terminal, broken only between words. Pure but for `terminal_columns`."""

from __future__ import annotations

import re
import shutil
import textwrap
from typing import Final

_WIDE: Final = 120  # columns, where nobody knows how many there are: a file or a pipe
_NARROWEST: Final = 40  # columns: below it a terminal has to break lines by itself
_HEAD: Final = re.compile(r" *(?:\S+ {2,})?")  # what stands before the text: an indentation, a label


def terminal_columns() -> int:
    """Columns of the terminal, by COLUMNS or as it says itself."""
    return max(_NARROWEST, shutil.get_terminal_size((_WIDE, 24)).columns)


def wrapped(line: str, columns: int) -> list[str]:
    """The line as lines of at most `columns`, the later ones below where its text begins. A word is never broken."""
    return textwrap.wrap(
        line,
        columns,
        subsequent_indent=" " * _indent(line),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]


def continued(command: str, columns: int) -> list[str]:
    """A command of a shell as lines that can be pasted: all but the last end in a backslash."""
    lines = textwrap.wrap(
        command, columns - 2, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def _indent(line: str) -> int:
    head = _HEAD.match(line)
    return head.end() if head is not None else 0
