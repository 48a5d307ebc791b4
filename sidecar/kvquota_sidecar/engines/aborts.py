"""Whether the engine goes on with requests whose connections are closed.

Decides it by what the engine runs beyond what it was given: a closed connection must take its sequences with it. vLLM
loses the news of it behind some middlewares, and generates to the end for nobody. Pure.

Invariants:

1. Only what stays is evidence: more must run than is known, at every reading for PATIENCE_SECONDS, beyond what ran
   before the first close, and beyond what was closed so shortly ago that the engine need not know.
2. Sequences of others who use the engine directly are no evidence as long as they were there before.
3. The verdict holds until a later close gives another, or the engine starts again.
4. An engine that does not say what it runs gets no verdict.

It does not see requests; it is told how many sequences the engine was given, and how many of them were cut off.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from kvquota_sidecar.ledger.asking import EngineSample

PATIENCE_SECONDS: Final = 40.0  # SGLang's gauges may show for 30 s what an idle engine ran before
GRACE_SECONDS: Final = 5.0  # in which any engine has noticed a closed connection: one step of the longest prompt
_READINGS: Final = 10  # before a close, of which the one with most foreign sequences counts


@dataclass(frozen=True, slots=True)
class Load:
    """Sequences: `given` to the engine and not over, `cut` off by closing their connections and `begun`, both ever."""

    given: int
    cut: int
    begun: int = 0


@dataclass(slots=True)
class _Trial:
    """A close that is being judged: `since` when there has been evidence without a gap; `foreign` ran before it."""

    since: float
    foreign: int


class Aborts:
    """Times are monotonic seconds."""

    def __init__(self) -> None:
        self._life: float | None = None
        self._cut: int | None = None
        self._begin()

    def look(self, sample: EngineSample, before: Load, after: Load, now: float) -> bool | None:
        """The verdict. `before`, `after`: what was with the engine when the sample was asked for, and when it came."""
        runs = sample.present
        if runs is None:
            return None
        if sample.started_at != self._life:
            self._life = sample.started_at
            self._begin()
        self._notice_cuts(before.cut, now)
        if self._trial is None:
            self._foreign.append(runs - min(before.given, after.given))
        else:
            self._judge(self._trial, runs - max(before.given, after.given), now)
        return self._lost

    def _begin(self) -> None:
        """Know nothing of this life of the engine."""
        self._lost = False
        self._trial: _Trial | None = None
        self._foreign: deque[int] = deque(maxlen=_READINGS)
        self._recent: deque[tuple[float, int]] = deque()

    def _notice_cuts(self, cut: int, now: float) -> None:
        new = 0 if self._cut is None else cut - self._cut
        self._cut = cut
        while self._recent and now - self._recent[0][0] >= GRACE_SECONDS:
            self._recent.popleft()
        if new > 0:
            self._recent.append((now, new))
            if self._trial is None and self._foreign:
                self._trial = _Trial(now, max(0, *self._foreign))

    def _judge(self, trial: _Trial, beyond: int, now: float) -> None:
        lingering = sum(count for _, count in self._recent)
        if beyond - trial.foreign > lingering:
            if now - trial.since >= PATIENCE_SECONDS:
                self._settle(lost=True)
        elif lingering:
            trial.since = now
        else:
            self._settle(lost=False)

    def _settle(self, *, lost: bool) -> None:
        self._lost = lost
        self._trial = None
        self._foreign.clear()
