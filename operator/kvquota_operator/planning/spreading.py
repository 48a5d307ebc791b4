"""A limit that holds over all pods together, spread over them.

Decides each pod's part of one total: equal parts first. Pure.

Invariants:

1. The parts sum to the smaller of the total and what the pods have room for: spreading creates nothing.
2. No part is larger than its pod's room; what does not fit on one pod goes to the others.
3. Parts of pods with room enough differ by at most 1; the remainder goes to the first ones.
4. Every part that is not 0 is at least `least`, unless the total itself is less: then one pod has all of it.

It does not know which pods there are, nor who uses how much where.
"""

from __future__ import annotations

from collections.abc import Sequence


def pods_served(total: int, least: int, pods: int) -> int:
    """How many of `pods` get a part when each part is at least `least` (1 or more): at least one, at most all."""
    return max(1, min(pods, total // least))


def equal_parts(total: int, rooms: Sequence[int]) -> tuple[int, ...]:
    """Parts of `total` for pods with these rooms, in the same order; all at least 0."""
    parts = [0] * len(rooms)
    open_pods = list(range(len(rooms)))
    left = total
    while open_pods:
        part = left // len(open_pods)
        full = {pod for pod in open_pods if rooms[pod] <= part}
        if not full:
            break
        for pod in full:
            parts[pod] = rooms[pod]
        left -= sum(rooms[pod] for pod in full)
        open_pods = [pod for pod in open_pods if pod not in full]
    for position, pod in enumerate(open_pods):
        whole, remainder = divmod(left, len(open_pods))
        parts[pod] = whole + (1 if position < remainder else 0)
    return tuple(parts)
