"""How fast something is given back, and so when a refused request may find room.

Decides the expected wait. Pure.

Invariants:

1. A wait is never less than 1 s and never more than 60 s.
2. What was given back long ago counts less: after HALF_LIFE half.
"""

from __future__ import annotations

from typing import Final

from kvquota_sidecar.refusals.refusal import MAX_RETRY_AFTER, MIN_RETRY_AFTER

STEP: Final = 0.2  # seconds: what is given back within them counts as at once, a hundredth of HALF_LIFE
HALF_LIFE: Final = 15.0  # seconds: about the length of a chat answer, so one quiet spell does not hide a busy tenant
UNKNOWN_WAIT: Final = 5.0  # seconds, where nothing was given back yet: a short answer's length


class Drain:
    """A rate of release that forgets."""

    __slots__ = ("_amount", "_at")

    def __init__(self) -> None:
        self._amount = 0.0
        self._at = 0.0

    def add(self, amount: int, now: float) -> None:
        """`amount` was given back at `now` (monotonic seconds)."""
        if now - self._at < STEP:
            self._amount += amount
            return
        self._amount = self._left(now) + amount
        self._at = now

    def wait(self, amount: int, now: float) -> float:
        """Seconds until `amount` is expected to be given back."""
        per_second = self._left(now) * 0.6931 / HALF_LIFE  # ln 2: the sum of a steady rate r is r × HALF_LIFE / ln 2
        if per_second <= 0:
            return UNKNOWN_WAIT
        return min(MAX_RETRY_AFTER, max(MIN_RETRY_AFTER, amount / per_second))

    def _left(self, now: float) -> float:
        return float(self._amount * 0.5 ** ((now - self._at) / HALF_LIFE))
