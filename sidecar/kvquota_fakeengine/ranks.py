"""One data-parallel rank: a scheduler with a pool of its own, and the loop that steps it."""

import asyncio
from dataclasses import dataclass, field

from kvquota_fakeengine.blocks import BlockPool
from kvquota_fakeengine.clock import Clock
from kvquota_fakeengine.scheduling import Scheduler, Step
from kvquota_fakeengine.sequences import Emission
from kvquota_fakeengine.settings import EngineSettings


def new_scheduler(settings: EngineSettings) -> Scheduler:
    """A scheduler with an empty pool."""
    return Scheduler(
        pool=BlockPool(settings.blocks),
        block_tokens=settings.block_tokens,
        max_sequences=settings.max_sequences,
        max_batched_tokens=settings.max_batched_tokens,
        by_priority=settings.by_priority,
    )


@dataclass(slots=True, eq=False)
class Rank:
    """`queues` has where the emissions of each sequence go, by its key; nobody wants those of others."""

    settings: EngineSettings
    clock: Clock
    queues: dict[str, asyncio.Queue[Emission]]
    scheduler: Scheduler = field(init=False)
    _work: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.scheduler = new_scheduler(self.settings)

    @property
    def load(self) -> int:
        """Sequences that run or wait."""
        return len(self.scheduler.running) + len(self.scheduler.waiting)

    def wake(self) -> None:
        """Something may be done that could not be done before."""
        self._work.set()

    async def run(self) -> None:
        """Step for ever. Sequences that stall or wait for room that nobody gives back cost no time."""
        while True:
            step = self.scheduler.plan_step()
            if not step.scheduled:
                self._work.clear()
                await self._work.wait()
                continue
            await self.clock.sleep(self._duration(step))
            for emission in self.scheduler.finish_step(step):
                if emission.key in self.queues:
                    self.queues[emission.key].put_nowait(emission)

    def _duration(self, step: Step) -> float:
        """Seconds: the prompt tokens of the step one after the other, one token of every answer at once."""
        decoding = 1 / self.settings.decode_rate if step.decodes else 0.0
        return step.prefill_tokens / self.settings.prefill_rate + decoding
