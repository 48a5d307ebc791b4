"""What the passes over one pool set going: writes and syncs that may fail and may take long.

The one place where failures are mapped. Invariants:

1. A target is worked on at most once at a time: a slow one delays nobody else, and is not asked for again meanwhile.
2. A PortError holds its target back for 0.2 s, doubled with every failure in a row up to 30 s, or as long as the other
   side asks. Every other exception is a bug. It holds its target back in the same way, and nothing else: one object
   that nobody foresaw is no reason to leave all others alone.
3. A failure is logged when it starts, when it gets worse and when it is over, not every time in between; a bug each
   time, with where it happened.
4. What is remembered of failures is bounded: a target that nobody asks for any more is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

from kvquota_operator.logs import told
from kvquota_operator.ports import (
    Clock,
    ForbiddenError,
    NotOursError,
    PortError,
    RefusedError,
    Telemetry,
    TerminatingError,
    TokenNotYetError,
    VanishedError,
)

FIRST_HOLD_SECONDS: Final = 0.2  # a conflict is over as soon as the watch has delivered the newer object
LONGEST_HOLD_SECONDS: Final = 30.0  # how late, at worst, the operator notices that the other side is back
FORGET_SECONDS: Final = 2 * LONGEST_HOLD_SECONDS
REFUSALS: Final = 3  # failures in a row: rights and policies that were just changed are in force within a second
_FOR_GOOD: Final = (RefusedError, ForbiddenError, NotOursError)  # until somebody changes something
BUG: Final = "Bug"  # the reason of a failure that nobody foresaw

Jitter = Callable[[], float]  # from 0 to 1
Limit = AbstractAsyncContextManager[None]  # entered when it is an errand's turn, left when the errand has ended

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """What is worked on: `kind` as in Telemetry, `name` within the pool."""

    kind: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class _Hold:
    """`level`: the highest at which one of the failures was logged. `error`: the last of them."""

    failures: int
    until: float
    level: int
    error: Exception


class Errands:
    """Errands of one pool. `limits` bounds, by kind and over all pools, how many run at a time, or in a second."""

    def __init__(
        self,
        *,
        pool: str,
        tasks: asyncio.TaskGroup,
        clock: Clock,
        telemetry: Telemetry,
        limits: Mapping[str, Limit],
        jitter: Jitter,
    ) -> None:
        self._pool = pool
        self._tasks = tasks
        self._clock = clock
        self._telemetry = telemetry
        self._limits = limits
        self._jitter = jitter
        self._under_way: set[Target] = set()
        self._fresh: set[asyncio.Task[None]] = set()
        self._holds: dict[Target, _Hold] = {}

    def start(self, target: Target, work: Callable[[], Awaitable[None]]) -> None:
        """Set `work` going, unless its target is under way or held back."""
        if target in self._under_way or self.held(target):
            return
        task = self._tasks.create_task(self._run(target, work), name=f"{self._pool} {target}")
        self._under_way.add(target)
        self._fresh.add(task)

    async def settle(self, seconds: float) -> None:
        """Wait until all that was started since the last call has ended, at most `seconds`."""
        fresh, self._fresh = self._fresh, set()
        if fresh:
            await asyncio.wait(fresh, timeout=seconds)

    def held(self, target: Target) -> bool:
        hold = self._holds.get(target)
        return hold is not None and self._clock.monotonic() < hold.until

    def refusal(self, target: Target) -> str | None:
        """Why the API server refuses `target` again and again; None where it does not, as far as is known."""
        hold = self._holds.get(target)
        if hold is None or hold.failures < REFUSALS or not isinstance(hold.error, _FOR_GOOD):
            return None
        return str(hold.error)

    def release(self, target: Target) -> None:
        """Hold `target` back no longer: something changed that may have cured it."""
        self._holds.pop(target, None)

    def next_try(self) -> float | None:
        """Seconds until the first held target may be tried again; None when nothing is held."""
        now = self._clock.monotonic()
        self._holds = {target: hold for target, hold in self._holds.items() if now < hold.until + FORGET_SECONDS}
        return min((hold.until - now for hold in self._holds.values() if hold.until > now), default=None)

    def succeeded(self, target: Target) -> None:
        self.recovered(target)
        self._telemetry.done(target.kind)

    def recovered(self, target: Target) -> None:
        """What failed before, if it did, does so no longer."""
        if self._holds.pop(target, None) is not None:
            log.info(
                "%s: %s %s: works again", self._pool, target.kind, target.name, extra=self._told("errand_works", target)
            )

    def failed(self, target: Target, error: PortError) -> None:
        before, level = self._told_at(target), _level(error)
        self._hold(target, error, asked=error.retry_after or 0.0, level=max(level, before))
        self._telemetry.failed(target.kind, error.reason)
        log.log(
            level if level > before else logging.DEBUG,
            "%s: %s %s: %s (%s); trying again",
            self._pool,
            target.kind,
            target.name,
            error,
            error.reason,
            extra=self._told("errand_failed", target, error.reason),
        )

    def died(self, target: Target, error: Exception) -> None:
        """`target` met a bug."""
        seconds = self._hold(target, error, asked=0.0, level=logging.ERROR)
        self._telemetry.failed(target.kind, BUG)
        log.error(
            "%s: %s %s: a bug of the operator, please report it: %r; trying again in %.1f s",
            self._pool,
            target.kind,
            target.name,
            error,
            seconds,
            exc_info=error,
            extra=self._told("errand_died", target, type(error).__name__),
        )

    def _told_at(self, target: Target) -> int:
        """The highest level at which one of the failures in a row was logged."""
        before = self._holds.get(target)
        return before.level if before else logging.NOTSET

    def _hold(self, target: Target, error: Exception, *, asked: float, level: int) -> float:
        """Hold `target` back, at least for the `asked` seconds; for how long."""
        before = self._holds.get(target)
        failures = before.failures + 1 if before else 1
        doubled = min(FIRST_HOLD_SECONDS * 2.0 ** min(failures - 1, 10), LONGEST_HOLD_SECONDS)
        seconds = max(min(asked, LONGEST_HOLD_SECONDS), doubled * (0.75 + self._jitter() / 4))
        self._holds[target] = _Hold(failures, self._clock.monotonic() + seconds, level, error)
        return seconds

    def _told(self, event: str, target: Target, reason: str | None = None) -> dict[str, Any]:
        return told(event, pool=self._pool, kind=target.kind, target=target.name or None, reason=reason)

    async def _run(self, target: Target, work: Callable[[], Awaitable[None]]) -> None:
        try:
            async with self._limits[target.kind]:
                await work()
        except PortError as error:
            self.failed(target, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told, and ends with its target
            self.died(target, error)
        else:
            self.succeeded(target)
        finally:
            self._under_way.discard(target)


def _level(error: PortError) -> int:
    """What passes by itself is no warning."""
    if isinstance(error, VanishedError):
        return logging.DEBUG
    return logging.INFO if isinstance(error, TokenNotYetError | TerminatingError) else logging.WARNING
