"""Time as the engine sees it: the machine's, or one that a test moves."""

import asyncio
import heapq
import itertools
import time
from dataclasses import dataclass, field
from typing import Protocol


class Clock(Protocol):
    """`time` is UTC seconds since 1970; `sleep` counts on the same line."""

    def time(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clock."""

    def time(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(slots=True)
class ManualClock:
    """A clock that stands still until somebody calls `advance`."""

    now: float = 1_000_000.0
    _sleepers: list[tuple[float, int, asyncio.Event]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), woken))
        await woken.wait()

    async def advance(self, seconds: float) -> None:
        """Move on by `seconds`, waking sleepers in order and letting each act before the next one wakes."""
        until = self.now + seconds
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= until:
            self.now, _, woken = heapq.heappop(self._sleepers)
            woken.set()
            await _settle()
        self.now = until


async def _settle() -> None:
    """Let every task that is ready run until it waits. Chains of tasks are short: ten turns of the loop are plenty."""
    for _ in range(10):
        await asyncio.sleep(0)
