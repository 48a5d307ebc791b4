"""The engine's loop: plan a step, let its time pass, hand out what it produced."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kvquota_fakeengine.blocks import BlockPool
from kvquota_fakeengine.clock import Clock
from kvquota_fakeengine.misbehaviour import Faults
from kvquota_fakeengine.scheduling import Scheduler, Step
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
    scheduler: Scheduler = field(init=False)
    started_at: float = field(init=False)
    _queues: dict[str, asyncio.Queue[Emission]] = field(default_factory=dict)
    _work: asyncio.Event = field(default_factory=asyncio.Event)
    _releases: asyncio.TaskGroup | None = None

    def __post_init__(self) -> None:
        self.started_at = self.clock.time()
        self.scheduler = Scheduler(
            pool=BlockPool(self.settings.blocks),
            block_tokens=self.settings.block_tokens,
            max_sequences=self.settings.max_sequences,
            max_batched_tokens=self.settings.max_batched_tokens,
            by_priority=self.settings.by_priority,
        )

    async def run(self) -> None:
        """Work for ever. Sequences that stall or wait for room that nobody gives back cost no time."""
        async with asyncio.TaskGroup() as releases:
            self._releases = releases
            try:
                await self._step_for_ever()
            finally:
                self._releases = None

    async def _step_for_ever(self) -> None:
        while True:
            step = self.scheduler.plan_step()
            if not step.scheduled:
                self._work.clear()
                await self._work.wait()
                continue
            await self.clock.sleep(self._duration(step))
            for emission in self.scheduler.finish_step(step):
                self._queues[emission.key].put_nowait(emission)

    @asynccontextmanager
    async def generate(self, request_id: str, works: Sequence[Work]) -> AsyncIterator[Generation]:
        """Have the sequences produced; whichever is unfinished when the block is left is aborted."""
        queue: asyncio.Queue[Emission] = asyncio.Queue()  # bounded by the output that the request asks for
        keys = tuple(f"{request_id}-{index}" for index in range(len(works)))
        for key, work in zip(keys, works, strict=True):
            self._queues[key] = queue
            self.scheduler.submit(key, work)
        self._work.set()
        try:
            yield Generation(keys, queue)
        finally:
            for key in keys:
                self._end(key)
            self._work.set()

    def stall(self, generation: Generation, *, stalled: bool) -> None:
        """Make the request's sequences hold what they have without progress, or go on."""
        for key in generation.keys:
            self.scheduler.stall(key, stalled=stalled)
        self._work.set()

    def _duration(self, step: Step) -> float:
        """Seconds: the prompt tokens of the step one after the other, one token of every answer at once."""
        decoding = 1 / self.settings.decode_rate if step.decodes else 0.0
        return step.prefill_tokens / self.settings.prefill_rate + decoding

    def _end(self, key: str) -> None:
        del self._queues[key]
        delay = self.faults.current.freeing_delay_seconds
        if delay is None:
            delay = self.settings.freeing_delay_seconds
        ran = self.scheduler.abort(key, linger=delay > 0)
        if ran and delay > 0 and self._releases is not None:
            self._releases.create_task(self._release_after(key, delay))

    async def _release_after(self, key: str, seconds: float) -> None:
        await self.clock.sleep(seconds)
        self.scheduler.release(key)
        self._work.set()
