"""vLLM's HTTP routes, answered from the fake engine."""

import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from kvquota_fakeengine import exposition, tokens, wire
from kvquota_fakeengine.answering import Answering
from kvquota_fakeengine.engine import FakeEngine
from kvquota_fakeengine.misbehaviour import Faults, Metrics
from kvquota_fakeengine.output import json_response
from kvquota_fakeengine.requests import (
    GenerateRequest,
    Refused,
    read_chat,
    read_completion,
    read_object,
    read_tokenize,
)
from kvquota_fakeengine.settings import EngineSettings
from kvquota_fakeengine.wire import ChatDialect, CompletionDialect, Dialect, Envelope

_Reader = Callable[[Mapping[str, Any], EngineSettings, str | None], GenerateRequest]

# vLLM takes bodies of any size; this is far above what a context of a million tokens needs.
LARGEST_BODY_BYTES = 64 * 1024 * 1024
_REMEMBERED_REQUESTS = 1000


@dataclass(frozen=True, slots=True)
class Received:
    """A request to a generating route as it came in."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class EngineRoutes:
    """`engine` is asked for at each request, since a restart puts another one in its place."""

    def __init__(self, settings: EngineSettings, engine: Callable[[], FakeEngine], faults: Faults) -> None:
        self._settings = settings
        self._engine = engine
        self._faults = faults
        self._stale_metrics: str | None = None
        self.received: deque[Received] = deque(maxlen=_REMEMBERED_REQUESTS)

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completion)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/v1/models", self._models, allow_head=False)
        app.router.add_get("/version", self._version, allow_head=False)
        app.router.add_get("/metrics", self._metrics, allow_head=False)
        app.router.add_get("/openapi.json", self._openapi, allow_head=False)
        for path in ("/health", "/ping"):
            app.router.add_get(path, self._health, allow_head=False)

    def freeze_metrics(self) -> None:
        """Remember the metrics of this moment as those that a stale engine shows."""
        self._stale_metrics = self._exposition()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, read_chat, ChatDialect())

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, read_completion, CompletionDialect())

    async def _generate(self, request: web.Request, read: _Reader, dialect: Dialect) -> web.StreamResponse:
        body = await request.read()
        self.received.append(Received(request.path, dict(request.headers), body))
        status = self._faults.current.error_status
        if status is not None:
            raise Refused(status, "Internal server error", "InternalServerError")
        document = read_object(body, request.headers.get("Content-Type", ""))
        asked = read(document, self._settings, request.headers.get("X-Vllm-Priority"))
        engine = self._engine()
        name = request.headers.get("X-Request-Id") or secrets.token_hex(8)
        answer_id = f"{dialect.id_prefix}-{name}"
        envelope = Envelope(id=answer_id, created=int(engine.clock.time()), model=self._settings.model)
        # The engine's own name of the request: two clients may send the same one.
        async with engine.generate(f"{answer_id}-{secrets.token_hex(4)}", asked.works) as generation:
            answering = Answering(request, engine, self._faults, asked, dialect, envelope, generation)
            return await (answering.stream() if asked.stream else answering.whole())

    async def _tokenize(self, request: web.Request) -> web.Response:
        document = read_object(await request.read(), request.headers.get("Content-Type", ""))
        encoded = read_tokenize(document, self._settings)
        pieces = [tokens.piece(token) for token in encoded] if document.get("return_token_strs") else None
        return json_response(wire.tokenized(encoded, pieces, self._settings))

    async def _models(self, request: web.Request) -> web.Response:  # noqa: ARG002 - aiohttp's shape of a handler
        return json_response(wire.model_list(self._settings, self._engine().clock.time()))

    async def _version(self, request: web.Request) -> web.Response:  # noqa: ARG002 - aiohttp's shape of a handler
        return json_response({"version": wire.VERSION})

    async def _openapi(self, request: web.Request) -> web.Response:
        routes = [
            (route.resource.canonical, route.method)
            for route in request.app.router.routes()
            if route.resource is not None
        ]
        return json_response(wire.openapi(routes))

    async def _health(self, request: web.Request) -> web.Response:  # noqa: ARG002 - aiohttp's shape of a handler
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002 - aiohttp's shape of a handler
        await self._faults.wait_while(lambda current: current.metrics is Metrics.HANG)
        if self._faults.current.metrics is Metrics.ERROR:
            raise Refused(500, "Internal server error", "InternalServerError")
        return web.Response(body=self._exposition().encode(), headers={"Content-Type": exposition.CONTENT_TYPE})

    def _exposition(self) -> str:
        current = self._faults.current
        if current.metrics is Metrics.STALE and self._stale_metrics is not None:
            return self._stale_metrics
        engine = self._engine()
        process = exposition.process_families(engine.started_at)
        if current.metrics is Metrics.MISSING:
            return exposition.exposition(process)
        families = exposition.engine_families(engine.scheduler, engine.settings, current.announced_blocks)
        if current.metrics is Metrics.RENAMED:
            families = exposition.renamed(families)
        return exposition.exposition([*process, *families])
