"""A card as a bar of characters. Pure.

Invariants:

1. The bar is exactly as wide as asked; every part that is not empty has at least one character, as far as there are
   enough of them.
2. A card that is too full is drawn to its overflow: the mark says where the card ends.
"""

from __future__ import annotations

from collections.abc import Sequence


def widths(sizes: Sequence[int], columns: int) -> tuple[int, ...]:
    """Characters of each part, `columns` together: by size, the largest parts giving way to the very small ones."""
    total = sum(sizes)
    if total <= 0:
        return tuple(0 for _ in sizes)
    shares = [max(1 if size else 0, size * columns // total) for size in sizes]
    while sum(shares) > columns and max(shares) > 0:
        shares[shares.index(max(shares))] -= 1
    by_rest = sorted(range(len(sizes)), key=lambda each: (-(sizes[each] * columns % total), each))
    for each in by_rest[: columns - sum(shares)]:
        shares[each] += 1
    return tuple(shares)


def end_of_card(card: int, total: int, columns: int) -> int | None:
    """How many characters of a bar of `total` bytes are on the card; None where all are."""
    return None if total <= card else card * columns // total
