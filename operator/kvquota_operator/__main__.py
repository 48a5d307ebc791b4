"""The composition root: `kvquota-operator`, and `run` for a process that has the operator inside."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Final

import kopf
from kubernetes.aio.client import ApiClient
from prometheus_client import CollectorRegistry

from kvquota_operator import logs
from kvquota_operator.adapters import credentials
from kvquota_operator.adapters.api import Api
from kvquota_operator.adapters.channel import HttpChannel, http_channel
from kvquota_operator.adapters.credentials import CredentialsError
from kvquota_operator.adapters.events import Events
from kvquota_operator.adapters.kube import KubeCluster
from kvquota_operator.adapters.lease import KubeLease, LeaseLocationError, identity, own_namespace, steady_seconds
from kvquota_operator.adapters.listening import ListenError
from kvquota_operator.adapters.metrics import OperatorMetrics, Vitals
from kvquota_operator.adapters.probes import Health, probes
from kvquota_operator.adapters.statuses import PLURALS
from kvquota_operator.adapters.webhook import Webhook, webhook_of
from kvquota_operator.controller import ControllerSettings, PoolController
from kvquota_operator.duty import Duty
from kvquota_operator.electing import Candidate
from kvquota_operator.handlers.events import HandlerDeps
from kvquota_operator.handlers.framework import Framework
from kvquota_operator.logs import told
from kvquota_operator.settings import OperatorSettings, parse_settings

LEAVING_SECONDS: Final = 4.0  # how long the API server may still send pods to a webhook that is told to end
GC_THRESHOLDS: Final = (20_000, 20, 20)  # by the usual ones two fifths of all time goes into looking for garbage

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

    Raises CredentialsError where there is no way to the API server, ListenError where an address is taken,
    LeaseLocationError where nobody said where the Lease is, and an ExceptionGroup where there is a bug.
    """
    configuration = await credentials.load(settings.kubeconfig)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ApiClient(configuration))
        await _Operator(settings, client).run(stack, stop, ready)


class _Operator:
    """The parts, put together. Those that do not depend on who leads run on every replica."""

    def __init__(self, settings: OperatorSettings, client: ApiClient) -> None:
        self._settings = settings
        self._client = client
        self._clock = SystemClock()
        self._registry = CollectorRegistry()
        self._metrics = OperatorMetrics(self._registry)
        self._candidate = self._stands_for_election()
        self._may_write: Callable[[], bool] = self._candidate.may_write if self._candidate else lambda: True

    async def run(self, stack: AsyncExitStack, stop: asyncio.Event, ready: asyncio.Event) -> None:
        cluster = self._cluster()
        channel = await stack.enter_async_context(http_channel(self._may_write))
        duty = Duty(cluster, lambda: self._controller(cluster, channel))
        framework, webhook = self._framework(cluster), self._webhook()
        self._metrics.show(lambda: self._vitals(cluster, framework, duty, webhook))
        webhook_ready = webhook.ready if webhook else None
        health = Health(
            lambda: duty.longest_pass,
            cluster.longest_stillness,
            framework.stillness,
            ready,
            webhook_ready,
            lambda: _certificate_until(webhook),
        )
        await stack.enter_async_context(probes(self._settings.listen, health, self._registry))
        if webhook:
            await stack.enter_async_context(webhook.listening())
        async with asyncio.TaskGroup() as tasks:
            parts = [
                cluster.run(duty.touch, framework.begin_anew),
                _watch(cluster, framework, ready),
                self._govern(duty, ready),
            ]
            running = [tasks.create_task(part) for part in parts]
            serving = [tasks.create_task(webhook.certify())] if webhook else []
            await stop.wait()
            for task in running:
                task.cancel()
            await asyncio.sleep(LEAVING_SECONDS if serving else 0)
            for task in serving:
                task.cancel()

    def _framework(self, cluster: KubeCluster) -> Framework:
        async def login() -> kopf.ConnectionInfo:
            return await credentials.connection(self._settings.kubeconfig)

        def restarted(reason: str) -> None:
            for plural in PLURALS.values():
                self._metrics.watch_restarted(plural, reason)

        deps = HandlerDeps(cluster.inbox.deliver, login)
        return Framework(self._settings.namespaces, deps, self._clock, restarted=restarted)

    async def _govern(self, duty: Duty, ready: asyncio.Event) -> None:
        """A replica that does not know the objects does not stand for election."""
        await ready.wait()
        if self._candidate is None:
            await duty.lead()
        else:
            await self._candidate.run(duty.lead)

    def _stands_for_election(self) -> Candidate | None:
        """The Lease is written by whoever does not lead yet, so by requests that are not held back."""
        where = self._settings.lease
        if where is None:
            return None
        api = Api(self._client, counted=self._metrics.requested)
        lease = KubeLease(api, self._clock, namespace=where.namespace or own_namespace(), name=where.name)
        return Candidate(lease, steady_seconds, identity())

    def _webhook(self) -> Webhook | None:
        """Every replica serves it, so what it writes is not held back either."""
        wanted = self._settings.webhook
        if wanted is None:
            return None
        api = Api(self._client, counted=self._metrics.requested)
        return webhook_of(wanted, api, self._clock)

    def _cluster(self) -> KubeCluster:
        api = Api(self._client, may_write=self._may_write, counted=self._metrics.requested)
        events = Events(api, self._clock, instance=socket.gethostname(), dropped=self._metrics.event_dropped)
        namespaces = self._settings.namespaces
        return KubeCluster(api, self._clock, namespaces=namespaces, events=events, metrics=self._metrics)

    def _controller(self, cluster: KubeCluster, channel: HttpChannel) -> PoolController:
        settings = ControllerSettings(sync_seconds=self._settings.sync_seconds)
        return PoolController(cluster, channel, self._clock, settings, telemetry=self._metrics)

    def _vitals(self, cluster: KubeCluster, framework: Framework, duty: Duty, webhook: Webhook | None) -> Vitals:
        controller, until = duty.controller, _certificate_until(webhook)
        return Vitals(
            leading=controller is not None and self._may_write(),
            pools=controller.pools if controller else 0,
            waiting=controller.waiting if controller else 0,
            longest_pass=duty.longest_pass,
            oldest_report=controller.oldest_report() if controller else None,
            watch_ages=cluster.watch_ages(),
            thread_stillness=framework.stillness(),
            certificate_until=until.timestamp() if until else None,
        )


async def _watch(cluster: KubeCluster, framework: Framework, ready: asyncio.Event) -> None:
    """Pools and quotas are listed before kopf tells of them: it knows no order between the two."""
    await cluster.listed.wait()
    await framework.run(ready)


def _certificate_until(webhook: Webhook | None) -> datetime | None:
    return webhook.certificate_until if webhook else None


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    settings = parse_settings(argv)
    logs.configure(settings.log_format)
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        asyncio.run(_until_signal(settings))
    except (CredentialsError, ListenError, LeaseLocationError) as error:
        log.critical("%s", error, extra=told("cannot_run"))
        return 2
    return 0


async def _until_signal(settings: OperatorSettings) -> None:
    stop, ready = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    where = ", ".join(settings.namespaces) or "all namespaces"
    said = told("starting", namespaces=where, syncSeconds=settings.sync_seconds)
    log.info("starting for %s; each pod is asked every %g s", where, settings.sync_seconds, extra=said)
    await run(settings, stop, ready)
    log.info("stopped", extra=told("stopped"))


if __name__ == "__main__":
    raise SystemExit(main())
