"""A limit that holds over all pods together, spread over them.

Decides each pod's part of one total, as level as bounds allow. Pure.

Invariants:

1. The parts sum to the smaller of the total and the last bound: spreading creates nothing and loses nothing.
2. No bound is passed while another pod is below it: what does not fit on one pod goes to the others.
3. Parts that no bound holds differ by at most 1; the remainder goes to the first ones.
4. Every part that is not 0 can be at least `least`, unless the total itself is less: then one pod has all of it.

It does not know which pods there are, nor who uses how much where.
"""

from __future__ import annotations

from collections.abc import Sequence


def pods_served(total: int, least: int, pods: int) -> int:
    """How many of `pods` get a part when each part is at least `least` (1 or more): at least one, at most all."""
    return max(1, min(pods, total // least))


def filled(total: int, bounds: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Parts of `total` (0 or more): first of each pod what the first bound says, then the next, the lowest first.

    Each of `bounds` has a number for every pod, none less than in the bound before it, all at least 0.
    """
    low: Sequence[int] = [0] * len(bounds[0])
    for high in bounds:
        together = sum(high)
        if together > total:
            return _leveled(total, low, high)
        low = high
        if together == total:
            break
    return tuple(low)


def _leveled(total: int, lows: Sequence[int], highs: Sequence[int]) -> tuple[int, ...]:
    """All as near to one level as their bounds allow; `total` is between the sums of those."""

    def parts(level: int) -> list[int]:
        return [low if level < low else high if level > high else level for low, high in zip(lows, highs, strict=True)]

    level, above = 0, max(highs) + 1  # the highest level whose parts sum to at most the total lies from here to there
    while above - level > 1:
        middle = (level + above) // 2
        if sum(parts(middle)) <= total:
            level = middle
        else:
            above = middle
    found = parts(level)
    left = total - sum(found)
    for pod, part in enumerate(found):
        if left and part == level < highs[pod]:
            found[pod] += 1
            left -= 1
    return tuple(found)
