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
    """The engine at `at`, monotonic seconds. `sent`: how many sequences may have been under way then, less all that the
    sidecar had sent until then."""

    at: float
    sample: EngineSample
    sent: int | None


class Recent:
    """Times are monotonic seconds."""

    def __init__(self) -> None:
        self._marks: deque[_Mark] = deque()

    def look(self, sample: EngineSample, before: Load, after: Load, now: float) -> EngineRecent:
        """`before`, `after`: what was with the engine when the sample was asked for, and when it came."""
        if self._marks and _begins_anew(self._marks[-1].sample, sample):
            self._marks.clear()
        while len(self._marks) > 1 and now - self._marks[1].at >= RECENT_SECONDS:
            self._marks.popleft()
        if not self._marks or now - self._marks[-1].at >= _SPELL:
            self._marks.append(_mark(sample, before, now))
        finished, prompt_tokens, cached_tokens = _counted(self._marks[0].sample, sample)
        return EngineRecent(
            finished=finished,
            foreign=self._foreign(sample, after),
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
        )

    def _foreign(self, sample: EngineSample, after: Load) -> int | None:
        each = ((_less(sample.finished, mark.sample.finished), mark.sent) for mark in self._marks)
        known = [done - (after.begun + sent) for done, sent in each if done is not None and sent is not None]
        return max(0, *known) if known else None


def _mark(sample: EngineSample, before: Load, now: float) -> _Mark:
    present = sample.present
    return _Mark(now, sample, None if present is None else present + before.given - before.begun)


def _begins_anew(last: EngineSample, sample: EngineSample) -> bool:
    fell = any(each is not None and each < 0 for each in _counted(last, sample))
    return fell or sample.started_at != last.started_at


def _counted(first: EngineSample, sample: EngineSample) -> tuple[int | None, int | None, int | None]:
    """Since the first: sequences finished, tokens looked up, tokens found."""
    return (
        _less(sample.finished, first.finished),
        _less(sample.prompt_tokens, first.prompt_tokens),
        _less(sample.cached_tokens, first.cached_tokens),
    )


def _less(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before
