"""The operator's two HTTP clients against servers that do not behave, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from kvquota_api import usage
from kvquota_api.usage import SyncRequest
from kvquota_operator.adapters import api as api_module
from kvquota_operator.adapters import channel as channel_module
from kvquota_operator.adapters.api import Api, object_path
from kvquota_operator.adapters.channel import http_channel
from kvquota_operator.ports import (
    BadAnswerError,
    ChannelError,
    ClusterError,
    ClusterTimeoutError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    NotServedError,
    PodTimeoutError,
    PodUnreachableError,
    RefusedError,
    ThrottledError,
    TokenRefusedError,
    UnreachableError,
    VanishedError,
)
from operator_fakes import moved, pod, report
from testcluster.processes import free_port

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

QUESTION = SyncRequest(config_digest="c", identity_digest="i")


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    """A server on a port of its own, every request of which goes to `handler`."""
    application = web.Application(client_max_size=2**24)
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield port
    finally:
        await runner.cleanup()


def answering(status: int = 200, body: bytes = b"", **headers: str) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(
            status=status, body=body, headers={name.replace("_", "-"): v for name, v in headers.items()}
        )

    return handler


async def hanging(_: web.Request) -> web.Response:
    await asyncio.sleep(3600)
    raise AssertionError


async def hanging_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def test_a_sync_carries_the_token_and_the_documents_and_gives_the_report() -> None:
    seen: dict[str, Any] = {}

    async def handler(request: web.Request) -> web.Response:
        seen.update(path=request.path, method=request.method, token=request.headers["Authorization"])
        seen["asked"] = usage.decode_request(await request.read())
        return web.Response(body=usage.encode(report(sequence=7)))

    async with serving(handler) as port, http_channel() as channel:
        answer = await channel.sync(moved(pod(ip="127.0.0.1"), admin_port=port), "secret", QUESTION)
    assert answer == report(sequence=7)
    assert seen == {"path": "/v1/sync", "method": "POST", "token": "Bearer secret", "asked": QUESTION}


async def test_one_connection_is_kept_for_all_syncs_with_a_pod() -> None:
    peers = set()

    async def handler(request: web.Request) -> web.Response:
        peers.add(request.transport.get_extra_info("peername") if request.transport else None)
        return web.Response(body=usage.encode(report()))

    async with serving(handler) as port, http_channel() as channel:
        for _ in range(5):
            await channel.sync(moved(pod(ip="127.0.0.1"), admin_port=port), "secret", QUESTION)
    assert len(peers) == 1


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        pytest.param(answering(401), TokenRefusedError, id="a token that is not accepted"),
        pytest.param(answering(403), TokenRefusedError, id="a token that is not allowed"),
        pytest.param(answering(404), BadAnswerError, id="an older sidecar, or something else on this port"),
        pytest.param(answering(500, b"oops"), BadAnswerError, id="a sidecar in trouble"),
        pytest.param(answering(302, Location="http://127.0.0.2/"), BadAnswerError, id="a redirect is not followed"),
        pytest.param(answering(200, b"<html>"), BadAnswerError, id="a page"),
        pytest.param(answering(200, b"{}"), BadAnswerError, id="JSON that is no report"),
        pytest.param(answering(200, b"\xff\xfe"), BadAnswerError, id="bytes that are no text"),
        pytest.param(answering(200, b"x" * 9_000_000), BadAnswerError, id="more than a report can be"),
        pytest.param(hanging_up, PodUnreachableError, id="a connection that breaks"),
    ],
)
async def test_a_sidecar_that_does_not_report(handler: Handler, error: type[ChannelError]) -> None:
    async with serving(handler) as port, http_channel() as channel:
        with pytest.raises(error):
            await channel.sync(moved(pod(ip="127.0.0.1"), admin_port=port), "secret", QUESTION)


async def test_a_sidecar_that_does_not_answer_costs_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "TIMEOUT_SECONDS", 0.2)
    async with serving(hanging) as port, http_channel() as channel:
        with pytest.raises(PodTimeoutError, match=r"pod-0 did not answer within 0\.2 s"):
            await channel.sync(moved(pod(ip="127.0.0.1"), admin_port=port), "secret", QUESTION)


Speak = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def speaking(speak: Speak) -> AsyncIterator[int]:
    """A server whose every connection is `speak`'s, byte by byte."""

    served = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await speak(reader, writer)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
    await asyncio.wait_for(asyncio.gather(*filter(None, served)), 5)


