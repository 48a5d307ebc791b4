"""The operator's HTTP client of sidecars against servers that do not behave, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import web

from http_stand_in import Handler, answering, hanging, hanging_up, serving
from kvquota_api import usage
from kvquota_api.usage import SyncRequest
from kvquota_operator.adapters import channel as channel_module
from kvquota_operator.adapters.channel import http_channel
from kvquota_operator.ports import BadAnswerError, ChannelError, PodTimeoutError, PodUnreachableError, TokenRefusedError
from operator_fakes import moved, pod, report
from testcluster.processes import free_port

QUESTION = SyncRequest(config_digest="c", identity_digest="i")


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
