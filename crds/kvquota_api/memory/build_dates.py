"""Versions that are told by a date: engines are often built from their main branch, between two releases.

Decides whether a version text is a date. Pure.

Invariants:

1. A date is compared as text: "2025-12" is the start of that month, and before any day of it.
"""

from __future__ import annotations

import re
from typing import Final

_DATE: Final = re.compile(r"(20\d\d(?:-\d\d){0,2})(?:\s*\(.*\))?")


def date_of(version: str) -> str | None:
    """The date in a text like "2025-10-07 (main)", "2025-12" or "2026"; None where it is no date."""
    found = _DATE.fullmatch(version.strip())
    return None if found is None else found.group(1)
