"""What the operator writes and somebody else changes.

Decides what was changed by another writer, and when the operator and that one fight over it. Invariants:

1. What an object has is foreign only where the operator has given it something else, and that was stored; what it may
   have been given, by a write whose answer was lost, is not.
2. Memory is bounded: the objects that were written longest ago are forgotten first.
"""

from __future__ import annotations

from typing import Final

from kvquota_operator.ports import Clock

FIGHT_SECONDS: Final = 60.0
FIGHT_MENDS: Final = 3  # within FIGHT_SECONDS: somebody who tries things out edits once or twice, a controller goes on
REMEMBERED: Final = 16_384  # objects; above what one operator is made for


class Mends:
    """By uid, what an object was given last, and when it was last given that again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._given: dict[str, object] = {}
        self._tried: dict[str, object] = {}
        self._times: dict[str, list[float]] = {}

    def is_foreign(self, uid: str, content: object) -> bool:
        """Whether the object has something else than it was given; `content`: None where it is not there."""
        given = self._given.get(uid)
        if given is None or content == given:
            return False
        return content is None or content != self._tried.get(uid)

    def tries(self, uid: str, content: object) -> None:
        """The object is about to be given this."""
        if uid in self._given:
            self._tried[uid] = content

    def gave(self, uid: str, content: object) -> None:
        """The object has this now."""
        self._given.pop(uid, None)
        self._given[uid] = content
        if len(self._given) > REMEMBERED:
            self.forget(next(iter(self._given)))

    def forget(self, uid: str) -> None:
        """The object is of no interest any more."""
        self._given.pop(uid, None)
        self._tried.pop(uid, None)
        self._times.pop(uid, None)

    def mended(self, uid: str) -> bool:
        """Something foreign was written over; whether that is a fight by now."""
        now = self._clock.monotonic()
        times = [at for at in self._times.get(uid, ()) if now - at < FIGHT_SECONDS]
        self._times[uid] = [*times, now][-FIGHT_MENDS:]
        return len(self._times[uid]) >= FIGHT_MENDS
