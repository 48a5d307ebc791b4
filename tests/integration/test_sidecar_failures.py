"""An engine that fails, and what its clients see of it."""

import asyncio
import json
from typing import Any

import pytest

from raw_client import DEADLINE_SECONDS, RawClient
from sidecar_rig import ManualClock, Running, begun_stream, both_ends, chat, get, on_both_loops, post


def log_of(running: Running) -> list[dict[str, Any]]:
    return [json.loads(line) for line in running.log.getvalue().splitlines()]


async def read_on(client: RawClient) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while await client.reader.read(1 << 16):
            pass


@on_both_loops
async def test_an_engine_that_does_not_listen_is_a_502_that_says_what_to_check() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        await engine.stop()
        got = await client.ask(post(chat()))
        await running.idle()
    assert (got.status, got.code, got.headers["x-should-retry"]) == (502, "engine_error", "true")
    assert engine.authority in got.json()["error"]["message"]
    assert 1 <= int(got.headers["retry-after"]) <= 60


BROKEN = {
    "nothing": b"",
    "a part of a head": b"HTTP/1.1 200 OK\r\nContent-",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n",
    "a head only": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "a head without end": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
}


@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN)
@on_both_loops
async def test_an_answer_that_breaks_before_its_body_is_a_502(sent: bytes) -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        upstream = await engine.next()
        upstream.send(sent)
        upstream.finish()
        got = await client.answer()
        await running.idle()
    assert (got.status, got.code) == (502, "engine_error")


@pytest.mark.parametrize("death", ["cut", "finish"])
@on_both_loops
async def test_an_engine_that_dies_in_a_stream_leaves_it_visibly_broken(death: str) -> None:
    async with both_ends() as (running, engine), begun_stream(running, engine) as stream:
        getattr(stream.upstream, death)()
        rest = await stream.client.eof()
        await running.idle()
        assert [line["code"] for line in running.events("engine_failed")] == ["engine_error"]
    assert b"engine_error" in rest
    assert b"[DONE]" not in rest
    assert b"0\r\n\r\n" not in rest


@on_both_loops
async def test_an_http_1_0_client_sees_a_broken_stream_as_a_reset() -> None:
    """Without chunks the end of the connection is the end of the answer: only a reset says that it is not."""
    async with both_ends() as (running, engine), begun_stream(running, engine, minor=0) as stream:
        stream.upstream.cut()
        with pytest.raises(ConnectionResetError):
            await read_on(stream.client)
        await running.idle()


@on_both_loops
async def test_an_engine_that_dies_in_a_plain_answer_leaves_it_short() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        upstream = await engine.next()
        upstream.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        upstream.cut()
        got = await client.answer()
        await running.idle()
    assert (got.complete, got.body) == (False, b"{")


@on_both_loops
async def test_a_silent_engine_is_a_504_before_the_first_byte() -> None:
    clock = ManualClock()
    async with both_ends(clock=clock, silence_seconds=30.0) as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        upstream = await engine.next()
        clock.now += 29.9
        await asyncio.sleep(0.2)
        assert running.in_flight() == 1
        clock.now += 0.1
        got = await client.answer()
        await upstream.gone()
        await running.idle()
    assert (got.status, got.code) == (504, "engine_timeout")


@on_both_loops
async def test_an_engine_that_falls_silent_in_a_stream_ends_it() -> None:
    clock = ManualClock()
    async with (
        both_ends(clock=clock, silence_seconds=30.0) as (running, engine),
        begun_stream(running, engine) as stream,
    ):
        await asyncio.sleep(0.2)  # the last word has been noted
        clock.now += 30
        rest = await stream.client.eof()
        await stream.upstream.gone()
        await running.idle()
    assert b"engine_timeout" in rest
    assert b"[DONE]" not in rest


@on_both_loops
async def test_health_that_fails_is_logged_when_it_begins_and_when_it_ends() -> None:
    async with both_ends() as (running, engine):
        for answered in (True, False, False, False, True, True, False):
            async with await running.connect() as client:
                client.send(get("/health"))
                upstream = await engine.next()
                if answered:
                    upstream.answer(b"")
                else:
                    upstream.send(b"HTTP/1.1")
                    upstream.finish()
                assert (await client.answer()).status == (200 if answered else 502)
        health = [line["event"] for line in log_of(running) if line.get("route") == "/health"]
    assert health == ["engine_failed", "answered", "engine_failed"]
