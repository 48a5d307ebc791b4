"""How failures hold a target back, and what is remembered of them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

import virtual_time
from kvquota_operator.controller import Silent
from kvquota_operator.errands import FORGET_SECONDS, LONGEST_HOLD_SECONDS, Errands, Target
from kvquota_operator.ports import (
    ConflictError,
    ForbiddenError,
    NotOursError,
    PortError,
    RefusedError,
    TerminatingError,
    ThrottledError,
    TokenNotYetError,
    TokenRefusedError,
    UnreachableError,
    VanishedError,
)

TARGET = Target("Config", "uid-1")


def with_errands(story: Callable[[Errands], Awaitable[None]], *, at_once: int = 4) -> None:
    async def scene() -> None:
        async with asyncio.TaskGroup() as tasks:
            errands = Errands(
                pool="inference/llama-8b",
                tasks=tasks,
                clock=virtual_time.LoopClock(),
                telemetry=Silent(),
                limits={"Config": asyncio.Semaphore(at_once)},
                jitter=lambda: 1.0,
            )
            await story(errands)

    virtual_time.run(scene())


def test_failures_in_a_row_hold_back_twice_as_long_each_up_to_a_bound() -> None:
    async def story(errands: Errands) -> None:
        held = []
        for _ in range(12):
            errands.failed(TARGET, ConflictError("changed"))
            held.append(errands.next_try())
        assert held == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6] + [LONGEST_HOLD_SECONDS] * 4)

    with_errands(story)


@pytest.mark.parametrize(
    ("asked", "held"),
    [
        pytest.param(7.0, 7.0, id="what the other side asks for is kept"),
        pytest.param(0.01, 0.2, id="a shorter wish does not shorten the hold"),
        pytest.param(86_400.0, LONGEST_HOLD_SECONDS, id="a day is not waited"),
        pytest.param(None, 0.2, id="no wish is the first hold"),
    ],
)
def test_a_throttle_is_obeyed_within_bounds(asked: float | None, held: float) -> None:
    async def story(errands: Errands) -> None:
        errands.failed(TARGET, ThrottledError("slow down", retry_after=asked))
        assert errands.next_try() == pytest.approx(held)

    with_errands(story)


def test_a_held_target_is_not_started_and_others_are() -> None:
    async def story(errands: Errands) -> None:
        started: list[str] = []

        async def work(name: str) -> None:
            started.append(name)

        errands.failed(TARGET, ConflictError("changed"))
        errands.start(TARGET, lambda: work("held"))
        errands.start(Target("Config", "uid-2"), lambda: work("free"))
        await errands.settle(1.0)
        assert started == ["free"]
        errands.release(TARGET)
        errands.start(TARGET, lambda: work("released"))
        await errands.settle(1.0)
        assert started == ["free", "released"]

    with_errands(story)


def test_a_success_ends_the_hold_and_the_count() -> None:
    async def story(errands: Errands) -> None:
        for _ in range(5):
            errands.failed(TARGET, ConflictError("changed"))
        errands.succeeded(TARGET)
        assert errands.next_try() is None
        errands.failed(TARGET, ConflictError("changed"))
        assert errands.next_try() == pytest.approx(0.2)

    with_errands(story)


def test_a_hold_that_is_over_hastens_nothing_and_is_forgotten_in_the_end() -> None:
    async def story(errands: Errands) -> None:
        errands.failed(TARGET, ConflictError("changed"))
        await asyncio.sleep(1.0)
        assert errands.next_try() is None
        errands.failed(TARGET, ConflictError("changed"))
        assert errands.next_try() == pytest.approx(0.4)
        await asyncio.sleep(FORGET_SECONDS + 1.0)
        assert errands.next_try() is None
        errands.failed(TARGET, ConflictError("changed"))
        assert errands.next_try() == pytest.approx(0.2)

    with_errands(story)


def test_no_more_run_at_a_time_than_allowed() -> None:
    async def story(errands: Errands) -> None:
        running, most = 0, 0

        async def work() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(1.0)
            running -= 1

        for number in range(10):
            errands.start(Target("Config", str(number)), work)
        await errands.settle(60.0)
        assert (most, running) == (4, 0)

    with_errands(story)


def test_settling_waits_no_longer_than_told_and_only_for_what_is_new() -> None:
    async def story(errands: Errands) -> None:
        ended = asyncio.Event()

        async def work() -> None:
            await asyncio.sleep(10.0)
            ended.set()

        before = asyncio.get_running_loop().time()
        errands.start(TARGET, work)
        await errands.settle(0.5)
        assert asyncio.get_running_loop().time() - before == pytest.approx(0.5)
        errands.start(Target("Config", "uid-2"), lambda: asyncio.sleep(0.1))
        await errands.settle(60.0)
        assert asyncio.get_running_loop().time() - before == pytest.approx(0.6)
        await asyncio.sleep(10.0)
        assert ended.is_set()

    with_errands(story)


def test_a_failure_is_told_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    async def story(errands: Errands) -> None:
        for _ in range(3):
            errands.failed(TARGET, ConflictError("changed"))
        errands.succeeded(TARGET)
        errands.failed(Target("Config", "uid-2"), VanishedError("the pod is gone"))

    with caplog.at_level(logging.INFO, "kvquota_operator.errands"):
        with_errands(story)
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "inference/llama-8b: Config uid-1: changed (Conflict); trying again"),
        ("INFO", "inference/llama-8b: Config uid-1: works again"),
    ]


NOT_YET, REFUSED = TokenNotYetError("not yet"), TokenRefusedError("refused")
TERMINATING = TerminatingError("403: ... because it is being terminated")


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        pytest.param([NOT_YET, NOT_YET], ["INFO"], id="what passes by itself is told once, and is no warning"),
        pytest.param([TERMINATING, TERMINATING], ["INFO"], id="nor is the end of a namespace"),
        pytest.param([NOT_YET, REFUSED, REFUSED], ["INFO", "WARNING"], id="what gets worse is told once more"),
        pytest.param([REFUSED, NOT_YET], ["WARNING"], id="what gets better is not"),
    ],
)
def test_how_loud_a_failure_is(errors: list[PortError], told: list[str], caplog: pytest.LogCaptureFixture) -> None:
    async def story(errands: Errands) -> None:
        for error in errors:
            errands.failed(TARGET, error)

    with caplog.at_level(logging.INFO):
        with_errands(story)
    assert [each.levelname for each in caplog.records] == told


@pytest.mark.parametrize(
    ("errors", "refused"),
    [
        pytest.param([RefusedError("no")] * 2, None, id="twice may pass by itself"),
        pytest.param([RefusedError("no")] * 3, "no", id="three times does not"),
        pytest.param([UnreachableError("away")] * 9, None, id="nobody refuses what nobody heard"),
        pytest.param([ForbiddenError("no right")] * 3, "no right", id="a right that is missing"),
        pytest.param([NotOursError("theirs")] * 3, "theirs", id="an object of somebody else"),
        pytest.param([RefusedError("no")] * 3 + [UnreachableError("away")], None, id="the last word counts"),
    ],
)
def test_what_is_refused_again_and_again(errors: list[PortError], refused: str | None) -> None:
    async def story(errands: Errands) -> None:
        for error in errors:
            errands.failed(TARGET, error)
        assert errands.refusal(TARGET) == refused
        errands.succeeded(TARGET)
        assert errands.refusal(TARGET) is None

    with_errands(story)
