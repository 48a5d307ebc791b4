"""What a client cannot make a sidecar hold or wait for: heads, bodies, and how long they take."""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kvquota_sidecar.proxy.client_side import ClientConnection
from kvquota_sidecar.proxy.hub import Patience
from kvquota_sidecar.proxy.reading import MAX_HEAD_BYTES, MAX_HEADERS
from raw_client import WHOLE_BYTES, RawClient, Reads, Replays
from sidecar_program import Program, engine, files_of, mounted, start
from sidecar_rig import (
    KEYS,
    SEARCH,
    ManualClock,
    Running,
    both_ends,
    chat,
    eventually,
    on_both_loops,
    on_the_programs_loop,
    post,
)
from testcluster.processes import Keeper

HEAD = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEYS[SEARCH]}\r\n".encode()
CHUNKED = HEAD + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
LIMIT = 64 * 1024


def held(running: Running) -> int:
    return running.sidecar._traffic_hub.buffers.total_bytes


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


BIG_HEADS = {
    "one header of 100 kB": HEAD + b"X-A: " + b"y" * 100_000 + b"\r\n\r\n",
    "2,000 headers": HEAD + b"".join(b"X-%d: y\r\n" % each for each in range(2_000)) + b"\r\n",
}


@pytest.mark.parametrize("data", BIG_HEADS.values(), ids=BIG_HEADS)
@on_both_loops
async def test_a_head_over_the_limit_is_a_431_and_is_not_kept(data: bytes) -> None:
    async with both_ends() as (running, _), await running.connect() as client:
        client.send(data)
        got = await client.answer()
        assert (got.status, got.code, got.headers["connection"]) == (431, "headers_too_large", "close")
        await eventually("nothing is held", lambda: held(running) == 0)


@on_both_loops
async def test_a_body_over_the_limit_is_refused_at_its_length_before_a_byte_of_it() -> None:
    async with both_ends(patience=Patience(max_body_bytes=LIMIT)) as (running, _), await running.connect() as client:
        got = await client.ask(HEAD + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (LIMIT + 1))
    assert (got.status, got.code, got.headers["connection"]) == (413, "request_too_large", "close")


@on_both_loops
async def test_a_body_without_a_length_is_refused_at_the_byte_that_passes_the_limit() -> None:
    body = chat().ljust(LIMIT)
    async with both_ends(patience=Patience(max_body_bytes=LIMIT)) as (running, engine):
        async with await running.connect() as client:
            client.send(CHUNKED + chunk(body) + b"0\r\n\r\n")
            (await engine.next()).answer(b"{}")
            assert (await client.answer()).status == 200
        async with await running.connect() as client:
            client.send(CHUNKED + chunk(body))
            await eventually("it is held", lambda: held(running) >= LIMIT)
            client.send(chunk(b" "))
            got = await client.answer()
            assert (got.status, got.code, got.headers["connection"]) == (413, "request_too_large", "close")


@on_both_loops
async def test_a_body_in_chunks_that_trickle_is_a_408_after_60_seconds() -> None:
    clock = ManualClock()
    async with both_ends(clock=clock) as (running, _), await running.connect() as client:
        client.send(CHUNKED)
        for _ in range(12):
            before = held(running)
            client.send(chunk(b"x"))
            await eventually("it is read", lambda: held(running) > before)  # noqa: B023 - asked at once
            clock.now += 4.99
        await asyncio.sleep(0.2)
        assert len(running.sidecar._traffic_hub.connections) == 1
        clock.now += 0.2
        got = await client.answer()
    assert (got.status, got.code) == (408, "request_timeout")


# However it is cut.


def said(wire: bytes) -> tuple[int, str, str]:
    """Status, code and Connection header of the only answer on a connection."""
    head, _, body = wire.partition(b"\r\n\r\n")
    first, *lines = head.decode().lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert len(body) == int(headers["content-length"])
    return int(first.split(" ")[1]), json.loads(body)["error"]["code"], headers["connection"]


