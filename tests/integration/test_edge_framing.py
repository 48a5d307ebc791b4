"""Requests on the edge of HTTP/1.1, as bytes on a socket: cut at every byte they get the same answer.

Each of them is followed by another request on the same connection, which only a connection that stays is answered; the
key is a good one, so whatever is refused is refused for its form. The engine sees nothing of it.
"""

import gzip
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from kvquota_sidecar.proxy.client_side import ClientConnection
from raw_client import Reads, Replays
from raw_engine import EngineConnection, echoing
from sidecar_rig import BATCH, SEARCH, Running, both_ends, config, identity, on_the_programs_loop, share, sync_request

LINE = b"POST /v1/completions HTTP/1.1\r\n"
HOST = b"Host: a\r\n"
WHO = b"Authorization: Bearer k\r\n"
BODY = b'{"model":"tiny","prompt":"hello","max_tokens":4}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
NEXT = b"GET /nowhere HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
NOWHERE = (404, "route_not_allowed")  # what the request after it gets

# What ended a moment ago counts as held for a while, so hundreds of requests in a second need room.
ROOMY = config(share(SEARCH, soft=20_000, hard=60_000), share(BATCH, soft=20_000, hard=60_000), blocks=65_536)
# What depends on when it was asked, and on what else runs.
PASSING = {
    *("date", "x-request-id", "content-length", "ratelimit", "x-kvquota-used-tokens", "x-kvquota-in-flight"),
    *("retry-after", "retry-after-ms"),
}
_ANSWER = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r]*\r\n((?:[^\r]+\r\n)*)\r\n")


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer: its status, its headers without what passes, and its body."""

    status: int
    headers: dict[str, str]
    body: Any

    @property
    def outcome(self) -> tuple[int, str]:
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return self.status, "" if error is None else error["code"]


def answers(wire: bytes) -> list[Answered]:
    """The answers on a connection, of which each has its length; without interim ones, which come only where the body
    was cut off its head."""
    found, rest = [], wire
    while rest:
        match = _ANSWER.match(rest)
        assert match is not None, rest
        headers = dict(line.split(": ", 1) for line in match[2].decode().split("\r\n")[:-1])
        size = int(headers.get("content-length", 0))
        body, rest = rest[match.end() : match.end() + size], rest[match.end() + size :]
        if match[1] != b"100":
            lasting = {name: value for name, value in headers.items() if name not in PASSING}
            found.append(Answered(int(match[1]), lasting, _without_id(json.loads(body))))
    return found


def _without_id(body: Any) -> Any:
    if "headers" in body:
        assert body["headers"].pop("x-request-id")
    return body


@dataclass(frozen=True, slots=True)
class Edge:
    """A sidecar before an engine that answers what it was asked; `seen` is what it was asked."""

    running: Running
    replays: Replays
    seen: list[EngineConnection]
    authority: str

    async def said(self, data: bytes) -> list[Answered]:
        """The answers to `data`, which are the same however it is cut, and to what follows it."""
        first, *others = [answers(each) for each in await self.replays.every_way(data + NEXT)]
        assert [each for each in others if each != first] == []
        return first

    async def kept_out(self, data: bytes) -> list[Answered]:
        """The same, of what the engine sees nothing of and no tenant is charged for."""
        found = await self.said(data)
        assert self.seen == []
        assert self.admitted() == [0, 0]
        return found

    def admitted(self) -> list[int]:
        """How many requests of each tenant."""
        return [each.total.admitted for each in self.running.report().tenants]


@asynccontextmanager
async def edge(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Edge]:
    async with both_ends(wanted=ROOMY) as (running, engine), echoing(engine) as seen:
        running.sidecar.sync(sync_request(None, identity(k=SEARCH, b=BATCH)))
        bind = running.sidecar.traffic_address
        reads = Reads()
        reads.watch(ClientConnection, "peername", monkeypatch)
        yield Edge(running, Replays(bind.host, bind.port, reads), seen, engine.authority)
        await running.idle()


def with_body(*lines: bytes, body: bytes = BODY) -> bytes:
    return LINE + HOST + WHO + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


def of_length(size: bytes) -> bytes:
    return with_body(b"Content-Length: " + size)


def to(target: bytes, method: bytes = b"POST") -> bytes:
    return method + b" " + target + b" HTTP/1.1\r\n" + HOST + WHO + LENGTH + b"\r\n" + BODY


CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
SIZE = b"%d" % len(BODY)
CLOSED = {
    "a length and a transfer coding": with_body(b"Content-Length: " + SIZE, CHUNKED),
    "a transfer coding and a length": with_body(CHUNKED, b"Content-Length: 3", body=CHUNKS),
    "two different lengths": with_body(b"Content-Length: " + SIZE, b"Content-Length: 5"),
    "two equal lengths": with_body(*[b"Content-Length: " + SIZE] * 2),
    "a list of lengths": of_length(SIZE + b", " + SIZE),
    "a length with a plus": of_length(b"+" + SIZE),
    "a length below zero": of_length(b"-1"),
    "a length with a letter": of_length(b"0x30"),
    "a transfer coding that is none": with_body(b"Transfer-Encoding: xchunked", body=CHUNKS),
    "a coding before the chunks": with_body(b"Transfer-Encoding: gzip, chunked", body=CHUNKS),
    "a bare LF after the request line": LINE.replace(b"\r\n", b"\n") + HOST + WHO + LENGTH + b"\r\n" + BODY,
    "a bare LF after a header": with_body(b"X: y\nContent-Length: " + SIZE),
    "a bare LF at the end of the head": LINE + HOST + WHO + LENGTH + b"\n" + BODY,
    "a folded header": with_body(b"X: y\r\n z", b"Content-Length: " + SIZE),
    "a space before a colon": with_body(b"Content-Length : " + SIZE),
    "a tab before a colon": with_body(b"Transfer-Encoding\t: chunked", body=CHUNKS),
    "a bare CR in a value": with_body(b"X: y\rz", b"Content-Length: " + SIZE),
    "a NUL in a value": with_body(b"X: y\0z", b"Content-Length: " + SIZE),
    "no host": LINE + WHO + LENGTH + b"\r\n" + BODY,
    "two hosts": with_body(b"Host: a", b"Content-Length: " + SIZE),
    "a host that is none": with_body(b"Content-Length: " + SIZE).replace(b"Host: a", b"Host: a@b/"),
    "an absolute target": to(b"http://127.0.0.1:1/v1/completions"),
    "a target of two slashes": to(b"//127.0.0.1:1/v1/completions"),
    "a target with a backslash": to(b"/\\127.0.0.1:1/v1/completions"),
    "CONNECT": to(b"127.0.0.1:1", b"CONNECT"),
    "a target of a star": to(b"*", b"OPTIONS"),
    "version 2": with_body(b"Content-Length: " + SIZE).replace(b"HTTP/1.1", b"HTTP/2.0", 1),
    "a chunk's size with a sign": with_body(CHUNKED, body=b"+" + CHUNKS),
    "a chunk that is longer than it says": with_body(CHUNKED, body=CHUNKS.replace(b"\r\n0", b"x\r\n0")),
    "a chunk that ends in a bare LF": with_body(CHUNKED, body=CHUNKS.replace(b"\r\n{", b"\n{")),
}


@pytest.mark.parametrize("data", CLOSED.values(), ids=CLOSED)
@on_the_programs_loop
async def test_what_two_readers_could_read_differently_is_a_400_and_the_end(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edge(monkeypatch) as it:
        (got,) = await it.kept_out(data)
    assert (got.outcome, got.headers["connection"]) == ((400, "malformed_request"), "close")


COMPRESSED = gzip.compress(b" " * (1 << 20), mtime=0)
OTHERWISE = {
    "a compressed body": (
        with_body(b"Content-Encoding: gzip", b"Content-Length: %d" % len(COMPRESSED), body=COMPRESSED),
        (415, "unsupported_encoding"),
    ),
    "a body compressed in another way": (
        with_body(b"Content-Encoding: br", b"Content-Length: " + SIZE),
        (415, "unsupported_encoding"),
    ),
    "another expectation": (
        with_body(b"Expect: 200-ok", b"Content-Length: " + SIZE),
        (417, "expectation_failed"),
    ),
    "a body over the limit": (of_length(b"%d" % (1 << 30)), (413, "request_too_large")),
}


@pytest.mark.parametrize(("data", "expected"), OTHERWISE.values(), ids=OTHERWISE)
@on_the_programs_loop
async def test_what_is_not_taken_at_all_is_the_end_too(
    data: bytes, expected: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edge(monkeypatch) as it:
        (got,) = await it.kept_out(data)
    assert (got.outcome, got.headers["connection"]) == (expected, "close")


ELSEWHERE = {
    "a route of the engine's administrator": b"POST /reset_prefix_cache",
    "CONNECT of a path": b"CONNECT /v1/completions",
    "a method in other letters": b"post /v1/completions",
    "a path with a dot": b"POST /v1/./completions",
    "a path in percents": b"POST /v1/%63ompletions",
    "a path that goes on": b"POST /v1/completions/",
}


@pytest.mark.parametrize("start", ELSEWHERE.values(), ids=ELSEWHERE)
@on_the_programs_loop
async def test_what_is_no_route_is_a_404_and_the_connection_stays(
    start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edge(monkeypatch) as it:
        got = await it.kept_out(start + b" HTTP/1.1\r\n" + HOST + WHO + b"\r\n")
    assert [each.outcome for each in got] == [NOWHERE, NOWHERE]


def of_fields(fields: bytes) -> bytes:
    return b'{"model":"tiny","prompt":"hello",%b}' % fields


NEVER_ONE_READING = {
    "a key twice": of_fields(b'"max_tokens":4,"max_tokens":4000'),
    "a key twice, once in escapes": of_fields(b'"max_tokens":4,"max_t\\u006fkens":4000'),
    "NaN": of_fields(b'"max_tokens":4,"temperature":NaN'),
    "infinity": of_fields(b'"max_tokens":4,"temperature":-Infinity'),
    "10,000 levels": of_fields(b'"max_tokens":4,"x":' + b"[" * 10_000 + b"]" * 10_000),
    "bytes that are no UTF-8": of_fields(b'"max_tokens":4,"user":"\xff"'),
    "a number beyond all": of_fields(b'"max_tokens":4,"temperature":1e400'),
    "a limit that is a word of logic": of_fields(b'"max_tokens":true'),
    "a limit with a fraction": of_fields(b'"max_tokens":4.0'),
    "a limit in quotes": of_fields(b'"max_tokens":"4"'),
    "a limit below zero": of_fields(b'"max_tokens":-1'),
    "a limit beyond 64 bits": of_fields(b'"max_tokens":9223372036854775808'),
    "no JSON": b"max_tokens=4",
    "nothing": b"",
}


@pytest.mark.parametrize("body", NEVER_ONE_READING.values(), ids=NEVER_ONE_READING)
@on_the_programs_loop
async def test_a_body_that_engine_and_books_could_read_differently_is_a_400_and_the_connection_stays(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edge(monkeypatch) as it:
        got = await it.kept_out(with_body(b"Content-Length: %d" % len(body), body=body))
    assert [each.outcome for each in got] == [(400, "malformed_request"), NOWHERE]


TAKEN = {
    "a length": with_body(b"Content-Length: " + SIZE),
    "chunks": with_body(CHUNKED, body=CHUNKS),
    "chunks of a byte each": with_body(
        CHUNKED, body=b"".join(b"1\r\n%c\r\n" % each for each in BODY) + b"0\r\n\r\n"
    ),
    "chunks with extensions and a trailer": with_body(
        CHUNKED, body=CHUNKS.replace(b"\r\n{", b";a=b\r\n{").replace(b"0\r\n", b"0\r\nX-T: y\r\n")
    ),
    "an expectation that is met": with_body(b"Expect: 100-continue", b"Content-Length: " + SIZE),
    "an upgrade that is passed over": with_body(
        b"Connection: upgrade, http2-settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk", b"Content-Length: " + SIZE
    ),
    "headers for the next hop only": with_body(
        b"Connection: keep-alive, x-hop", b"X-Hop: 1", b"Keep-Alive: timeout=5", b"TE: trailers", b"Trailer: X-T",
        b"Proxy-Authorization: Basic eDp5", b"Proxy-Connection: close", b"Content-Length: " + SIZE,
    ),
    "headers that steer the engine": with_body(
        b"X-Vllm-Priority: -9", b"X-data-parallel-rank: 1", b"X-Session-ID: s", b"x_tenant_id: b", b"X-Tenant: b",
        b"X-Kvquota-Tenant: shop/batch", b"Content-Length: " + SIZE,
    ),
    "an empty line before it": b"\r\n" + with_body(b"Content-Length: " + SIZE),
    "its host in the query": with_body(b"Content-Length: " + SIZE).replace(b"completions ", b"completions?a=//b "),
}  # fmt: skip


@pytest.mark.parametrize("data", TAKEN.values(), ids=TAKEN)
@on_the_programs_loop
async def test_what_has_one_reading_reaches_the_engine_in_one_form_and_is_counted_once(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the client's form was: the engine's address, path and headers are this program's own."""

    async with edge(monkeypatch) as it:
        got = await it.said(data)
        assert it.admitted() == [len(it.seen), 0]
        sent = got[0].body
    assert [each.outcome for each in got] == [(200, ""), NOWHERE]
    assert sent["line"] == "POST /v1/completions HTTP/1.1"
    assert sent["headers"] == {
        "host": it.authority,
        "authorization": "Bearer k",
        "x-vllm-priority": sent["headers"]["x-vllm-priority"],
        "content-length": str(len(sent["body"])),
    }
    assert sent["headers"]["x-vllm-priority"] >= "0"
    assert set(json.loads(sent["body"])) == {"model", "prompt", "max_tokens", "priority", "cache_salt"}


