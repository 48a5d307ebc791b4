"""Who runs the passes: one task per pool, woken by changes and by the clock.

Level-triggered: a wake-up says that something may have changed, never what. Wake-ups that come close together are one
pass; a wake-up during a pass makes another pass right after it.

A pool's task survives every failure (`kvquota_operator.errands` maps them). A bug in a pass holds back its own pool:
its pods keep what they have, and the other pools go on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass

from kvquota_operator.errands import Errands, Jitter, Limit
from kvquota_operator.governing import PASS, Decide, Governor
from kvquota_operator.pacing import STATUSES_PER_SECOND, Pacing, Turns
from kvquota_operator.ports import Channel, Clock, Cluster, Telemetry
from kvquota_operator.reconcile.observed import PoolKey
from kvquota_operator.reconcile.reconcile import reconcile


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """All in seconds or in errands at a time.

    `sync_seconds`: from the start of a pass to the next that nothing woke, give or take a tenth, so that pools do not
    beat in time.
    `debounce_seconds`: how long after a wake-up the pass waits for more of them: one `kubectl apply` of a few files.
    `patience_seconds`: how long a pass waits for its slowest pod or write before it goes on without it.
    `syncs_at_once`: connections to pods over all pools. `writes_at_once`: requests to the API server over all pools,
    statuses apart, few enough to stay below what its fair queuing gives to one account. `statuses_at_once`: of those.
    """

    sync_seconds: float = 2.0
    debounce_seconds: float = 0.05
    patience_seconds: float = 0.5
    syncs_at_once: int = 128
    statuses_at_once: int = 8
    writes_at_once: int = 24


class Silent:
    """Telemetry that nobody reads."""

    def passed(self, seconds: float) -> None: ...

    def done(self, kind: str) -> None: ...

    def failed(self, kind: str, reason: str) -> None: ...


class PoolController:
    """Keeps every pool that was ever touched until it is gone."""

    def __init__(
        self,
        cluster: Cluster,
        channel: Channel,
        clock: Clock,
        settings: ControllerSettings,
        *,
        telemetry: Telemetry | None = None,
        decide: Decide = reconcile,
        jitter: Jitter = random.random,
    ) -> None:
        self._cluster = cluster
        self._channel = channel
        self._clock = clock
        self._settings = settings
        self._telemetry = telemetry or Silent()
        self._decide = decide
        self._jitter = jitter
        self._pacing = Pacing(settings.sync_seconds)
        self._limits = _limits(settings)
        self._wakes: dict[PoolKey, asyncio.Event] = {}
        self._started: dict[PoolKey, float] = {}
        self._governors: dict[PoolKey, Governor] = {}
        self._new: asyncio.Queue[PoolKey] = asyncio.Queue()

    def touch(self, pool: PoolKey) -> None:
        """Something about `pool` may have changed. From the loop that `run` runs in; may come before `run`."""
        if pool not in self._wakes:
            self._wakes[pool] = asyncio.Event()
            self._new.put_nowait(pool)
        self._wakes[pool].set()

    @property
    def pools(self) -> int:
        """How many pools have a task."""
        return len(self._wakes)

    @property
    def waiting(self) -> int:
        """How many pools were woken and wait for their pass."""
        return sum(wake.is_set() for wake in self._wakes.values())

    def oldest_report(self) -> float | None:
        """Seconds since the pod that has been silent for longest was last heard; None where no pod ever was."""
        heard = [at for each in self._governors.values() if (at := each.oldest_report()) is not None]
        return self._clock.monotonic() - min(heard) if heard else None

    def longest_pass(self) -> float:
        """Seconds since the start of the oldest pass that has not ended yet; 0 when none is under way."""
        now = self._clock.monotonic()
        return max((now - at for at in self._started.values()), default=0.0)

    async def run(self) -> None:
        """Run until cancelled. Raises (in an ExceptionGroup) only a bug of its own, of no pass and no errand."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                pool = await self._new.get()
                tasks.create_task(self._keep(pool), name=f"pool {pool.namespace}/{pool.name}")

    async def _keep(self, pool: PoolKey) -> None:
        wake = self._wakes[pool]
        async with asyncio.TaskGroup() as tasks:
            errands = self._errands(pool, tasks)
            governor = self._governors[pool] = self._governor(pool, errands)
            while True:
                wake.clear()
                start = self._clock.monotonic()
                alive = errands.held(PASS) or await self._timed(pool, governor)
                if not alive and not wake.is_set():
                    del self._wakes[pool], self._governors[pool]
                    self._pacing.forget(pool)
                    return
                await self._pause(wake, governor, errands, start)

    async def _timed(self, pool: PoolKey, governor: Governor) -> bool:
        start = self._clock.monotonic()
        self._started[pool] = start
        try:
            return await governor.govern()
        finally:
            del self._started[pool]
            self._telemetry.passed(self._clock.monotonic() - start)

    async def _pause(self, wake: asyncio.Event, governor: Governor, errands: Errands, start: float) -> None:
        """Until something wakes the pool, the period since `start` is over, or something held may be tried again.

        Where to decide takes long, passes that something woke are further apart: all pools together decide for at most
        a third of the time, as far as the period allows it.
        """
        period = self._pacing.sync_seconds * (0.9 + 0.2 * self._jitter())
        seconds = period - (self._clock.monotonic() - start)
        apart = min(governor.deciding_seconds * 3 * self._pacing.pools, period)
        held = errands.next_try()
        seconds = seconds if held is None else min(seconds, held)
        try:
            async with asyncio.timeout(max(seconds, self._settings.debounce_seconds)):
                await wake.wait()
        except TimeoutError:
            return
        await asyncio.sleep(max(self._settings.debounce_seconds, start + apart - self._clock.monotonic()))

    def _errands(self, pool: PoolKey, tasks: asyncio.TaskGroup) -> Errands:
        return Errands(
            pool=f"{pool.namespace}/{pool.name}",
            tasks=tasks,
            clock=self._clock,
            telemetry=self._telemetry,
            limits=self._limits,
            jitter=self._jitter,
        )

    def _governor(self, pool: PoolKey, errands: Errands) -> Governor:
        return Governor(
            pool,
            cluster=self._cluster,
            channel=self._channel,
            clock=self._clock,
            errands=errands,
            decide=self._decide,
            pacing=self._pacing,
            patience_seconds=self._settings.patience_seconds,
        )


def _limits(settings: ControllerSettings) -> Mapping[str, Limit]:
    """No pod hears anything before the Secret of its pool is there: that does not stand behind thousands of configs."""
    secrets = asyncio.Semaphore(settings.writes_at_once)
    writes = asyncio.Semaphore(settings.writes_at_once)
    syncs = asyncio.Semaphore(settings.syncs_at_once)
    statuses = Turns(STATUSES_PER_SECOND, burst=settings.statuses_at_once, at_once=settings.statuses_at_once)
    return {"Secret": secrets, "Config": writes, "Status": statuses, "Event": writes, "Sync": syncs}
