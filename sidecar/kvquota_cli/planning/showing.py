"""Puts lines on the terminal: in colour where there is one, as plain text elsewhere."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from kvquota_cli.planning.drawing import BLOCKS, LETTERS, Glyphs, Line


def glyphs_of_output() -> Glyphs:
    """The characters that the output can show."""
    try:
        "".join((BLOCKS.weights, BLOCKS.activation, BLOCKS.kv, BLOCKS.other, BLOCKS.margin, BLOCKS.end)).encode(
            sys.stdout.encoding or "ascii"
        )
    except UnicodeEncodeError:
        return LETTERS
    return BLOCKS


def show(lines: Sequence[Line]) -> None:
    """Print them. Rich is loaded only where colours can be seen."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        print("\n".join("".join(segment.text for segment in line).rstrip() for line in lines))
        return
    console = importlib.import_module("rich.console").Console(highlight=False, soft_wrap=True)
    text = importlib.import_module("rich.text").Text
    for line in lines:
        console.print(text.assemble(*((segment.text, segment.colour) for segment in line)))
