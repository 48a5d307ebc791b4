"""The engine as it was last seen, and how long ago that is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kvquota_api.usage import EngineRecent, EngineState, EngineUsage
from kvquota_sidecar.clock import Clock
from kvquota_sidecar.engines.aborts import Aborts, Load
from kvquota_sidecar.engines.fetching import EngineUnavailableError
from kvquota_sidecar.engines.port import EngineSampler
from kvquota_sidecar.engines.recent import Recent
from kvquota_sidecar.engines.unsaid import unsaid
from kvquota_sidecar.ledger.asking import EngineSample
from kvquota_sidecar.telemetry.tally import Tally

# Seconds and sampling periods, the longer of both, after which the last numbers are told no more: a restart of the
# engine's metrics takes less, and whoever reads them wants to know that nobody measures.
BELIEVED_SECONDS: Final = 10.0
BELIEVED_PERIODS: Final = 5
HURRY_SECONDS: Final = 0.1  # between two samples while somebody waits for blocks: they are freed within a step or two


class EngineWatch:
    """Takes a sample every `period_seconds`, every HURRY_SECONDS while `hurried`.

    There is never more than one under way, and the engine rests between two for at least as long as one takes it, and
    for as long as its sampler says.
    `observe` hears of every sample; `silent` of what the engine does not say, whenever that changes. `load`: what the
    engine was given, None where nobody counts.
    """

    def __init__(
        self,
        sampler: EngineSampler,
        observe: Callable[[EngineSample], None],
        tally: Tally,
        clock: Clock,
        period_seconds: float,
        *,
        hurried: Callable[[], bool] = lambda: False,
        silent: Callable[[tuple[str, ...]], None] = lambda _: None,
        load: Callable[[], Load | None] = lambda: None,
    ) -> None:
        self._sampler = sampler
        self._observe = observe
        self._tally = tally
        self._clock = clock
        self._period_seconds = period_seconds
        self._hurried = hurried
        self._silent = silent
        self._load = load
        self._aborts = Aborts()
        self._aborts_lost: bool | None = None
        self._recent = Recent()
        self._did = EngineRecent()
        self._sampling = asyncio.Lock()
        self._sample: EngineSample | None = None
        self._seen_at = clock()  # or when this began
        self.state: EngineState = "Unknown"
        self.trouble = ""  # why the last sample failed
        self.unsaid: tuple[str, ...] = ()  # what the last answer left out

    async def run(self) -> None:
        """Sample until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await self.take()
            await self._rest(begun, took=loop.time() - begun)

    async def _rest(self, begun: float, took: float) -> None:
        """Until the next sample is due."""
        loop = asyncio.get_running_loop()
        while True:
            wait = HURRY_SECONDS if self._hurried() else self._period_seconds
            rest = max(took, self._sampler.rest_seconds)
            left = max(begun + wait, begun + took + rest) - loop.time()
            if left <= 0:
                return
            await asyncio.sleep(min(left, HURRY_SECONDS))

    async def take(self) -> None:
        """Take one sample, after the one that is under way."""
        async with self._sampling:
            before = self._load()
            try:
                sample = await self._sampler.sample()
            except EngineUnavailableError as error:
                self.state, self.trouble = "Down", str(error)
                self._tally.samples_failed += 1
                return
            self._took(sample, before)

    def _took(self, sample: EngineSample | None, before: Load | None) -> None:
        self.state, self.trouble = "Ready", ""
        self._tally.samples_taken += 1
        self._notice_silence(sample)
        if sample is None:
            return
        self._sample, self._seen_at = sample, self._clock()
        after = self._load()
        if before is not None and after is not None:
            self._aborts_lost = self._aborts.look(sample, before, after, self._seen_at)
            self._did = self._recent.look(sample, before, after, self._seen_at)
        self._observe(sample)

    def _notice_silence(self, sample: EngineSample | None) -> None:
        missing = unsaid(sample)
        if missing != self.unsaid:
            self.unsaid = missing
            self._silent(missing)

    def usage(self) -> EngineUsage:
        """For the report; what was never seen, or so long ago that it says nothing, is missing.

        Before it was ever seen the age is that of this watch, so that a silence of ten seconds can be told. An
        engine that says no more what it said before is in state Unknown, also where it answers.
        """
        sample, age = self._sample, self._clock() - self._seen_at
        is_old = age > max(BELIEVED_SECONDS, BELIEVED_PERIODS * self._period_seconds)
        if sample is None:
            waits = self.state != "Ready" and not is_old
            return EngineUsage(state=self.state, age_seconds=round(age, 3) if waits else None)
        if is_old:
            return EngineUsage(state="Down" if self.state == "Down" else "Unknown")
        return EngineUsage(
            state=self.state,
            blocks=sample.blocks,
            block_tokens=sample.block_tokens,
            used_blocks=sample.used_blocks,
            running=sample.running,
            waiting=sample.waiting,
            age_seconds=round(age, 3),
            aborts_lost=self._aborts_lost,
            recent=self._did,
        )