SMALL_LIMIT = 64  # bytes of a body
REFUSED = {
    "one header too many": (
        HEAD + b"".join(b"X: y\r\n" for _ in range(MAX_HEADERS)) + b"\r\n",
        (431, "headers_too_large", "close"),
    ),
    "a byte of headers too many": (
        HEAD + b"X: ".ljust(MAX_HEAD_BYTES - len(HEAD), b"y") + b"\r\n\r\n",
        (431, "headers_too_large", "close"),
    ),
    "a chunk that passes the limit": (
        CHUNKED + chunk(b"x" * SMALL_LIMIT) + chunk(b"y") + b"0\r\n\r\n",
        (413, "request_too_large", "close"),
    ),
    "one chunk over the limit": (
        CHUNKED + chunk(b"x" * (SMALL_LIMIT + 1)) + b"0\r\n\r\n",
        (413, "request_too_large", "close"),
    ),
}


@pytest.mark.parametrize(("data", "expected"), REFUSED.values(), ids=REFUSED)
@on_the_programs_loop
async def test_what_is_too_large_is_refused_the_same_however_it_is_cut(
    data: bytes, expected: tuple[int, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with both_ends(patience=Patience(max_body_bytes=SMALL_LIMIT)) as (running, engine):
        reads, bind = Reads(), running.sidecar.traffic_address
        reads.watch(ClientConnection, "peername", monkeypatch)
        seen = Counter([said(each) for each in await Replays(bind.host, bind.port, reads).every_way(data)])
        assert engine.requests.empty()
    assert (list(seen), seen.total() > WHOLE_BYTES // 2) == ([expected], True)


STOPPING = {"with a length": post(chat()), "in chunks": CHUNKED + chunk(chat()) + b"0\r\n\r\n"}


@pytest.mark.parametrize("data", STOPPING.values(), ids=STOPPING)
@on_the_programs_loop
async def test_a_request_that_stops_at_any_byte_is_a_408_when_its_time_is_over(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, reads = ManualClock(), Reads()
    reads.watch(ClientConnection, "peername", monkeypatch)
    async with both_ends(clock=clock) as (running, engine), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await running.connect()) for _ in range(1, len(data))]
        for at, client in enumerate(clients, start=1):
            client.send(data[:at])
            await reads.reach(client.writer.get_extra_info("sockname")[1], at, client.reader.at_eof)
        clock.now += max(Patience().head, Patience().body) - 0.1
        await asyncio.sleep(0.2)
        heads = data.index(b"\r\n\r\n") + 3
        assert len(running.sidecar._traffic_hub.connections) >= len(clients) - heads, "a body has longer than a head"
        clock.now += 0.2
        seen = Counter([said(await client.eof()) for client in clients])
        assert engine.requests.empty()
    assert seen == {(408, "request_timeout", "close"): len(data) - 1}


async def asked(program: Program, data: bytes) -> tuple[int, str]:
    where = urlsplit(program.url)
    async with await RawClient.open(where.hostname or "", where.port or 0) as client:
        got = await client.ask(data)
        return got.status, got.headers.get("connection", "")


async def test_the_program_has_these_limits_and_those_of_its_flags(keeper: Keeper, tmp_path: Path) -> None:
    folder = mounted(tmp_path)
    flags = ("--max-body-mib", "0.0625", "--max-connections", "3", "--lame-duck-seconds", "0")
    program = await asyncio.to_thread(
        lambda: start(keeper, folder, "--engine", engine(keeper, folder), *files_of(folder), *flags)
    )
    for data in BIG_HEADS.values():
        assert await asked(program, data) == (431, "close")
    assert await asked(program, HEAD + b"Content-Length: %d\r\n\r\n" % (LIMIT + 1)) == (413, "close")
    assert await asked(program, CHUNKED + chunk(b"x" * LIMIT) + chunk(b"x")) == (413, "close")
    assert await asked(program, post(chat(max_tokens=1))) == (200, "")
    where = urlsplit(program.url)
    others = [await RawClient.open(where.hostname or "", where.port or 0) for _ in range(3)]
    async with await RawClient.open(where.hostname or "", where.port or 0):
        assert await others[0].eof() == b""
    for each in others:
        await each.close()
