"""What the engine did in the last ten minutes, and how much of it the sidecar cannot have sent.

Decides it by the engine's own counters beside the sequences that were sent to it. Pure.

Invariants:

1. Nothing of ours is ever called foreign: more was finished than ran at the beginning and was sent since, with the
   earliest count of what was sent at the beginning and the latest at the end. Foreign sequences may be missed, as many
   as were under way at the beginning.
2. What holds for a part of the ten minutes holds for all of them: the part that shows most is told.
3. Another life of the engine begins anew, and so does a counter that fell. What the engine does not count is None.

It does not see requests, nor who sent them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from kvquota_api.usage import RECENT_SECONDS, EngineRecent
from kvquota_sidecar.engines.aborts import Load
from kvquota_sidecar.ledger.asking import EngineSample

MARKS: Final = 10  # that are kept of ten minutes
_SPELL: Final = RECENT_SECONDS / MARKS  # seconds between two of them


@dataclass(frozen=True, slots=True)
class _Mark:
    """The counters at `at`, monotonic seconds. `sent`: how many sequences may have been under way then, less all that
    the sidecar had sent until then."""

    at: float
    finished: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    sent: int | None


class Recent:
    """Times are monotonic seconds."""

    def __init__(self) -> None:
        self._life: float | None = None
        self._marks: deque[_Mark] = deque()

    def look(self, sample: EngineSample, before: Load, after: Load, now: float) -> EngineRecent:
        """`before`, `after`: what was with the engine when the sample was asked for, and when it came."""
        last = self._marks[-1] if self._marks else None
        if last is None or sample.started_at != self._life or _fell(last, sample):
            self._life = sample.started_at
            self._marks.clear()
        while len(self._marks) > 1 and now - self._marks[1].at >= RECENT_SECONDS:
            self._marks.popleft()
        if not self._marks or now - self._marks[-1].at >= _SPELL:
            self._marks.append(_mark(sample, before, now))
        first = self._marks[0]
        return EngineRecent(
            finished=_less(sample.finished, first.finished),
            foreign=self._foreign(sample, after),
            prompt_tokens=_less(sample.prompt_tokens, first.prompt_tokens),
            cached_tokens=_less(sample.cached_tokens, first.cached_tokens),
        )

    def _foreign(self, sample: EngineSample, after: Load) -> int | None:
        known = [
            sample.finished - mark.finished - (after.begun + mark.sent)
            for mark in self._marks
            if sample.finished is not None and mark.finished is not None and mark.sent is not None
        ]
        return max(0, *known) if known else None


def _mark(sample: EngineSample, before: Load, now: float) -> _Mark:
    runs = None if sample.running is None else sample.running + (sample.waiting or 0)
    sent = None if runs is None else runs + before.given - before.begun
    return _Mark(now, sample.finished, sample.prompt_tokens, sample.cached_tokens, sent)


def _fell(last: _Mark, sample: EngineSample) -> bool:
    pairs = (
        (last.finished, sample.finished),
        (last.prompt_tokens, sample.prompt_tokens),
        (last.cached_tokens, sample.cached_tokens),
    )
    return any(now is not None and before is not None and now < before for before, now in pairs)


def _less(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before
