"""The admin port: what the operator, the kubelet, Prometheus and people ask of a sidecar."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from kvquota_api import usage
from kvquota_api.pod_config import DocumentError
from kvquota_api.usage import SYNC_PATH, SyncRequest, UsageReport
from kvquota_sidecar.channel.access import Token, is_near
from kvquota_sidecar.channel.standing import Standing
from kvquota_sidecar.engines.fetching import EngineUnavailableError, fetch
from kvquota_sidecar.engines.watching import EngineWatch
from kvquota_sidecar.proxy.answers import Answer
from kvquota_sidecar.proxy.engine_side import EnginePool, Spawn
from kvquota_sidecar.proxy.head import Fault, Head
from kvquota_sidecar.proxy.reading import Request
from kvquota_sidecar.proxy.service import Client, Ends

HEALTH_SECONDS: Final = 0.8  # below the 1 s that a probe waits by default
_MAX_HEALTH_BYTES: Final = 64 * 1024

Access = Literal["Anyone", "Token", "Near"]


@dataclass(frozen=True, slots=True)
class AdminContext:
    """What a head says: which route, and whether the token came with it."""

    route: Route
    trusted: bool


@dataclass(frozen=True, slots=True)
class Route:
    """`now` answers at once, `later` takes its time: one of the two."""

    access: Access
    now: Callable[[Request, AdminContext], Answer] | None = None
    later: Callable[[], Awaitable[Answer]] | None = None


class Admin:
    """The service of the admin port."""

    def __init__(
        self,
        *,
        standing: Standing,
        engine: EngineWatch,
        pool: EnginePool,
        token: Token,
        node_addresses: tuple[str, ...],
        sync: Callable[[SyncRequest], UsageReport],
        report: Callable[[], UsageReport],
        metrics: Callable[[bool], bytes],
        drained: asyncio.Event,
        spawn: Spawn,
        drain_hook: bool,
    ) -> None:
        self._standing = standing
        self._engine = engine
        self._pool = pool
        self._token = token
        self._node_addresses = node_addresses
        self._sync = sync
        self._report = report
        self._metrics = metrics
        self._drained = drained
        self._spawn = spawn
        self._routes = {
            ("GET", "/healthz"): Route("Anyone", lambda _request, _context: _told(200, "the sidecar runs")),
            ("GET", "/readyz"): Route("Anyone", self._ready),
            ("GET", "/engine/health"): Route("Anyone", later=self._engine_health),
            ("GET", "/metrics"): Route("Anyone", self._exposition),
            ("GET", "/v1/usage"): Route("Token", self._usage),
            ("POST", SYNC_PATH): Route("Token", self._synced),
        } | (self._hooks() if drain_hook else {})

    def _hooks(self) -> dict[tuple[str, str], Route]:
        drain, wait = Route("Near", self._drain), Route("Near", later=self._drain_and_wait)
        return {
            (method, path): route
            for method in ("GET", "POST")
            for path, route in (("/drain", drain), ("/drain/wait", wait))
        }

    @property
    def is_leaving(self) -> bool:
        return False

    def examine(self, head: Head, ends: Ends) -> Answer | AdminContext:
        """Look at a head: which route, and whether it is open to this caller."""
        route = self._route(head)
        if route is None:
            return _told(404, "There is no such route on the admin port.")
        trusted = self._token.is_in(head)
        if route.access == "Token" and not trusted:
            told = _told(401, "Send the pool's token: Authorization: Bearer TOKEN.")
            return Answer(told.status, told.body, b"www-authenticate: Bearer\r\n")
        if route.access == "Near" and not is_near(ends, self._node_addresses):
            return _told(403, f"Only this pod and its node may ask this, not {ends.remote}: see --node-address.")
        return AdminContext(route, trusted)

    def owner(self, context: AdminContext) -> str | None:  # noqa: ARG002 - the operator is alone
        return None

    def serve(self, request: Request, context: AdminContext, client: Client) -> None:
        """Answer a request."""
        if context.route.now is not None:
            client.answer(context.route.now(request, context))
        if context.route.later is not None:
            Waiting(context.route.later, client, self._spawn).start()

    def answer_fault(self, fault: Fault, head: Head | None, context: AdminContext | None) -> Answer:  # noqa: ARG002 - every route speaks the same way
        """What to send for a request that cannot be read."""
        return _told(fault.status, fault.sentence)

    # The routes.

    def _route(self, head: Head) -> Route | None:
        """HEAD is open where GET only reads."""
        if head.method != "HEAD":
            return self._routes.get((head.method, head.path))
        route = self._routes.get(("GET", head.path))
        return None if route is None or route.access == "Near" else route

    def _ready(self, _request: Request, _context: AdminContext) -> Answer:
        unready = self._standing.unready()
        if unready is not None:
            return _told(503, unready.message)
        if self._engine.state != "Ready":
            return _told(503, f"The engine is not ready: {self._engine.trouble or 'it has not been asked yet'}.")
        return _told(200, "ready")

    async def _engine_health(self) -> Answer:
        try:
            fetched = await fetch(self._pool, "/health", max_bytes=_MAX_HEALTH_BYTES, seconds=HEALTH_SECONDS)
        except EngineUnavailableError as error:
            where = self._pool.address.authority.decode()
            return _told(503, f"The engine at {where} does not answer: {error}. Was --port obeyed?")
        healthy = fetched.status == 200
        return _told(200 if healthy else 503, f"The engine's /health says {fetched.status}.")

    def _exposition(self, _request: Request, context: AdminContext) -> Answer:
        return Answer(200, self._metrics(context.trusted), kind=b"text/plain; version=0.0.4; charset=utf-8")

    def _usage(self, _request: Request, _context: AdminContext) -> Answer:
        return Answer(200, usage.encode(self._report()))

    def _synced(self, request: Request, _context: AdminContext) -> Answer:
        try:
            wanted = usage.decode_request(request.body)
        except DocumentError as error:
            return _told(400, str(error))
        return Answer(200, usage.encode(self._sync(wanted)))

    def _drain(self, _request: Request, _context: AdminContext) -> Answer:
        self._standing.leave(final=False)
        return _told(200, "draining")

    async def _drain_and_wait(self) -> Answer:
        self._standing.leave(final=False)
        await self._drained.wait()
        return _told(200, "drained")


class Waiting:
    """An Exchange whose answer comes later; given up when the client goes."""

    def __init__(self, reply: Callable[[], Awaitable[Answer]], client: Client, spawn: Spawn) -> None:
        self._reply = reply
        self._client = client
        self._spawn = spawn
        self._task: asyncio.Task[None]

    def start(self) -> None:
        """Begin to wait."""
        self._task = self._spawn(self._run())
        self._client.attach(self)

    async def _run(self) -> None:
        self._client.answer(await self._reply())

    def client_gone(self) -> None:
        self._task.cancel()

    def client_full(self) -> None:
        """One answer is small: there is nothing to hold back."""

    def client_ready(self) -> None:
        """See `client_full`."""


def _told(status: int, sentence: str) -> Answer:
    return Answer(status, msgspec.json.encode({"message": sentence}))
