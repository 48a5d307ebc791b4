"""The engine as it was last seen."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

import virtual_time
from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.usage import EngineRecent, EngineUsage
from kvquota_sidecar.engines.aborts import GRACE_SECONDS, PATIENCE_SECONDS, Load
from kvquota_sidecar.engines.fetching import EngineUnavailableError
from kvquota_sidecar.engines.watching import EngineWatch
from kvquota_sidecar.ledger.asking import EngineSample
from kvquota_sidecar.telemetry.tally import Tally

SAMPLE = EngineSample(
    blocks=Blocks(10), block_tokens=Tokens(16), used_blocks=Blocks(4), running=2, waiting=1, started_at=1.0
)
START = 1000.0  # of virtual time


class Script:
    """A sampler that says one thing after the other, and the last one for ever; each takes it `seconds`."""

    rest_seconds = 0.0

    def __init__(self, *steps: EngineSample | EngineUnavailableError | None, seconds: float = 0.0) -> None:
        self.steps = list(steps)
        self.seconds = seconds
        self.begun: list[float] = []
        self.under_way = self.most_under_way = 0

    async def sample(self) -> EngineSample | None:
        self.begun.append(round(now() - START, 3))
        self.under_way += 1
        self.most_under_way = max(self.under_way, self.most_under_way)
        await asyncio.sleep(self.seconds)
        self.under_way -= 1
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, EngineUnavailableError):
            raise step
        return step


def now() -> float:
    return asyncio.get_running_loop().time()


def watch_of(script: Script, observed: Callable[[EngineSample], None] = lambda _: None, **more: Any) -> EngineWatch:
    """A watch that looks every second."""
    return EngineWatch(script, observed, more.pop("tally", Tally()), now, 1.0, **more)


def begun(
    script: Script, seconds: float, *events: tuple[float, Callable[[EngineWatch], None]], **more: Any
) -> list[float]:
    """When the samples of so many seconds began; at each event's second something is done to the watch."""

    async def scene() -> None:
        watch = watch_of(script, **more)
        running = asyncio.create_task(watch.run())
        for at, act in events:
            await asyncio.sleep(START + at - now())
            act(watch)
        await asyncio.sleep(START + seconds - now())
        running.cancel()

    virtual_time.run(scene())
    return script.begun


def test_an_engine_that_wants_to_be_left_alone_is_also_while_somebody_waits() -> None:
    script = Script(SAMPLE, seconds=0.25)
    script.rest_seconds = 1.5
    assert begun(script, 5.0, hurried=lambda: True) == [0.0, 1.75, 3.5]


# What it tells


def test_what_was_seen_grows_old_and_stays() -> None:
    observed: list[EngineSample] = []
    tally = Tally()

    async def scene() -> None:
        watch = watch_of(Script(SAMPLE, EngineUnavailableError("refused"), None), observed.append, tally=tally)
        assert watch.usage() == EngineUsage(age_seconds=0.0)
        await watch.take()
        await asyncio.sleep(2.5)
        seen = EngineUsage(
            state="Ready", blocks=10, block_tokens=16, used_blocks=4, running=2, waiting=1, age_seconds=2.5
        )
        assert watch.usage() == seen
        await watch.take()
        assert (watch.usage().state, watch.trouble, watch.usage().age_seconds) == ("Down", "refused", 2.5)
        await watch.take()
        assert (watch.usage(), watch.trouble) == (seen, "")

    virtual_time.run(scene())
    assert observed == [SAMPLE]
    assert (tally.samples_taken, tally.samples_failed) == (2, 1)


def test_an_engine_that_was_never_seen_is_down_for_as_long_as_it_was_looked_for() -> None:
    async def scene() -> None:
        watch = watch_of(Script(*[EngineUnavailableError("refused")] * 2))
        await asyncio.sleep(9.5)
        await watch.take()
        assert watch.usage() == EngineUsage(state="Down", age_seconds=9.5)
        await asyncio.sleep(1)
        assert watch.usage() == EngineUsage(state="Down")

    virtual_time.run(scene())


def test_a_metric_that_vanishes_is_told_once_and_is_missing_from_the_report() -> None:
    silent: list[tuple[str, ...]] = []
    renamed = EngineSample(blocks=Blocks(10), block_tokens=Tokens(16), running=2, waiting=1, started_at=1.0)

    async def scene() -> None:
        watch = watch_of(Script(SAMPLE, renamed, renamed, None, SAMPLE), silent=silent.append)
        await watch.take()
        assert (watch.unsaid, watch.usage().used_blocks) == ((), 4)
        await watch.take()
        assert (watch.unsaid, watch.usage().used_blocks, watch.usage().running) == (("used_blocks",), None, 2)
        for _ in range(3):
            await watch.take()
        assert watch.usage().used_blocks == 4

    virtual_time.run(scene())
    everything = ("blocks", "block_tokens", "used_blocks", "running", "waiting", "started_at")
    assert silent == [("used_blocks",), everything, ()]