@on_the_programs_loop
async def test_two_that_come_at_once_are_answered_in_order_each_counted_once_and_each_as_its_own_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bodies = [of_fields(b'"max_tokens":%d' % limit) for limit in (1, 2, 3)]
    first, third = (with_body(b"Content-Length: %d" % len(body), body=body) for body in bodies[::2])
    chunked = with_body(CHUNKED, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(bodies[1]), bodies[1]))

    async with edge(monkeypatch) as it:
        got = await it.said(first + chunked.replace(b"Bearer k", b"Bearer b") + third)
        assert it.admitted() == [2 * len(it.seen) // 3, len(it.seen) // 3]
    assert [each.outcome for each in got] == [(200, "")] * 3 + [NOWHERE]
    assert [json.loads(each.body["body"])["max_tokens"] for each in got[:3]] == [1, 2, 3]
    assert [each.body["headers"]["authorization"] for each in got[:3]] == ["Bearer k", "Bearer b", "Bearer k"]


@on_the_programs_loop
async def test_what_follows_a_refused_one_is_not_read_as_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The body of one that two readers frame differently is a request to one of them."""
    hidden = with_body(b"Content-Length: " + SIZE)
    data = with_body(b"Content-Length: %d" % (5 + len(hidden)), CHUNKED, body=b"0\r\n\r\n" + hidden)

    async with edge(monkeypatch) as it:
        got = await it.said(with_body(b"Content-Length: " + SIZE) + data)
        assert it.admitted() == [len(it.seen), 0]
    assert [each.outcome for each in got] == [(200, ""), (400, "malformed_request")]
