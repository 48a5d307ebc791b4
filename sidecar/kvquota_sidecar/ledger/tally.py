"""What happened to one tenant's requests: since the start, and in the last ten minutes.

Decides the counts of the report. Pure.

Invariants:

1. Totals only grow.
2. The memory is bounded: BUCKETS spells of time, and in each one number for each kind and code that occurred.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Final, Literal

from kvquota_api.usage import RECENT_SECONDS, Counts
from kvquota_sidecar.refusals import Refusal

BUCKETS: Final = 10
_SPELL: Final = RECENT_SECONDS / BUCKETS  # seconds: `recent` covers nine to ten minutes
Kind = Literal[
    "admitted", "rejected", "would_reject", "evicted", "ended", "guarantee_missed", "prompt_tokens", "cached_tokens"
]

_Key = Kind | tuple[Kind, str]  # with the code of the refusal, where there is one
_NOTHING: Final = Counts()


@dataclass(frozen=True, slots=True)
class LastRefusal:
    """`at`: monotonic seconds."""

    refusal: Refusal
    at: float


class Tally:
    """Counts of one tenant."""

    __slots__ = ("_before", "_begin", "_now", "_recent", "last_refusal")

    def __init__(self) -> None:
        self._begin = float("-inf")  # of the last spell, which _now counts, in monotonic seconds
        self._now: dict[_Key, int] = {}
        self._before: Counter[_Key] = Counter()  # all but those of the last spell
        self._recent: deque[tuple[int, dict[_Key, int]]] = deque(maxlen=BUCKETS)
        self.last_refusal: LastRefusal | None = None

    def count(self, kind: Kind, now: float, code: str = "", *, times: int = 1) -> None:
        """So many more of `kind`; `code` names the refusal where there is one."""
        if not self._begin <= now < self._begin + _SPELL:
            self._turn_over(now)
        key: _Key = (kind, code) if code else kind
        self._now[key] = self._now.get(key, 0) + times

    def _turn_over(self, now: float) -> None:
        """Another spell is the last one."""
        spell = int(now // _SPELL)
        self._before.update(self._now)
        self._begin, self._now = spell * _SPELL, {}
        self._recent.append((spell, self._now))

    def refused(self, kind: Kind, refusal: Refusal, now: float) -> None:
        """One more of `kind`, told to the client as `refusal`."""
        self.count(kind, now, refusal.code if kind == "rejected" else "")
        self.last_refusal = LastRefusal(refusal, now)

    def total(self) -> Counts:
        return _counts(self._before + Counter(self._now))

    def recent(self, now: float) -> Counts:
        """Counts of the last ten minutes."""
        oldest = int(now // _SPELL) - BUCKETS
        merged: Counter[_Key] = Counter()
        for spell, counts in self._recent:
            if spell > oldest:
                merged.update(counts)
        return _counts(merged)


def _counts(counts: Counter[_Key]) -> Counts:
    if not counts:
        return _NOTHING  # of the many tenants that a pool may have, most are idle
    return Counts(
        admitted=counts["admitted"],
        rejected=_by_code(counts, "rejected"),
        would_reject=_by_code(counts, "would_reject"),
        evicted=counts["evicted"],
        ended=counts["ended"],
        guarantee_missed=counts["guarantee_missed"],
        prompt_tokens=counts["prompt_tokens"],
        cached_tokens=counts["cached_tokens"],
    )


def _by_code(counts: Counter[_Key], kind: Kind) -> dict[str, int]:
    coded = [(key[1], count) for key, count in counts.items() if isinstance(key, tuple) and key[0] == kind]
    return dict(sorted(coded))