def test_an_engine_that_cannot_be_asked_is_not_one_that_is_silent() -> None:
    silent: list[tuple[str, ...]] = []

    async def scene() -> None:
        watch = watch_of(Script(SAMPLE, EngineUnavailableError("refused")), silent=silent.append)
        await watch.take()
        await watch.take()

    virtual_time.run(scene())
    assert silent == []


def test_lost_aborts_are_reported_once_they_are_proven() -> None:
    load = [Load(given=3, cut=0)]

    async def scene() -> list[bool | None]:
        watch = watch_of(Script(SAMPLE), load=lambda: load[0])
        told = [watch.usage().aborts_lost]
        running = asyncio.create_task(watch.run())
        await asyncio.sleep(3)
        told.append(watch.usage().aborts_lost)
        load[0] = Load(given=1, cut=2)
        await asyncio.sleep(PATIENCE_SECONDS + GRACE_SECONDS + 3)
        told.append(watch.usage().aborts_lost)
        running.cancel()
        return told

    assert virtual_time.run(scene()) == [None, False, True]


def test_what_the_engine_did_is_reported_from_the_first_look_on() -> None:
    samples = [replace(SAMPLE, finished=count, prompt_tokens=10 * count, cached_tokens=count) for count in (100, 130)]

    async def scene() -> list[EngineRecent]:
        watch = watch_of(Script(*samples), load=lambda: Load(given=3, cut=0, begun=3))
        told = [watch.usage().recent]
        for _ in samples:
            await watch.take()
            told.append(watch.usage().recent)
        return told

    assert virtual_time.run(scene()) == [
        EngineRecent(),
        EngineRecent(finished=0, foreign=0, prompt_tokens=0, cached_tokens=0),
        EngineRecent(finished=30, foreign=24, prompt_tokens=300, cached_tokens=30),
    ]


def test_without_a_count_of_what_the_engine_was_given_nothing_is_said_of_aborts() -> None:
    async def scene() -> bool | None:
        watch = watch_of(Script(SAMPLE))
        await watch.take()
        return watch.usage().aborts_lost

    assert virtual_time.run(scene()) is None


# When it looks


def test_it_looks_again_after_its_period_counted_from_the_look_before() -> None:
    assert begun(Script(SAMPLE, seconds=0.25), 3.5) == [0, 1, 2, 3]


def test_it_looks_every_tenth_of_a_second_while_somebody_waits() -> None:
    waiting = [False]

    def come(_: EngineWatch) -> None:
        waiting[0] = True

    def go(_: EngineWatch) -> None:
        waiting[0] = False

    looks = begun(Script(SAMPLE), 2.6, (0.34, come), (0.75, go), hurried=lambda: waiting[0])
    assert looks == [0, 0.4, 0.5, 0.6, 0.7, 1.7]


@pytest.mark.parametrize(
    ("seconds", "hurried", "looks"),
    [
        pytest.param(0.8, False, [0, 1.6, 3.2], id="longer than half its period"),
        pytest.param(1.5, False, [0, 3], id="longer than its period"),
        pytest.param(0.02, True, [round(0.1 * n, 1) for n in range(41)], id="in a hurry, and it is quick"),
        pytest.param(0.4, True, [0, 0.8, 1.6, 2.4, 3.2, 4.0], id="in a hurry, and it is slow"),
    ],
)
def test_a_slow_engine_has_as_long_a_rest_as_a_look_takes(seconds: float, hurried: bool, looks: list[float]) -> None:
    script = Script(SAMPLE, seconds=seconds)
    assert begun(script, 4.05, hurried=lambda: hurried) == looks
    assert script.most_under_way == 1


def test_two_who_look_at_the_same_time_look_one_after_the_other() -> None:
    script = Script(SAMPLE, seconds=0.5)

    async def scene() -> None:
        watch = watch_of(script)
        await asyncio.gather(watch.take(), watch.take())

    virtual_time.run(scene())
    assert (script.begun, script.most_under_way) == ([0, 0.5], 1)


def test_a_look_that_is_cancelled_is_over() -> None:
    script = Script(SAMPLE, seconds=60)

    def cancelled(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        asyncio.get_running_loop().call_later(1, task.cancel)
        return task

    async def scene() -> None:
        watch = watch_of(script)
        with pytest.raises(asyncio.CancelledError):
            await cancelled(watch.take())
        script.seconds = 0
        await watch.take()
        assert watch.state == "Ready"

    virtual_time.run(scene())
