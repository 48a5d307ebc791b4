"""The operator's loop and one sidecar in this process, on objects in memory.

async with Session(objects, pool, settings, ...) as session:
    session.touch()                     # the objects changed
    session.sidecar.traffic_address
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

from kvquota_cli.embedded.channel import DirectChannel
from kvquota_cli.embedded.file_cluster import FileCluster
from kvquota_cli.embedded.identity import engine_pod
from kvquota_cli.embedded.listening import taken_address
from kvquota_cli.embedded.objects import Objects
from kvquota_cli.errors import CliError
from kvquota_operator.controller import ControllerSettings, PoolController
from kvquota_operator.governing import Decide
from kvquota_operator.reconcile.observed import PoolKey, SecretSeen
from kvquota_operator.reconcile.reconcile import reconcile
from kvquota_sidecar.settings import Settings
from kvquota_sidecar.sidecar import Sidecar
from kvquota_sidecar.telemetry.journal import Sink

SYNC_SECONDS: Final = ControllerSettings().sync_seconds


class SystemClock:
    """The clock of this machine."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start."""
        return time.monotonic()

    def now(self) -> datetime:
        """UTC."""
        return datetime.now(UTC)


def _embedded(settings: Settings, token: str, pod_uid: str) -> Settings:
    """There is no kubelet here: nobody but a signal begins the drain."""
    return replace(settings, token=token, pod_uid=pod_uid, drain_hook=False)


class Session:
    """`secret` is the pool's own; its token opens the admin port. `tell` gets what a cluster would have as events."""

    def __init__(
        self,
        objects: Objects,
        pool: PoolKey,
        settings: Settings,
        secret: SecretSeen,
        *,
        tell: Callable[[str], None],
        log: Sink,
        decide: Decide = reconcile,
        sync_seconds: float = SYNC_SECONDS,
    ) -> None:
        pod = engine_pod(pool.namespace)
        self.pool = pool
        self.sidecar = Sidecar(_embedded(settings, secret.token, pod.uid), log=log)
        self._channel = DirectChannel(self.sidecar)
        cluster = FileCluster(objects, pod, secret, tell)
        self._controller = PoolController(
            cluster, self._channel, SystemClock(), ControllerSettings(sync_seconds=sync_seconds), decide=decide
        )
        self._governing: asyncio.Task[None] | None = None

    @property
    def configured(self) -> asyncio.Event:
        """Set once a config is in force."""
        return self._channel.configured

    def touch(self) -> None:
        """The objects changed: look at the pool now."""
        self._controller.touch(self.pool)

    async def __aenter__(self) -> Self:
        """Raises CliError where a port cannot be bound."""
        try:
            await self.sidecar.start()
        except OSError as error:
            settings = self.sidecar.settings
            raise CliError(taken_address({"--listen": settings.listen, "--admin": settings.admin}, error)) from error
        self.touch()
        self._governing = asyncio.create_task(self._controller.run(), name="operator")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._end_governing()
        finally:
            await self.sidecar.stop()

    async def until(self, leaving: asyncio.Event) -> None:
        """Wait for `leaving`; raises what the operator's loop or the sidecar died of."""
        governing = self._governing
        if governing is None:
            raise RuntimeError("enter the session first")
        serving = asyncio.create_task(self.sidecar.until(leaving))
        await asyncio.wait({serving, governing}, return_when=asyncio.FIRST_COMPLETED)
        if governing.done():
            serving.cancel()
            await governing
        await serving

    async def _end_governing(self) -> None:
        if self._governing is None:
            return
        self._governing.cancel()
        await asyncio.wait({self._governing})
        if not self._governing.cancelled():
            self._governing.result()
