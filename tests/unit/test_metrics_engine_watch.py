"""The engine as it was last seen."""

import asyncio

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.usage import EngineUsage
from kvquota_sidecar.engines.fetching import EngineUnavailableError
from kvquota_sidecar.engines.watching import EngineWatch
from kvquota_sidecar.ledger.asking import EngineSample
from kvquota_sidecar.telemetry.tally import Tally
from sidecar_rig import ManualClock, eventually

SAMPLE = EngineSample(blocks=Blocks(10), block_tokens=Tokens(16), used_blocks=Blocks(4), running=2, waiting=1)


class Script:
    """A sampler that says one thing after the other, and the last one for ever."""

    def __init__(self, *steps: EngineSample | EngineUnavailableError | None) -> None:
        self.steps = list(steps)
        self.taken = 0

    async def sample(self) -> EngineSample | None:
        self.taken += 1
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, EngineUnavailableError):
            raise step
        return step


def watch_of(
    script: Script, clock: ManualClock, period: float = 3600.0
) -> tuple[EngineWatch, list[EngineSample], Tally]:
    observed: list[EngineSample] = []
    tally = Tally()
    return EngineWatch(script, observed.append, tally, clock, period), observed, tally


async def test_what_was_seen_grows_old_and_stays() -> None:
    clock = ManualClock()
    watch, observed, tally = watch_of(Script(SAMPLE, EngineUnavailableError("refused"), None), clock)
    assert watch.usage() == EngineUsage()
    await watch.take()
    clock.now += 2.5
    seen = EngineUsage(state="Ready", blocks=10, block_tokens=16, used_blocks=4, running=2, waiting=1, age_seconds=2.5)
    assert watch.usage() == seen
    await watch.take()
    assert (watch.usage().state, watch.trouble, watch.usage().age_seconds) == ("Down", "refused", 2.5)
    await watch.take()
    assert (watch.usage(), watch.trouble) == (seen, "")
    assert observed == [SAMPLE]
    assert (tally.samples_taken, tally.samples_failed) == (2, 1)


async def test_it_looks_again_after_its_period() -> None:
    script = Script(SAMPLE)
    watch, _, _ = watch_of(script, ManualClock(), period=0.001)
    running = asyncio.create_task(watch.run())
    await eventually("it has looked three times", lambda: script.taken >= 3)
    running.cancel()


async def test_it_looks_at_once_when_it_is_poked() -> None:
    script = Script(SAMPLE)
    watch, _, _ = watch_of(script, ManualClock())
    running = asyncio.create_task(watch.run())
    await eventually("it has looked", lambda: script.taken == 1)
    watch.poke()
    await eventually("it has looked again", lambda: script.taken == 2)
    watch.poke()
    await eventually("it has looked once more", lambda: script.taken == 3)
    running.cancel()
