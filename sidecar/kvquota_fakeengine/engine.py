"""The engine: its ranks, which request goes to which of them, and what becomes of those whose clients go."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kvquota_fakeengine.clock import Clock
from kvquota_fakeengine.misbehaviour import Faults
from kvquota_fakeengine.ranks import Rank
from kvquota_fakeengine.scheduling import Scheduler
from kvquota_fakeengine.sequences import Emission, Work
from kvquota_fakeengine.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Generation:
    """The sequences of one request. `emissions` yields (sequence's index, token) until all have finished."""

    keys: tuple[str, ...]
    _queue: asyncio.Queue[Emission]

    async def emissions(self) -> AsyncIterator[tuple[int, Emission]]:
        index = {key: number for number, key in enumerate(self.keys)}
        while index:
            emission = await self._queue.get()
            yield index[emission.key], emission
            if emission.finish is not None:
                del index[emission.key]


@dataclass(slots=True)
class FakeEngine:
    """One life of the engine, from `started_at` (UTC seconds) until `run` is cancelled."""

    settings: EngineSettings
    clock: Clock
    faults: Faults
    ranks: tuple[Rank, ...] = field(init=False)
    started_at: float = field(init=False)
    _queues: dict[str, asyncio.Queue[Emission]] = field(default_factory=dict)
    _owners: dict[str, Rank] = field(default_factory=dict)
    _next: int = 0
    _releases: asyncio.TaskGroup | None = None

    def __post_init__(self) -> None:
        self.started_at = self.clock.time()
        self.ranks = tuple(Rank(self.settings, self.clock, self._queues) for _ in range(self.settings.ranks))

    @property
    def scheduler(self) -> Scheduler:
        """That of the first rank."""
        return self.ranks[0].scheduler

    @property
    def schedulers(self) -> tuple[Scheduler, ...]:
        return tuple(rank.scheduler for rank in self.ranks)

    async def run(self) -> None:
        """Work for ever."""
        async with asyncio.TaskGroup() as tasks:
            self._releases = tasks
            try:
                async with asyncio.TaskGroup() as ranks:
                    for rank in self.ranks:
                        ranks.create_task(rank.run())
            finally:
                self._releases = None

    @asynccontextmanager
    async def generate(
        self, request_id: str, works: Sequence[Work], rank: int | None = None
    ) -> AsyncIterator[Generation]:
        """Have the sequences produced, by this rank or by whichever has least to do; whichever is unfinished when the
        block is left is aborted."""
        queue: asyncio.Queue[Emission] = asyncio.Queue()  # bounded by the output that the request asks for
        keys = tuple(f"{request_id}-{index}" for index in range(len(works)))
        for key, work in zip(keys, works, strict=True):
            owner = self._least_loaded() if rank is None else self.ranks[rank]
            self._queues[key] = queue
            self._owners[key] = owner
            owner.scheduler.submit(key, work)
            owner.wake()
        try:
            yield Generation(keys, queue)
        finally:
            for key in keys:
                self._end(key)

    def stall(self, generation: Generation, *, stalled: bool) -> None:
        """Make the request's sequences hold what they have without progress, or go on."""
        for key in generation.keys:
            owner = self._owners[key]
            owner.scheduler.stall(key, stalled=stalled)
            owner.wake()

    def _least_loaded(self) -> Rank:
        """Of those with equally little to do the one after that which was chosen last."""
        order = [*self.ranks[self._next :], *self.ranks[: self._next]]
        chosen = min(order, key=lambda rank: rank.load)
        self._next = (self.ranks.index(chosen) + 1) % len(self.ranks)
        return chosen

    def _end(self, key: str) -> None:
        del self._queues[key]
        owner = self._owners.pop(key)
        if self.faults.current.aborts_lost:
            return
        delay = self.faults.current.freeing_delay_seconds
        if delay is None:
            delay = self.settings.freeing_delay_seconds
        ran = owner.scheduler.abort(key, linger=delay > 0)
        if ran and delay > 0 and self._releases is not None:
            self._releases.create_task(self._release_after(owner, key, delay))
        owner.wake()

    async def _release_after(self, owner: Rank, key: str, seconds: float) -> None:
        await self.clock.sleep(seconds)
        owner.scheduler.release(key)
        owner.wake()
