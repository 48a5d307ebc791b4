"""The HTTP server for the kubelet and for Prometheus: /healthz, /readyz, /metrics.

It runs in the loop that runs the passes: a loop that hangs does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from kvquota_operator.adapters.listening import Place, serving
from kvquota_operator.settings import Address

LONGEST_STILLNESS_SECONDS: Final = 240.0  # every wait of a watch is bounded by 70 s; all of one try together are below
LONGEST_THREAD_STILLNESS_SECONDS: Final = 60.0  # the thread of kopf hands events over, and is begun anew within seconds
LONGEST_PASS_SECONDS: Final = 120.0  # every wait in a pass is bounded; all bounds of one pass together are below this


@dataclass(frozen=True, slots=True)
class Health:
    """`longest_pass`: seconds since the oldest unfinished pass began. `stillness`: since the stillest watch did
    anything, if only try in vain: a server that is away is no fault of this process. `thread_stillness`: since the
    thread that watches pools and quotas last ran. `ready`: set once the objects are known. `webhook_ready`: set once
    the webhook answers; None where there is none. `certificate_until`: when the certificate that it shows ends, None
    where it shows none; `now`: the time, both UTC.
    """

    longest_pass: Callable[[], float]
    stillness: Callable[[], float]
    thread_stillness: Callable[[], float]
    ready: asyncio.Event
    webhook_ready: asyncio.Event | None = None
    certificate_until: Callable[[], datetime | None] = lambda: None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def ended(self) -> datetime | None:
        """When the webhook's certificate ended, where it did."""
        until = self.certificate_until()
        return until if until is not None and until <= self.now() else None


@asynccontextmanager
async def probes(address: Address | None, health: Health, registry: CollectorRegistry) -> AsyncIterator[None]:
    """Serve while the context lasts; None serves nothing. Raises ListenError."""
    if address is None:
        yield
        return
    runner = web.AppRunner(_application(health, registry), access_log=None)
    async with serving(runner, Place(address, "probes and metrics", "--listen")):
        yield


def _application(health: Health, registry: CollectorRegistry) -> web.Application:
    async def healthz(_: web.Request) -> web.Response:
        seconds = health.longest_pass()
        if seconds > LONGEST_PASS_SECONDS:
            return web.Response(status=503, text=f"a pass has not ended for {seconds:.0f} s\n")
        stillness = health.stillness()
        if stillness > LONGEST_STILLNESS_SECONDS:
            return web.Response(
                status=503, text=f"a watch has neither heard nor tried anything for {stillness:.0f} s\n"
            )
        stillness = health.thread_stillness()
        if stillness > LONGEST_THREAD_STILLNESS_SECONDS:
            return web.Response(
                status=503, text=f"the thread that watches pools and quotas has not run for {stillness:.0f} s\n"
            )
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        if not health.ready.is_set():
            return web.Response(status=503, text="the pools and quotas have not been listed yet\n")
        if health.webhook_ready is not None and not health.webhook_ready.is_set():
            return web.Response(status=503, text="the webhook has no certificate yet\n")
        ended = health.ended()
        if ended is not None:
            return web.Response(
                status=503,
                text=f"the webhook's certificate ended at {ended.isoformat()}: no API server believes it, so no pod"
                " that asks for the sidecar is created. The log says why there is no newer one\n",
            )
        return web.Response(text="ok\n")

    async def metrics(_: web.Request) -> web.Response:
        body = generate_latest(registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    return application
