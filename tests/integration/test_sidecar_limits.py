"""What a client cannot make a sidecar hold or wait for: heads, bodies, and how long they take."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kvquota_sidecar.proxy.hub import Patience
from raw_client import RawClient
from sidecar_program import Program, engine, files_of, mounted, start
from sidecar_rig import KEYS, SEARCH, ManualClock, Running, both_ends, chat, eventually, on_both_loops, post
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
