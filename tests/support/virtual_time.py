"""Run a coroutine in time that jumps: whoever waits for a second waits for nothing, in the right order.

Only for code without sockets and threads. `run` fails where everybody waits for something that nobody will do.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")

START = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)


class NobodyActsError(AssertionError):
    """All tasks wait, and no timer runs."""


class _JumpingSelector(selectors.DefaultSelector):
    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise NobodyActsError("every task waits, and nothing is going to happen")
        self.now += timeout
        return []


class _JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = _JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now


class LoopClock:
    """The clock of the running loop, as the product's ports want it."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start."""
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        """UTC."""
        return START + timedelta(seconds=self.monotonic())


def pass_by(seconds: float) -> None:
    """Let time pass in which nothing else happens, as during a long computation."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _JumpingLoop)
    loop.jumping.now += seconds


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """What `coroutine` returns."""
    with asyncio.Runner(loop_factory=_JumpingLoop) as runner:
        return runner.run(coroutine)
