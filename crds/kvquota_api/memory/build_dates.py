"""Versions that are told by a date: engines are often built from their main branch, between two releases.

Decides whether a version text is a date, and which release of vLLM was the last one until then. Pure.

Invariants:

1. A date is compared as text: "2025-12" is the start of that month, and before any day of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_DATE: Final = re.compile(r"(20\d\d(?:-\d\d){0,2})(?:\s*\(.*\))?")
_WITHIN: Final = re.compile(r"(?<!\d)20\d\d(?:-\d\d){1,2}(?!\d)")

# Releases of vLLM by the day they came out, from February 2026 on by the half month at whose start they were there.
# Those left out have the rules of the one before.
VLLM_RELEASES: Final[tuple[tuple[str, tuple[int, int, int]], ...]] = (
    ("2024-09-04", (0, 6, 0)),
    ("2025-01-27", (0, 7, 0)),
    ("2025-03-18", (0, 8, 0)),
    ("2025-05-27", (0, 9, 0)),
    ("2025-07-24", (0, 10, 0)),
    ("2025-08-18", (0, 10, 1)),
    ("2025-10-02", (0, 11, 0)),
    ("2025-12-03", (0, 12, 0)),
    ("2025-12-18", (0, 13, 0)),
    ("2026-01-20", (0, 14, 0)),
    ("2026-02", (0, 15, 0)),
    ("2026-03", (0, 16, 0)),
    ("2026-03-15", (0, 17, 1)),
    ("2026-04", (0, 18, 1)),
    ("2026-04-15", (0, 19, 0)),
    ("2026-05", (0, 20, 0)),
    ("2026-05-15", (0, 21, 0)),
    ("2026-06", (0, 22, 0)),
    ("2026-06-15", (0, 23, 0)),
    ("2026-07", (0, 24, 0)),
    ("2026-07-15", (0, 25, 1)),
    ("2026-08", (0, 26, 0)),
    ("2026-08-15", (0, 27, 1)),
    ("2026-09", (0, 28, 0)),
    ("2026-09-15", (0, 29, 0)),
    ("2026-10", (0, 30, 0)),
    ("2026-10-15", (0, 31, 0)),
    ("2026-11", (0, 32, 0)),
)


def date_of(version: str) -> str | None:
    """The date in a text like "2025-10-07 (main)", "2025-12" or "2026"; None where it is no date."""
    found = _DATE.fullmatch(version.strip())
    return None if found is None else found.group(1)


def date_within(version: str) -> str | None:
    """The date somewhere in a text like "main (2026-07)", with its month at least; None where there is none."""
    found = _WITHIN.search(version)
    return None if found is None else found.group()


def release_until(date: str, released: Sequence[tuple[str, tuple[int, int, int]]]) -> tuple[int, int, int]:
    """The last release until that date; (0, 0, 0) where all are later."""
    return max((release for since, release in released if since <= date), default=(0, 0, 0))
