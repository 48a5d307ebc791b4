"""When a status is written.

Decides whether a wanted status differs from the stored one by more than noise, and how long it may wait. Pure.

Invariants:

1. A condition that turns, or another generation that is spoken of, is written at once; but of one object only one such
   write in WRITE_SECONDS comes before its turn, so that a condition that flickers is no storm.
2. Everything else waits until WRITE_SECONDS after the last write of the same object.
3. A gauge within its dead band is no difference. What differs is always measured against what is stored, so that a
   gauge never drifts further than its band from what people see.
4. To nothing, from nothing, to absent and from absent is always a difference: absent is not zero.

It does not know how a status is written, nor by whom the stored one was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final

WRITE_SECONDS: Final = 5.0  # between two writes of one object: a person reads no faster, 100 objects cost 20 writes/s
DEAD_BAND: Final = 0.01  # of the capacity for an amount, of itself for a count: what a person would not act on
PERCENT_BAND: Final = 1  # percent points, for what is a percent already

_AMOUNTS: Final = frozenset({"reserved", "used", "overSoft", "cached", "unattributed", "reservedUnused"})
_COUNTS: Final = frozenset({"inFlight", "recent"})
_PERCENTS: Final = frozenset({"pressurePercent", "prefixHitRatePercent"})
_ABSENT: Final = object()

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """When the status of one object was last written, and last written before its turn, in seconds on one clock."""

    at: float = -inf
    early_at: float = -inf

    def again(self, now: float) -> Written:
        """As it is after a write at `now`."""
        return Written(now, now if now - self.at < WRITE_SECONDS else self.early_at)


NEVER: Final = Written()  # since the start


def due(
    stored: Mapping[str, Any], wanted: Mapping[str, Any], written: Written, now: float, seconds: float = WRITE_SECONDS
) -> bool:
    """Whether `wanted` is to be written over `stored` now. `seconds`: between two writes in turn."""
    if not differs(stored, wanted):
        return False
    turned = _answers(stored) != _answers(wanted)
    return now - written.early_at >= WRITE_SECONDS if turned else now - written.at >= seconds


def _answers(status: Mapping[str, Any]) -> tuple[object, ...]:
    listed = status.get("conditions")
    conditions = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    answers = {str(each.get("type")): (each.get("status"), each.get("reason")) for each in conditions}
    return status.get("observedGeneration"), answers


def differs(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether `wanted` says something else than `stored`, noise aside."""
    before, after = dict(_leaves(stored)), dict(_leaves(wanted))
    capacity = _capacity(after)
    return any(
        not _alike(path, before.get(path, _ABSENT), after.get(path, _ABSENT), capacity)
        for path in before.keys() | after.keys()
    )


def _leaves(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(each, (*path, str(key)))
    else:
        yield path, value


def _capacity(leaves: Mapping[Path, object]) -> dict[str, object]:
    """What an amount's blocks and tokens are measured against: the tenant's hard, or the pool's measured KV cache."""
    sources = (("hard",), ("kv", "measured"), ("kv", "cap"))
    return {
        unit: next((leaves[(*source, unit)] for source in sources if (*source, unit) in leaves), 0)
        for unit in ("blocks", "tokens")
    }


def _alike(path: Path, before: object, after: object, capacity: Mapping[str, object]) -> bool:
    if before == after:
        return True
    band = _band(path, before, capacity)
    if band is None or not isinstance(before, int) or not isinstance(after, int) or 0 in (before, after):
        return False
    return abs(before - after) <= band


def _band(path: Path, before: object, capacity: Mapping[str, object]) -> float | None:
    if not _AMOUNTS.isdisjoint(path):
        return _part(capacity.get(path[-1]))
    if not _COUNTS.isdisjoint(path):
        return _part(before)
    return PERCENT_BAND if path[-1] in _PERCENTS else None


def _part(whole: object) -> float:
    return whole * DEAD_BAND if isinstance(whole, int) else 0.0
