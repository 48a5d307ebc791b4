"""The operator's HTTP client of the API server against servers that do not behave, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from http_stand_in import Handler, answering, hanging, hanging_up, serving
from kvquota_operator.adapters import api as api_module
from kvquota_operator.adapters.api import Api, object_path
from kvquota_operator.ports import (
    ClusterError,
    ClusterTimeoutError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    NotServedError,
    RefusedError,
    TerminatingError,
    ThrottledError,
    UnreachableError,
    VanishedError,
)


@asynccontextmanager
async def api_at(handler: Handler) -> AsyncIterator[Api]:
    async with serving(handler) as port, ApiClient(Configuration(host=f"http://127.0.0.1:{port}")) as client:
        yield Api(client)


def status(code: int, message: str = "no", *causes: str) -> bytes:
    details = {"details": {"causes": [{"reason": cause, "field": "metadata.namespace"} for cause in causes]}}
    return json.dumps({"kind": "Status", "code": code, "message": message} | (details if causes else {})).encode()


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        pytest.param(answering(400, status(400)), RefusedError, id="400: what was sent is wrong"),
        pytest.param(answering(401, status(401)), ForbiddenError, id="401: the token is not known"),
        pytest.param(answering(403, status(403)), ForbiddenError, id="403: a right is missing"),
        pytest.param(
            answering(403, status(403, "no", "NamespaceTerminating")),
            TerminatingError,
            id="403: the namespace is being deleted",
        ),
        pytest.param(answering(403, status(403, "no", "Other")), ForbiddenError, id="403: for a reason of its own"),
        pytest.param(answering(403, b'{"details": {"causes": 3}}'), ForbiddenError, id="403: of no API server"),
        pytest.param(answering(404, status(404)), VanishedError, id="404: the object is gone"),
        pytest.param(answering(409, status(409)), ConflictError, id="409: the object changed"),
        pytest.param(answering(410, status(410)), ExpiredError, id="410: the position is too old"),
        pytest.param(answering(404, b"404 page not found"), NotServedError, id="404: not of an object"),
        pytest.param(answering(422, status(422)), RefusedError, id="422: the schema refuses"),
        pytest.param(answering(429, status(429)), ThrottledError, id="429: too much"),
        pytest.param(answering(500, status(500)), UnreachableError, id="500: the server is in trouble"),
        pytest.param(answering(503, b"<html>"), UnreachableError, id="503 from a load balancer, no JSON"),
        pytest.param(answering(504, status(504)), ClusterTimeoutError, id="504: too slow behind it"),
        pytest.param(
            answering(418, b"[]"), UnreachableError, id="a code that nobody knows, and JSON that is no object"
        ),
        pytest.param(answering(200, b"<html>"), UnreachableError, id="a yes of somebody else, no JSON"),
        pytest.param(hanging_up, UnreachableError, id="a connection that breaks"),
    ],
)
async def test_how_an_api_servers_no_is_understood(handler: Handler, error: type[ClusterError]) -> None:
    async with api_at(handler) as api:
        with pytest.raises(error) as raised:
            await api.get("/api/v1/namespaces/a/pods/b")
    assert type(raised.value) is error


@pytest.mark.parametrize(("header", "seconds"), [("3", 3.0), ("soon", None)])
async def test_how_long_an_api_server_asks_to_wait(header: str, seconds: float | None) -> None:
    async with api_at(answering(429, status(429), Retry_After=header)) as api:
        with pytest.raises(ThrottledError, match="429: no") as raised:
            await api.get("/x")
    assert raised.value.retry_after == seconds


async def test_an_api_server_that_does_not_answer_costs_a_bounded_time() -> None:
    async with api_at(hanging) as api:
        with pytest.raises(ClusterTimeoutError):
            await api.get("/x", timeout_seconds=0.2)


async def test_a_long_list_comes_in_parts() -> None:
    async def handler(request: web.Request) -> web.Response:
        part = int(request.query.get("continue", "0"))
        assert (request.query["limit"], request.query["labelSelector"]) == ("500", "app in (a,b)")
        metadata = {"resourceVersion": "9", **({"continue": str(part + 1)} if part < 2 else {})}
        return web.json_response({"metadata": metadata, "items": [{"part": part}] if part else None})

    async with api_at(handler) as api:
        assert await api.list("/x", "app in (a,b)") == ([{"part": 1}, {"part": 2}], "9")


async def test_writes_say_who_writes_and_how() -> None:
    seen: list[tuple[str, str, dict[str, str], Any]] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.method, request.content_type, dict(request.query), json.loads(await request.read())))
        return web.json_response({"kind": "X"})

    async with api_at(handler) as api:
        await api.create("/x", {"a": None})
        await api.apply("/x/y", {"a": 1})
        await api.merge("/x/y", {"a": None})
    manager = {"fieldManager": "kvquota-operator"}
    assert seen == [
        ("POST", "application/json", manager, {"a": None}),
        ("PATCH", "application/apply-patch+yaml", {**manager, "force": "true"}, {"a": 1}),
        ("PATCH", "application/merge-patch+json", manager, {"a": None}),
    ]


def streaming(*chunks: bytes, then: Callable[[], Awaitable[None]] | None = None) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for chunk in chunks:
            await answer.write(chunk)
            await asyncio.sleep(0.01)
        if then is not None:
            await then()
        return answer

    return handler


async def watched(api: Api) -> list[Any]:
    return [event["n"] async for event in api.watch("/x", "5", "app=a")]


async def test_events_may_be_cut_anywhere_and_be_long() -> None:
    long = b'{"n": "' + b"x" * 3_000_000 + b'"}\n'
    async with api_at(streaming(b'{"n"', b': 1}\n{"n": 2}\n\n{', b'"n": 3}\n', long[:1000], long[1000:])) as api:
        events = await watched(api)
    assert events[:3] == [1, 2, 3]
    assert len(events[3]) == 3_000_000


async def test_a_watch_names_its_position_and_selector_and_wants_bookmarks() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert {name: request.query[name] for name in ("watch", "allowWatchBookmarks", "resourceVersion")} == {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": "5",
        }
        assert request.query["labelSelector"] == "app=a"
        return web.Response(body=b'{"n": 1}\n')

    async with api_at(handler) as api:
        assert await watched(api) == [1]


async def test_a_watch_that_is_refused() -> None:
    async with api_at(answering(410, status(410))) as api:
        with pytest.raises(ExpiredError):
            await watched(api)


async def test_a_silent_watch_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "INACTIVITY_SECONDS", 0.2)
    async with api_at(streaming(b'{"n": 1}\n', then=lambda: asyncio.sleep(3600))) as api:
        with pytest.raises(ClusterTimeoutError):
            await watched(api)


async def test_a_watch_that_breaks_in_the_middle() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b'{"n": 1}\n')
        assert request.transport is not None
        request.transport.abort()
        return answer

    async with api_at(handler) as api:
        with pytest.raises(UnreachableError):
            await watched(api)


async def test_a_watch_with_an_endless_line_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "LONGEST_LINE_BYTES", 1000)
    async with api_at(streaming(b"x" * 600, b"x" * 600, then=lambda: asyncio.sleep(3600))) as api:
        with pytest.raises(UnreachableError, match="more than 1000 bytes"):
            await watched(api)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param(object_path("/api/v1", "a", "pods"), "/api/v1/namespaces/a/pods", id="a collection"),
        pytest.param(object_path("/api/v1", "", "pods"), "/api/v1/pods", id="a collection of all namespaces"),
        pytest.param(
            object_path("/apis/g/v1", "a", "pools", "b", "status"), "/apis/g/v1/namespaces/a/pools/b/status", id="part"
        ),
        pytest.param(
            object_path("/api/v1", "../x", "secrets", "a/b?c"),
            "/api/v1/namespaces/..%2Fx/secrets/a%2Fb%3Fc",
            id="a name leads nowhere else",
        ),
    ],
)
def test_paths(path: str, text: str) -> None:
    assert path == text
