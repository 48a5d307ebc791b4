"""Standing for election: keeps this replica's belief about the Lease, and runs the work of a leader while it leads.

It asks, writes and waits as `kvquota_operator.leading` says. Invariants:

1. The work runs only while this replica may write; when that ends, the work is cancelled before anything else.
2. The Lease is given back only after the work has ended.
3. Every wait ends, at the latest, when the right to write does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from kvquota_operator import leading
from kvquota_operator.leading import NOBODY, Belief, Record, Timing
from kvquota_operator.logs import told
from kvquota_operator.ports import ClusterError, ClusterTimeoutError

REQUEST_SECONDS: Final = 2.5  # two tries of a renewal fit into a leader's deadline
RELEASE_SECONDS: Final = 2.0  # an API server that does not answer must not hold up the end of the process

log = logging.getLogger(__name__)


class Lease(Protocol):
    """The Lease that all replicas look at. Every method raises ClusterError."""

    async def look(self) -> Record:
        """What it says; a record without a version where it is not there."""
        ...

    async def make(self, lease_seconds: float) -> Record:
        """Make it where it is not there, without a holder; what it says. Raises ConflictError where it is there."""
        ...

    async def write(self, over: Record, holder: str, lease_seconds: float) -> Record:
        """Make `holder` the holder, if it still is `over`; what it says then. Raises ConflictError where it is not."""
        ...


class Candidate:
    """One replica. `clock` gives seconds from an arbitrary start and does not stand still while the machine sleeps."""

    def __init__(self, lease: Lease, clock: Callable[[], float], me: str, timing: Timing | None = None) -> None:
        self._lease = lease
        self._clock = clock
        self._timing = timing or Timing()
        self._belief = Belief(me)
        self._term: asyncio.Task[None] | None = None
        self._trouble: type[ClusterError] | None = None

    def may_write(self) -> bool:
        """Whether this replica leads, at this moment."""
        return self._belief.may_write(self._clock())

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Stand for election until cancelled, and run `lead` while leading; raises (in an ExceptionGroup) what it does.

        At the end the Lease is given back, so that another replica follows at once.
        """
        async with asyncio.TaskGroup() as tasks:
            try:
                while True:
                    await self._step()
                    await self._follow_up(tasks, lead)
            finally:
                await self._end_term()
                await self._release()

    async def _step(self) -> None:
        now = self._clock()
        match leading.next_step(self._belief, now, self._timing):
            case leading.Rest(until):
                await asyncio.sleep(until - now)
            case leading.Look():
                await self._try(self._see(self._lease.look()))
            case leading.Make():
                await self._try(self._see(self._lease.make(self._timing.lease_seconds)))
            case leading.Write(over):
                await self._try(self._write(over))

    async def _see(self, asked: Awaitable[Record]) -> None:
        record, before = await asked, self._belief.record
        self._belief = leading.looked(self._belief, record, self._clock(), self._timing)
        if record.holder not in (NOBODY, self._belief.me) and (before is None or before.holder != record.holder):
            log.info("standing by; %s leads", record.holder, extra=told("standing_by", holder=record.holder))

    async def _write(self, over: Record) -> None:
        sent_at = self._clock()
        record = await self._lease.write(over, self._belief.me, self._timing.lease_seconds)
        self._belief = leading.wrote(self._belief, record, sent_at, self._clock(), self._timing)

    async def _try(self, work: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._patience()):
                await work
        except ClusterError as error:
            self._failed(error)
        except TimeoutError:
            self._failed(ClusterTimeoutError("the API server did not answer in time"))
        else:
            self._trouble = None

    def _patience(self) -> float:
        """Seconds that a request may take: not longer than this replica leads."""
        now, until = self._clock(), self._belief.held_until
        return min(REQUEST_SECONDS, until - now) if until is not None and now < until else REQUEST_SECONDS

    def _failed(self, error: ClusterError) -> None:
        """A conflict is the answer that another one was faster."""
        self._belief = leading.failed(self._belief, self._clock(), self._timing)
        level = logging.DEBUG if type(error) is self._trouble or error.reason == "Conflict" else logging.WARNING
        self._trouble = type(error)
        log.log(level, "the Lease: %s; trying again", error, extra=told("lease_failed", reason=error.reason))

    async def _follow_up(self, tasks: asyncio.TaskGroup, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin or end the work, as the belief is now."""
        if not self.may_write():
            await self._end_term()
        elif self._term is None:
            log.info("leading", extra=told("leading", identity=self._belief.me))
            self._term = tasks.create_task(lead(), name="lead")

    async def _end_term(self) -> None:
        if self._term is None:
            return
        self._term.cancel()
        await asyncio.wait([self._term])
        self._term = None
        log.info("no longer leading", extra=told("resigned", identity=self._belief.me))

    async def _release(self) -> None:
        held, record = self.may_write(), self._belief.record
        self._belief = leading.resigned(self._belief)
        if not held or record is None:
            return
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._lease.write(record, NOBODY, self._timing.lease_seconds)
        except (ClusterError, TimeoutError) as error:
            log.info("the Lease was not given back: %s", error, extra=told("lease_kept"))
