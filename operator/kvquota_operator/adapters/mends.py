"""Statuses that somebody else changes again and again.

Decides when the operator and another writer fight over a status. Invariants:

1. A status is foreign only where the operator has given the object another one, and that was stored.
2. Memory is bounded: the objects that were written longest ago are forgotten first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvquota_operator.ports import Clock

FIGHT_SECONDS: Final = 60.0
FIGHT_MENDS: Final = 3  # within FIGHT_SECONDS: somebody who tries things out edits once or twice, a controller goes on
REMEMBERED: Final = 16_384  # objects; above what one operator is made for


class Mends:
    """By uid, what an object was given last, and when it was last given that again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._given: dict[str, Mapping[str, Any]] = {}
        self._times: dict[str, list[float]] = {}

    def is_foreign(self, uid: str, status: Mapping[str, Any]) -> bool:
        """Whether the object has another status than it was given."""
        given = self._given.get(uid)
        return given is not None and given != status

    def gave(self, uid: str, status: Mapping[str, Any]) -> None:
        """The object has this status now."""
        self._given.pop(uid, None)
        self._given[uid] = status
        if len(self._given) > REMEMBERED:
            oldest = next(iter(self._given))
            del self._given[oldest]
            self._times.pop(oldest, None)

    def mended(self, uid: str) -> bool:
        """A foreign status was written over; whether that is a fight by now."""
        now = self._clock.monotonic()
        times = [at for at in self._times.get(uid, ()) if now - at < FIGHT_SECONDS]
        self._times[uid] = [*times, now][-FIGHT_MENDS:]
        return len(self._times[uid]) >= FIGHT_MENDS
