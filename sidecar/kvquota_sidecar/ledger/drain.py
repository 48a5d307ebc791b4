"""How fast something is given back, and so when a refused request may find room.

Decides the expected wait. Pure.

Invariants:

1. A wait is never less than 1 s and never more than 60 s.
2. What was given back long ago counts less: after HALF_LIFE half.
3. A rate is believed where it stands on more than one giving back, and on a part of what is asked: on less than that
   nobody is told to wait for longer than LITTLE_KNOWN_WAIT.
"""

from __future__ import annotations

from typing import Final

from kvquota_sidecar.refusals.refusal import MAX_RETRY_AFTER, MIN_RETRY_AFTER

STEP: Final = 0.2  # seconds: what is given back within them counts as at once, a hundredth of HALF_LIFE
HALF_LIFE: Final = 15.0  # seconds: about the length of a chat answer, so one quiet spell does not hide a busy tenant
UNKNOWN_WAIT: Final = 5.0  # seconds, where nothing was given back yet: a short answer's length
# Seconds at most, where little is known [one short answer, and who asked for twenty times as much had to wait 60 s for
# a long one that was about to end]: the length of a long answer; and one who asks for nothing again costs 30 us.
LITTLE_KNOWN_WAIT: Final = 10.0
ENOUGH: Final = 0.25  # of what is asked has to be remembered; a steady rate with that says 87 s, which is 60
_TWICE: Final = 1.5  # givings back that are remembered: two, of which the first was some time ago


class Drain:
    """A rate of release that forgets."""

    __slots__ = ("_amount", "_at", "_times")

    def __init__(self) -> None:
        self._amount = 0.0
        self._at = 0.0
        self._times = 0.0

    def add(self, amount: int, now: float) -> None:
        """`amount` was given back at `now` (monotonic seconds)."""
        if now - self._at >= STEP:
            left = self._left(now)
            self._amount *= left
            self._times *= left
            self._at = now
        self._amount += amount
        self._times += 1

    def wait(self, amount: int, now: float) -> float:
        """Seconds until `amount` is expected to be given back."""
        left = self._left(now)
        known = self._amount * left
        per_second = known * 0.6931 / HALF_LIFE  # ln 2: the sum of a steady rate r is r × HALF_LIFE / ln 2
        if per_second <= 0:
            return UNKNOWN_WAIT
        is_known = known >= ENOUGH * amount and self._times * left >= _TWICE
        most = MAX_RETRY_AFTER if is_known else LITTLE_KNOWN_WAIT
        return min(most, max(MIN_RETRY_AFTER, amount / per_second))

    def _left(self, now: float) -> float:
        """The part of what is remembered that counts still."""
        return float(0.5 ** ((now - self._at) / HALF_LIFE))
