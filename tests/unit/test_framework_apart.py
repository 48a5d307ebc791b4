"""A coroutine in a loop of its own: how it ends, and that it holds up nobody."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from kvquota_operator.handlers import apart as apart_module
from kvquota_operator.handlers.apart import apart


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "apart"]


async def gone() -> None:
    for each in threads():
        await asyncio.to_thread(each.join, 5)
    assert not threads()


async def test_an_end_without_an_error_is_none() -> None:
    where = []

    async def work(_: asyncio.Event) -> None:
        where.append(threading.current_thread().name)

    assert await apart(work, stop_seconds=1) is None
    assert where == ["apart"]
    await gone()


def raising(error: BaseException) -> Callable[[asyncio.Event], Coroutine[Any, Any, None]]:
    async def work(_: asyncio.Event) -> None:
        raise error

    return work


async def test_an_error_is_returned() -> None:
    bug = ZeroDivisionError("x")
    assert await apart(raising(bug), stop_seconds=1) is bug


async def test_work_that_cancels_itself_has_just_ended() -> None:
    assert await apart(raising(asyncio.CancelledError()), stop_seconds=1) is None


async def cancelled(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]], stop_seconds: float) -> float:
    """Seconds that it takes to end."""
    running = asyncio.create_task(apart(work, stop_seconds=stop_seconds))
    await asyncio.sleep(0.1)
    start = time.monotonic()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return time.monotonic() - start


async def test_work_that_is_cancelled_is_told_to_stop_and_waited_for() -> None:
    lines = []

    async def work(stop: asyncio.Event) -> None:
        await stop.wait()
        await asyncio.sleep(0.1)
        lines.append("stopped")

    await cancelled(work, 5)
    assert lines == ["stopped"]
    await gone()


async def test_work_that_is_cancelled_before_it_runs_ends_too() -> None:
    async def work(stop: asyncio.Event) -> None:
        await stop.wait()

    running = asyncio.create_task(apart(work, stop_seconds=5))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await gone()


async def test_a_thread_that_hangs_holds_up_nobody() -> None:
    release = threading.Event()

    async def work(_: asyncio.Event) -> None:
        release.wait()

    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    beating = asyncio.create_task(beat())
    assert 0.2 <= await cancelled(work, 0.2) < 2
    beating.cancel()
    assert beats >= 10, "the loop went on"
    [thread] = threads()
    assert thread.daemon, "it does not keep the process alive"
    release.set()
    await gone()


async def test_what_is_left_of_the_work_is_cancelled() -> None:
    lines: list[str] = []

    async def left() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            lines.append("cancelled")

    async def work(_: asyncio.Event) -> None:
        task = asyncio.create_task(left())
        await asyncio.sleep(0)
        assert not task.done()

    assert await apart(work, stop_seconds=1) is None
    assert lines == ["cancelled"]


async def test_what_does_not_heed_that_it_is_cancelled_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(apart_module, "CLOSING_SECONDS", 0.1)

    async def stubborn() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    async def work(_: asyncio.Event) -> None:
        task = asyncio.create_task(stubborn(), name="stubborn")
        await asyncio.sleep(0)
        assert not task.done()

    start = time.monotonic()
    assert await apart(work, stop_seconds=1) is None
    assert time.monotonic() - start < 2
    gc.collect()
    assert [each.getMessage().splitlines()[0] for each in caplog.records] == ["Task was destroyed but it is pending!"]
    await gone()
