"""What a replica does with news of pools: it governs them while it leads, and keeps them in sight while it does not.

A replica that stands by has everything in memory that a pass looks at but the Secrets, so that it can take over without
listing anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from kvquota_operator.controller import PoolController
from kvquota_operator.reconcile.observed import PoolKey


class Sight(Protocol):
    """What is known of a cluster without a pass."""

    def keys(self) -> Iterable[PoolKey]:
        """All pools that are there, or that a quota names."""
        ...

    def follow(self, pool: PoolKey) -> None:
        """Watch what belongs to `pool` as it is now, or do no longer where it is gone. Writes nothing."""
        ...


class Duty:
    """`appoint` makes the controller of one term: what one remembers of a term before is not true any more."""

    def __init__(self, sight: Sight, appoint: Callable[[], PoolController]) -> None:
        self._sight = sight
        self._appoint = appoint
        self._controller: PoolController | None = None

    @property
    def controller(self) -> PoolController | None:
        """The controller that governs now; None on a replica that stands by."""
        return self._controller

    @property
    def longest_pass(self) -> float:
        """Seconds since the start of the oldest pass that has not ended; 0 when none is under way."""
        return self._controller.longest_pass() if self._controller else 0.0

    def touch(self, pool: PoolKey) -> None:
        """Something about `pool` may have changed."""
        if self._controller is None:
            self._sight.follow(pool)
        else:
            self._controller.touch(pool)

    async def lead(self) -> None:
        """Govern until cancelled. Raises (in an ExceptionGroup) only what is a bug."""
        controller = self._controller = self._appoint()
        try:
            for pool in list(self._sight.keys()):
                controller.touch(pool)
            await controller.run()
        finally:
            self._controller = None
