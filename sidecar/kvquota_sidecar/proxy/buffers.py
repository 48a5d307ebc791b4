"""How many bytes of requests are held in memory, and for whom.

Decides whether that is too much. Pure.

Invariants:

1. Together no more than the limit is held, plus what one read of every connection brings.
2. One owner holds half of it at most, so that another finds room; but one body always fits.
3. Who holds nothing costs nothing.

Bytes without an owner count in the total only: of heads, before anybody is known; of a tenant that is alone.
"""

from __future__ import annotations


class Buffers:
    """`limit_bytes`: of all together. `one_body_bytes`: of the largest body that is taken."""

    def __init__(self, limit_bytes: int, one_body_bytes: int) -> None:
        self.total_bytes = 0
        self._limit_bytes = limit_bytes
        self._most_of_one = max(limit_bytes // 2, one_body_bytes)
        self._by_owner: dict[str, int] = {}

    @property
    def owners(self) -> int:
        """How many hold something."""
        return len(self._by_owner)

    def change(self, owner: str | None, by_bytes: int) -> None:
        """`owner` holds so many more, or less."""
        self.total_bytes += by_bytes
        if owner is None:
            return
        left = self._by_owner.pop(owner, 0) + by_bytes
        if left:
            self._by_owner[owner] = left

    def are_over(self, owner: str | None) -> bool:
        """Whether more is held than may be, by all together or by `owner`."""
        of_one = 0 if owner is None else self._by_owner.get(owner, 0)
        return self.total_bytes > self._limit_bytes or of_one > self._most_of_one