async def asked(reader: asyncio.StreamReader) -> None:
    """Read one request to its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(length))


def whole(sequence: int = 1, *, length: str = "Content-Length: {}", version: str = "HTTP/1.1") -> bytes:
    body = usage.encode(report(sequence=sequence))
    return f"{version} 200 OK\r\n{length.format(len(body))}\r\n\r\n".encode() + body


async def test_an_answer_may_come_in_pieces() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await asked(reader)
            for byte in whole():
                writer.write(bytes([byte]))
                await asyncio.sleep(0)

    async with speaking(speak) as port, http_channel() as channel:
        there = moved(pod(ip="127.0.0.1"), admin_port=port)
        assert await channel.sync(there, "secret", QUESTION) == report()
        assert await channel.sync(there, "secret", QUESTION) == report()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "is not HTTP/1.1", id="another protocol"),
        pytest.param(whole(version="HTTP/2.0"), "is not HTTP/1.1", id="another version"),
        pytest.param(whole(length="Transfer-Encoding: chunked"), "does not say how long", id="chunks"),
        pytest.param(whole(length="Content-Length: -1"), "does not say how long", id="a length that is none"),
        pytest.param(whole(length="Content-Length: 2\r\nContent-Length: 2"), "does not say how long", id="two lengths"),
        pytest.param(whole(length="Content-Length: " + "9" * 5000), "larger than", id="a length beyond all bounds"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20000, "no body after", id="an endless head"),
    ],
)
async def test_what_is_no_answer_of_a_sidecar(answer: bytes, says: str) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(answer)
        await writer.drain()

    async with speaking(speak) as port, http_channel() as channel:
        with pytest.raises(BadAnswerError, match=f"what answers at 127.0.0.1 is no sidecar: .*{says}"):
            await channel.sync(moved(pod(ip="127.0.0.1"), admin_port=port), "secret", QUESTION)


async def test_a_kept_connection_that_was_closed_meanwhile_is_made_anew() -> None:
    connections = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await asked(reader)
        writer.write(whole(len(connections)))
        if len(connections) == 1:
            await asked(reader)  # closed with a request that has no answer: as one that crosses the end of the process

    async with speaking(speak) as port, http_channel() as channel:
        there = moved(pod(ip="127.0.0.1"), admin_port=port)
        assert await channel.sync(there, "secret", QUESTION) == report(sequence=1)
        assert await channel.sync(there, "secret", QUESTION) == report(sequence=2)


async def test_an_answer_that_breaks_off_is_not_asked_for_again() -> None:
    connections = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await asked(reader)
        writer.write(whole())
        await asked(reader)
        writer.write(whole()[:-1])

    async with speaking(speak) as port, http_channel() as channel:
        there = moved(pod(ip="127.0.0.1"), admin_port=port)
        await channel.sync(there, "secret", QUESTION)
        with pytest.raises(PodUnreachableError):
            await channel.sync(there, "secret", QUESTION)
    assert len(connections) == 1


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nConnection: close\r\n", id="that will be closed"),
        pytest.param(b"HTTP/1.0 200 OK\r\n", id="of an old version"),
    ],
)
async def test_a_connection_is_not_used_again(end: bytes) -> None:
    connections = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await asked(reader)
        body = usage.encode(report())
        writer.write(end + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await reader.read()

    async with speaking(speak) as port, http_channel() as channel:
        for _ in range(2):
            await channel.sync(moved(pod(ip="127.0.0.1"), admin_port=port), "secret", QUESTION)
    assert len(connections) == 2


async def test_a_connection_on_which_somebody_speaks_unasked_is_not_used_again() -> None:
    connections = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await asked(reader)
        writer.write(whole() + b"HTTP/1.1 200 OK\r\n")
        await reader.read()

    async with speaking(speak) as port, http_channel() as channel:
        for _ in range(2):
            await channel.sync(moved(pod(ip="127.0.0.1"), admin_port=port), "secret", QUESTION)
    assert len(connections) == 2


async def test_a_connection_that_nobody_used_for_long_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "KEEP_SECONDS", 0.1)
    ended = asyncio.Event()

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(whole())

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await once(reader, writer)
        try:
            await reader.read()
        finally:
            ended.set()

    async with speaking(speak) as port, speaking(once) as other, http_channel() as channel:
        await channel.sync(moved(pod(ip="127.0.0.1"), admin_port=port), "secret", QUESTION)
        await asyncio.sleep(0.2)
        assert not ended.is_set()
        await channel.sync(moved(pod(ip="127.0.0.1"), admin_port=other), "secret", QUESTION)
        await asyncio.wait_for(ended.wait(), 5)


async def test_a_token_that_no_header_can_carry_is_not_sent() -> None:
    async with http_channel() as channel:
        with pytest.raises(TokenRefusedError, match="delete the pool's Secret"):
            await channel.sync(moved(pod(ip="127.0.0.1"), admin_port=1), "a\r\nHost: b", QUESTION)


async def test_nobody_at_the_address_is_told() -> None:
    async with http_channel() as channel:
        with pytest.raises(PodUnreachableError, match=r"pod-0 cannot be reached at 127\.0\.0\.1"):
            await channel.sync(moved(pod(ip="127.0.0.1"), admin_port=free_port()), "secret", QUESTION)


@asynccontextmanager
async def api_at(handler: Handler) -> AsyncIterator[Api]:
    async with serving(handler) as port, ApiClient(Configuration(host=f"http://127.0.0.1:{port}")) as client:
        yield Api(client)


def status(code: int, message: str = "no") -> bytes:
    return json.dumps({"kind": "Status", "code": code, "message": message}).encode()


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        pytest.param(answering(400, status(400)), RefusedError, id="400: what was sent is wrong"),
        pytest.param(answering(401, status(401)), ForbiddenError, id="401: the token is not known"),
        pytest.param(answering(403, status(403)), ForbiddenError, id="403: a right is missing"),
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
