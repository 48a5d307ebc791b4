"""How often pods are asked and statuses written, so that neither grows without bound with their number.

Decides two periods from how many pods and statuses all pools have together. Invariants:

1. Small numbers change nothing: a pod is asked every `sync_seconds`, a status may be written every WRITE_SECONDS.
2. However many pods there are, at most SYNCS_PER_SECOND are asked in a second, on average over a period.
3. However many statuses differ all the time, each has its turn: after as long as all of them take.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from kvquota_operator.reconcile.writes import WRITE_SECONDS

SYNCS_PER_SECOND: Final = 1500.0  # 5,000 pods in 3.3 s, so that numbers are less than 5 s old, for a sixth of a core
STATUSES_PER_SECOND: Final = 18.0  # what an API server does not notice: as people see them come, below 20


@dataclass(frozen=True, slots=True)
class _Size:
    pods: int
    statuses: int


class Pacing:
    """`sync_seconds`: the shortest period of the channel. Pools say how large they are, in `counts`.

    `deciding`: held by the pool that decides.
    """

    def __init__(self, sync_seconds: float) -> None:
        self.deciding = asyncio.Lock()
        self._shortest = sync_seconds
        self._sizes: dict[Hashable, _Size] = {}
        self._sync_seconds = sync_seconds
        self._write_seconds = WRITE_SECONDS

    @property
    def sync_seconds(self) -> float:
        """Between two questions to the same pod."""
        return self._sync_seconds

    @property
    def write_seconds(self) -> float:
        """Between two writes of the status of one object, of which only numbers changed."""
        return self._write_seconds

    @property
    def pools(self) -> int:
        return len(self._sizes)

    def counts(self, pool: Hashable, pods: int, statuses: int) -> None:
        """A pool has so many pods and statuses now."""
        if self._sizes.get(pool) != _Size(pods, statuses):
            self._sizes[pool] = _Size(pods, statuses)
            self._reckon()

    def forget(self, pool: Hashable) -> None:
        """A pool is gone."""
        if self._sizes.pop(pool, None) is not None:
            self._reckon()

    def _reckon(self) -> None:
        pods = sum(size.pods for size in self._sizes.values())
        statuses = sum(size.statuses for size in self._sizes.values())
        self._sync_seconds = max(self._shortest, pods / SYNCS_PER_SECOND)
        # A status is written in the first pass after its time: on average half a period later.
        self._write_seconds = max(WRITE_SECONDS, statuses / STATUSES_PER_SECOND - self._sync_seconds / 2)


@dataclass(slots=True)
class _Entry:
    """One that entered: when it left, or entered where it has not left yet."""

    at: float


class Turns:
    """At most `per_second` in any second, in the order in which they came; evenly apart, but for `burst` after a rest.

    `at_once`: how many may be inside, so that what is slow leaves room for others. What is inside may happen at any
    moment until it leaves: what an API server held up counts in the second in which it is done.
    """

    def __init__(self, per_second: float, *, burst: int, at_once: int) -> None:
        self._inside = asyncio.Semaphore(at_once)
        self._seconds = 1 / per_second
        self._ahead = (burst - 1) * self._seconds
        self._next = 0.0
        self._most = max(1, int(per_second))
        self._lately: deque[_Entry] = deque(maxlen=self._most)
        self._entered: deque[_Entry] = deque()

    async def __aenter__(self) -> None:
        await self._inside.acquire()
        loop = asyncio.get_running_loop()
        turn = max(self._next, loop.time() - self._ahead)
        self._next = turn + self._seconds
        try:
            while (seconds := max(turn, self._free_at()) - loop.time()) > 0:  # noqa: ASYNC110 - it waits for a time
                await asyncio.sleep(seconds)
        except BaseException:
            self._inside.release()
            raise
        entry = _Entry(loop.time())
        self._lately.append(entry)
        self._entered.append(entry)

    def _free_at(self) -> float:
        """When another one is not too many for its second."""
        return self._lately[0].at + self._most * self._seconds if len(self._lately) == self._most else 0.0

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.popleft().at = asyncio.get_running_loop().time()
        self._inside.release()
