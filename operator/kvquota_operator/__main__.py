"""The composition root: `python -m kvquota_operator`, and `run` for a process that has the operator inside."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import kopf
from kubernetes.aio.client import ApiClient
from prometheus_client import CollectorRegistry

from kvquota_operator.adapters import credentials
from kvquota_operator.adapters.api import Api
from kvquota_operator.adapters.channel import http_channel
from kvquota_operator.adapters.credentials import CredentialsError
from kvquota_operator.adapters.events import Events
from kvquota_operator.adapters.kube import KubeCluster
from kvquota_operator.adapters.metrics import OperatorMetrics
from kvquota_operator.adapters.probes import Health, ListenError, probes
from kvquota_operator.controller import ControllerSettings, PoolController
from kvquota_operator.handlers.events import HandlerDeps
from kvquota_operator.handlers.framework import Framework
from kvquota_operator.settings import OperatorSettings, parse_settings

log = logging.getLogger("kvquota_operator")


class SystemClock:
    """The clock of this machine."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start."""
        return time.monotonic()

    def now(self) -> datetime:
        """UTC."""
        return datetime.now(UTC)


async def run(settings: OperatorSettings, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Run the operator until `stop` is set; `ready` is set once all pools and quotas are known and watched.

    Raises CredentialsError where there is no way to the API server, ListenError where `listen` is taken, and an
    ExceptionGroup where there is a bug.
    """
    configuration = await credentials.load(settings.kubeconfig)
    controller_settings = ControllerSettings(sync_seconds=settings.sync_seconds)
    registry, clock = CollectorRegistry(), SystemClock()
    metrics = OperatorMetrics(registry)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ApiClient(configuration))
        channel = await stack.enter_async_context(http_channel(controller_settings.syncs_at_once))
        api = Api(client)
        events = Events(api, clock, instance=socket.gethostname(), dropped=metrics.event_dropped)
        cluster = KubeCluster(api, clock, namespaces=settings.namespaces, events=events, metrics=metrics)
        controller = PoolController(cluster, channel, clock, controller_settings, telemetry=metrics)
        metrics.pools.set_function(lambda: controller.pools)
        health = Health(controller.longest_pass, ready)
        await stack.enter_async_context(probes(settings.listen, health, registry))
        await _serve(settings, cluster, controller, stop, ready)


async def _serve(
    settings: OperatorSettings,
    cluster: KubeCluster,
    controller: PoolController,
    stop: asyncio.Event,
    ready: asyncio.Event,
) -> None:
    async def login() -> kopf.ConnectionInfo:
        return await credentials.connection(settings.kubeconfig)

    framework = Framework(settings.namespaces, HandlerDeps(cluster.inbox.deliver, login))

    async def watch() -> None:
        await cluster.listed.wait()
        await framework.run(ready)

    async with asyncio.TaskGroup() as tasks:
        parts = [cluster.run(controller.touch), controller.run(), watch()]
        running = [tasks.create_task(part) for part in parts]
        await stop.wait()
        for task in running:
            task.cancel()


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    settings = parse_settings(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)  # it reports every step of its own
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # it warns that it has a thread of its own
    try:
        asyncio.run(_until_signal(settings))
    except (CredentialsError, ListenError) as error:
        print(f"kvquota-operator: {error}", file=sys.stderr)  # noqa: T201 - the last word of a program that cannot run
        return 2
    return 0


async def _until_signal(settings: OperatorSettings) -> None:
    stop, ready = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    where = ", ".join(settings.namespaces) or "all namespaces"
    log.info("starting for %s; each pod is asked every %g s", where, settings.sync_seconds)
    await run(settings, stop, ready)
    log.info("stopped")


if __name__ == "__main__":
    raise SystemExit(main())
