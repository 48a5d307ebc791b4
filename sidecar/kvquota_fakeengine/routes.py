"""vLLM's HTTP routes, answered from the fake engine."""

import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from kvquota_fakeengine import llamacpp_metrics, pooling, sglang_metrics, telling, tokens, wire
from kvquota_fakeengine.answering import Answering
from kvquota_fakeengine.engine import FakeEngine
from kvquota_fakeengine.misbehaviour import Faults, Metrics, Tokenizing
from kvquota_fakeengine.output import json_response
from kvquota_fakeengine.pooling import PoolingRequest
from kvquota_fakeengine.requests import (
    GenerateRequest,
    Refused,
    read_chat,
    read_completion,
    read_object,
    read_rank,
    read_tokenize,
)
from kvquota_fakeengine.settings import EngineSettings, Speech
from kvquota_fakeengine.wire import ChatDialect, CompletionDialect, Dialect, Document, Envelope

_Reader = Callable[[Mapping[str, Any], EngineSettings, str | None], GenerateRequest]
_PoolingReader = Callable[[Mapping[str, Any], EngineSettings], PoolingRequest]
_Writer = Callable[[Envelope, PoolingRequest], Document]
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# vLLM takes bodies of any size; this is far above what a context of a million tokens needs.
LARGEST_BODY_BYTES = 64 * 1024 * 1024
_REMEMBERED_REQUESTS = 1000
_POOLING: tuple[tuple[tuple[str, ...], str, _PoolingReader, _Writer], ...] = (
    (("/v1/embeddings",), "embd", pooling.read_embedding, pooling.embeddings),
    (("/score", "/v1/score"), "score", pooling.read_score, pooling.scores),
    (("/rerank", "/v1/rerank", "/v2/rerank"), "rerank", pooling.read_rerank, pooling.ranking),
)


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
        for paths, prefix, read, write in _POOLING:
            for path in paths:
                app.router.add_post(path, self._pooling(prefix, read, write))
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/v1/models", self._models, allow_head=False)
        app.router.add_get("/version", self._version, allow_head=False)
        app.router.add_get("/metrics", self._metrics, allow_head=False)
        app.router.add_get("/openapi.json", self._openapi, allow_head=False)
        for path in ("/health", "/ping"):
            app.router.add_get(path, self._health, allow_head=False)
        if self._settings.speech is Speech.SGLANG:
            app.router.add_get("/get_server_info", self._server_info, allow_head=False)
        if self._settings.speech is Speech.LLAMACPP:
            app.router.add_get("/slots", self._slots, allow_head=False)
            app.router.add_get("/props", self._props, allow_head=False)

    def freeze_metrics(self) -> None:
        """Remember the metrics of this moment as those that a stale engine shows."""
        self._stale_metrics = telling.told(self._engine(), self._faults.current)

    # What takes blocks.

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, read_chat, ChatDialect())

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, read_completion, CompletionDialect())

    async def _generate(self, request: web.Request, read: _Reader, dialect: Dialect) -> web.StreamResponse:
        document = await self._received(request)
        asked = read(document, self._settings, request.headers.get("X-Vllm-Priority"))
        rank = read_rank(request.headers.get("X-data-parallel-rank"), self._settings)
        engine, envelope = self._engine(), self._envelope(request, dialect.id_prefix)
        # The engine's own name of the request: two clients may send the same one.
        async with engine.generate(f"{envelope.id}-{secrets.token_hex(4)}", asked.works, rank) as generation:
            answering = Answering(request, engine, self._faults, asked, dialect, envelope, generation)
            return await (answering.stream() if asked.stream else answering.whole())

    def _pooling(self, prefix: str, read: _PoolingReader, write: _Writer) -> _Handler:
        async def pool(request: web.Request) -> web.Response:
            asked = read(await self._received(request), self._settings)
            rank = read_rank(request.headers.get("X-data-parallel-rank"), self._settings)
            envelope = self._envelope(request, prefix)
            work = self._engine().generate(f"{envelope.id}-{secrets.token_hex(4)}", asked.works, rank)
            async with work as generation:
                async for _ in generation.emissions():
                    pass
            return json_response(write(envelope, asked))

        return pool

    async def _received(self, request: web.Request) -> dict[str, Any]:
        """The request's document, which is remembered as it came."""
        body = await request.read()
        self.received.append(Received(request.path, dict(request.headers), body))
        status = self._faults.current.error_status
        if status is not None:
            raise Refused(status, "Internal server error", "InternalServerError")
        return read_object(body, request.headers.get("Content-Type", ""))

    def _envelope(self, request: web.Request, prefix: str) -> Envelope:
        name = request.headers.get("X-Request-Id") or secrets.token_hex(8)
        created = int(self._engine().clock.time())
        return Envelope(id=f"{prefix}-{name}", created=created, model=self._settings.model)

    # What takes none.

    async def _tokenize(self, request: web.Request) -> web.Response:
        await self._faults.wait_while(lambda current: current.tokenizing is Tokenizing.HANG)
        if self._faults.current.tokenizing is Tokenizing.MISSING:
            raise web.HTTPNotFound
        if self._faults.current.tokenizing is Tokenizing.ERROR:
            raise Refused(500, "Internal server error", "InternalServerError")
        document = read_object(await request.read(), request.headers.get("Content-Type", ""))
        if self._settings.speech is Speech.LLAMACPP:
            return json_response({"tokens": tokens.encode(str(document.get("content", "")))})
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

    async def _server_info(self, request: web.Request) -> web.Response:  # noqa: ARG002 - aiohttp's shape of a handler
        return json_response(sglang_metrics.server_info(self._settings))

    async def _slots(self, request: web.Request) -> web.Response:  # noqa: ARG002 - aiohttp's shape of a handler
        return web.json_response(llamacpp_metrics.slots(self._engine().schedulers, self._settings))

    async def _props(self, request: web.Request) -> web.Response:  # noqa: ARG002 - aiohttp's shape of a handler
        return json_response(llamacpp_metrics.props(self._settings))

    async def _metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002 - aiohttp's shape of a handler
        await self._faults.wait_while(lambda current: current.metrics is Metrics.HANG)
        current = self._faults.current
        if current.metrics is Metrics.ERROR:
            raise Refused(500, "Internal server error", "InternalServerError")
        stale = current.metrics is Metrics.STALE and self._stale_metrics is not None
        text = self._stale_metrics if stale else telling.told(self._engine(), current)
        return telling.answered(self._engine(), text or "")
