"""How long ago, as `kubectl` writes it. Pure.

The steps are those of apimachinery's `duration.HumanDuration`: two units where the second still tells something.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_YEAR: Final = 365 * _DAY


def age(created: str, now: datetime) -> str:
    """Age of an RFC 3339 time at `now` (aware): "45s", "2m5s", "3h", "<invalid>" for what is no time."""
    try:
        then = datetime.fromisoformat(created)
        seconds = int((now - then).total_seconds())
    except (ValueError, TypeError):
        return "<invalid>"
    return human_duration(seconds)


def human_duration(seconds: int) -> str:
    """Whole seconds as text; a clock that is one second off counts as 0, more is "<invalid>"."""
    if seconds < -1:
        return "<invalid>"
    seconds = max(0, seconds)
    if seconds < 2 * _MINUTE:
        return f"{seconds}s"
    if seconds < 3 * _HOUR:
        return _two(seconds, _MINUTE, "m", 1, "s", until=10 * _MINUTE)
    if seconds < 8 * _DAY:
        return _hours_or_days(seconds)
    return _two(seconds, _YEAR, "y", _DAY, "d", until=8 * _YEAR) if seconds >= 2 * _YEAR else f"{seconds // _DAY}d"


def _hours_or_days(seconds: int) -> str:
    if seconds < 2 * _DAY:
        return _two(seconds, _HOUR, "h", _MINUTE, "m", until=8 * _HOUR)
    return _two(seconds, _DAY, "d", _HOUR, "h", until=8 * _DAY)


def _two(seconds: int, large: int, large_name: str, small: int, small_name: str, *, until: int) -> str:
    whole, rest = seconds // large, seconds % large // small
    return f"{whole}{large_name}{rest}{small_name}" if rest and seconds < until else f"{whole}{large_name}"
