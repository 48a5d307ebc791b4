"""The engine as it was last seen, and how long ago that is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kvquota_api.usage import EngineState, EngineUsage
from kvquota_sidecar.clock import Clock
from kvquota_sidecar.engines.fetching import EngineUnavailableError
from kvquota_sidecar.engines.port import EngineSampler
from kvquota_sidecar.ledger.asking import EngineSample
from kvquota_sidecar.telemetry.tally import Tally

# Seconds and sampling periods, the longer of both, after which the last numbers are told no more: a restart of the
# engine's metrics takes less, and whoever reads them wants to know that nobody measures.
BELIEVED_SECONDS: Final = 10.0
BELIEVED_PERIODS: Final = 5


class EngineWatch:
    """Takes a sample every `period_seconds`, or at once when poked; `observe` hears of every sample."""

    def __init__(
        self,
        sampler: EngineSampler,
        observe: Callable[[EngineSample], None],
        tally: Tally,
        clock: Clock,
        period_seconds: float,
    ) -> None:
        self._sampler = sampler
        self._observe = observe
        self._tally = tally
        self._clock = clock
        self._period_seconds = period_seconds
        self._poked = asyncio.Event()
        self._sample: EngineSample | None = None
        self._seen_at = 0.0
        self.state: EngineState = "Unknown"
        self.trouble = ""  # why the last sample failed

    def poke(self) -> None:
        """Take the next sample at once."""
        self._poked.set()

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await self.take()
            try:
                async with asyncio.timeout(self._period_seconds):
                    await self._poked.wait()
            except TimeoutError:
                pass
            self._poked.clear()

    async def take(self) -> None:
        """Take one sample."""
        try:
            sample = await self._sampler.sample()
        except EngineUnavailableError as error:
            self.state, self.trouble = "Down", str(error)
            self._tally.samples_failed += 1
            return
        self.state, self.trouble = "Ready", ""
        self._tally.samples_taken += 1
        if sample is not None:
            self._sample, self._seen_at = sample, self._clock()
            self._observe(sample)

    def usage(self) -> EngineUsage:
        """For the report; what was never seen, or so long ago that it says nothing, is missing.

        An engine that says no more what it said before is in state Unknown, also where it answers.
        """
        sample, age = self._sample, self._clock() - self._seen_at
        if sample is None:
            return EngineUsage(state=self.state)
        if age > max(BELIEVED_SECONDS, BELIEVED_PERIODS * self._period_seconds):
            return EngineUsage(state="Down" if self.state == "Down" else "Unknown")
        return EngineUsage(
            state=self.state,
            blocks=sample.blocks,
            block_tokens=sample.block_tokens,
            used_blocks=sample.used_blocks,
            running=sample.running,
            waiting=sample.waiting,
            age_seconds=round(age, 3),
        )
