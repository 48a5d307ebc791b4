"""A coroutine in a thread and a loop of its own, which can neither hold up nor outlive what waits for it.

Invariants:

1. Whatever becomes of the coroutine, the loop that waits for it goes on.
2. Its end is told when nothing of it runs any more. A task that does not heed that it is cancelled is left behind after
   CLOSING_SECONDS.
3. A thread that hangs does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Thread
from typing import Any, Final

CLOSING_SECONDS: Final = 3.0  # what is cancelled has nothing to wait for but the last messages of its connections

Work = Callable[[asyncio.Event], Coroutine[Any, Any, None]]


async def apart(work: Work, *, stop_seconds: float) -> BaseException | None:
    """Run `work(stop)` apart until it ends. Returns the error it ended with; None where there was none.

    Cancelled, it sets `stop` and gives `work` at most `stop_seconds` to end.
    """
    home = asyncio.get_running_loop()
    ended: asyncio.Future[BaseException | None] = home.create_future()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def live() -> None:
        error = None
        try:
            error = _live(loop, work(stop))
        finally:
            with suppress(RuntimeError):  # nobody waits any more: the loop is closed
                home.call_soon_threadsafe(ended.set_result, error)

    Thread(target=live, name="apart", daemon=True).start()
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        with suppress(RuntimeError):  # it has just ended by itself
            loop.call_soon_threadsafe(stop.set)
        await asyncio.wait([ended], timeout=stop_seconds)
        raise


def _live(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> BaseException | None:
    task = loop.create_task(work)
    try:
        loop.run_until_complete(asyncio.wait([task]))
        loop.run_until_complete(_tidy())
    finally:
        loop.close()
    return None if task.cancelled() else task.exception()


async def _tidy() -> None:
    """As `asyncio.run` does at its end, which waits for ever for a task that does not end."""
    loop = asyncio.get_running_loop()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    generators = loop.create_task(loop.shutdown_asyncgens())
    await asyncio.wait([*left, generators], timeout=CLOSING_SECONDS)
