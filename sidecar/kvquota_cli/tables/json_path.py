"""The part of Kubernetes' JSONPath that printer columns use.

Decides what a path finds in an object. Pure.

Invariants:

1. What is absent is None; it is never an error and never a made-up value.
2. A path that uses more than fields, quoted fields, indices and `[?(@.field=="text")]` is an error when it is read,
   so that a new column cannot print nonsense.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_STEP: Final = re.compile(
    r"""\.(?P<field>[A-Za-z_][A-Za-z0-9_-]*)
      | \[\s*'(?P<quoted>[^']*)'\s*\]
      | \[(?P<index>[0-9]+)\]
      | \[\?\(\s*@\.(?P<of>[A-Za-z_][A-Za-z0-9_]*)\s*==\s*(?P<mark>["'])(?P<text>.*?)(?P=mark)\s*\)\]""",
    re.VERBOSE,
)


class PathError(ValueError):
    """A path that cannot be read; the text shows from where on."""


@dataclass(frozen=True, slots=True)
class Match:
    """Takes the first item of a list whose `field` is `text`."""

    field: str
    text: str


Step = str | int | Match


def parse_path(path: str) -> tuple[Step, ...]:
    """Steps of a path such as `.status.conditions[?(@.type=="Ready")].status`. Raises PathError."""
    steps: list[Step] = []
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise PathError(f"cannot read the JSONPath {path!r} from {path[position:]!r} on")
        steps.append(_step(match))
        position = match.end()
    return tuple(steps)


def _step(match: re.Match[str]) -> Step:
    if match["index"] is not None:
        return int(match["index"])
    if match["of"] is not None:
        return Match(match["of"], match["text"])
    return match["field"] if match["field"] is not None else match["quoted"]


def find(steps: Sequence[Step], content: Any) -> Any:
    """What the path finds first, None where nothing is there."""
    for step in steps:
        content = _taken(step, content)
        if content is None:
            return None
    return content


def _taken(step: Step, content: Any) -> Any:
    if isinstance(step, Match):
        items = content if isinstance(content, list) else ()
        return next((item for item in items if isinstance(item, Mapping) and item.get(step.field) == step.text), None)
    if isinstance(step, int):
        return content[step] if isinstance(content, list) and step < len(content) else None
    return content.get(step) if isinstance(content, Mapping) else None
