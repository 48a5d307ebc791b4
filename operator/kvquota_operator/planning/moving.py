"""How far the parts of one total may move towards where they should be.

Decides what each pod's part is set to now, so that what is taken from one pod is given to another only when the first
no longer holds it. Pure.

Invariants:

1. The larger of part and holding, summed over all pods, is at most the total, or what the pods hold already where that
   is more: whichever pods follow and whichever do not, together they never pass the total by what is decided here.
2. A part shrinks at once: to hold less asks nobody. While more is held than there is, none grows.
3. What is free goes to the first pods that lack something, each as much as it lacks, and not less than `least` where
   that is not enough: crumbs serve no request, and every one of them would be a new config.
4. Where holdings have come down to the parts, the parts are the targets.

It does not know what a part is counted in, nor how anybody knows what is held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """One pod's part of the total: where it should be, the most that the pod may hold, and what it was given last."""

    target: int
    held: int
    given: int


def moved(parts: Sequence[Part], total: int, least: int) -> tuple[int, ...]:
    """The parts to set now, in the order of `parts`. Their targets sum to at most `total`."""
    free = total - sum(part.held for part in parts)
    if free < 0:
        return tuple(min(part.target, part.given) for part in parts)
    found = []
    for part in parts:
        growth = _growth(part.target - part.held, free, least)
        free -= growth
        found.append(min(part.target, part.held) + growth)
    return tuple(found)


def _growth(lacking: int, free: int, least: int) -> int:
    if lacking <= 0:
        return 0
    if lacking <= free:
        return lacking
    return free if free >= least else 0
