"""From what was seen to the figures, and how these stand to what is aimed at. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

BAND: Final = 0.99  # of a marker: the operator need not write a difference of one percent


@dataclass(frozen=True, slots=True)
class Step:
    """A moment at which a number of one quota became another one in all pods of its pool."""

    quota: str
    pool: int
    at: float
    marker: int


def p95(values: Sequence[float]) -> float | None:
    """The 95th percentile, the larger one between two; None of nothing."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * 0.95) - 1] if ordered else None


def observed_after(step: Step, answered: Sequence[Sequence[float]]) -> float:
    """Seconds until every pod had told the new number; `answered`: when each pod of the pool told its numbers."""
    latest = 0.0
    for times in answered:
        place = bisect_left(times, step.at)
        latest = max(latest, times[place] - step.at if place < len(times) else math.inf)
    return latest


def shown_after(step: Step, shown: Sequence[tuple[float, int]], pods: int) -> float:
    """Seconds until a status showed the new number or a later one; markers only grow."""
    wanted = step.marker * pods * BAND
    return next((at - step.at for at, value in shown if at >= step.at and value >= wanted), math.inf)


def peak_per_second(writes: Sequence[float]) -> int:
    """The most writes within any second."""
    first, most = 0, 0
    for place, at in enumerate(writes):
        while writes[first] <= at - 1:
            first += 1
        most = max(most, place - first + 1)
    return most


AIMS: Final[Mapping[str, float]] = {
    "observedP95Seconds": 5.0,
    "statusP95Seconds": 15.0,
    "statusWritesPerSecondPeak": 20.0,
    "statusWritesPerSecondIdle": 0.0,
    "editInForce250PodsSeconds": 5.0,
    "editOfAPoolQuotaInForceSeconds": 5.0,
    "cpuCores": 0.5,
    "rssMiB": 300.0,
    "coldStartSeconds": 30.0,
}
"""At most, at 5,000 pods, 200 quotas and 20 pools on a machine that does nothing else."""

QUIET_CORES: Final = 0.1  # of the machine that others take: more, and a figure may be theirs


def table(found: Mapping[str, Any]) -> str:
    """For people: every figure beside what it is to be at most."""
    lines = [f"{'':30} {'measured':>10}  at most"]
    missed = _missed(found)
    for name, bound in AIMS.items():
        figure = found[name]
        text, verdict = ("-", "") if figure is None else (f"{figure:.2f}", "MISSED" if name in missed else "met")
        lines.append(f"{name:30} {text:>10}  {bound:<8g} {verdict}")
    return "\n".join(lines)


def judged(found: Mapping[str, Any]) -> str:
    """What is wrong, in one line; empty where every aim that was measured is met."""
    missed = _missed(found)
    if not missed:
        return ""
    named = ", ".join(f"{name} is {found[name]:.2f} (at most {AIMS[name]:g})" for name in missed)
    others = max(found[window]["cores"]["strangers"] for window in ("steady", "idle"))
    if others > QUIET_CORES:
        return f"hint only, as others took {others:.2f} of the cores: {named}"
    return f"MISSED: {named}"


def _missed(found: Mapping[str, Any]) -> list[str]:
    return [name for name, bound in AIMS.items() if found[name] is not None and found[name] > bound]
