"""Clients that close their half after a request: they are answered; those that have really gone are noticed."""

import asyncio

import pytest

from kvquota_sidecar.proxy.hub import Patience
from sidecar_rig import (
    KEYS,
    SEARCH,
    ManualClock,
    begun_stream,
    both_ends,
    chat,
    eventually,
    get,
    on_both_loops,
    post,
    sent,
)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@on_both_loops
async def test_a_client_that_closes_its_half_while_it_waits_is_answered_and_closed(stream: bool) -> None:
    async with both_ends() as (running, engine), sent(running, engine, stream=stream) as (client, upstream):
        client.writer.write_eof()
        assert await client.line(b"\r\n\r\n") == CONTINUE  # a peer that has gone would answer it with a reset
        await asyncio.sleep(0.2)  # several looks at the connection
        if stream:
            upstream.begin_stream()
            upstream.frame()
            upstream.end_stream()
        else:
            upstream.answer(b'{"a":1}')
        got = await client.answer()
        assert (got.status, got.complete, got.headers["connection"]) == (200, True, "close")
        assert await client.eof() == b""
        await running.idle()
        assert running.events("client_gone") == []


@on_both_loops
async def test_a_client_that_closes_its_half_at_once_gets_all_its_answers() -> None:
    usage = get("/v1/usage", f"Authorization: Bearer {KEYS[SEARCH]}")
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(usage + post(chat()) + usage)
        client.writer.write_eof()
        assert (await client.answer()).status == 200
        (await engine.next()).answer(b"{}")
        assert [(await client.answer()).body == b"{}", (await client.answer()).status] == [True, 200]
        assert await client.eof() == b""


@on_both_loops
async def test_a_client_of_http_1_0_that_closes_its_half_is_answered_where_nothing_is_held_for_it() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(b"GET /health HTTP/1.0\r\n\r\n")
        client.writer.write_eof()
        (await engine.next()).answer(b"fine")
        assert (await client.eof()).endswith(b"\r\n\r\nfine")


@on_both_loops
async def test_a_client_of_http_1_0_that_closes_its_half_on_a_request_has_gone() -> None:
    """It cannot be sent an interim answer, so nothing tells whether it is still there."""
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat(), minor=0))
        upstream = await engine.next()
        client.writer.write_eof()
        await upstream.gone()
        await running.idle()


@on_both_loops
async def test_a_client_that_closes_its_half_within_a_stream_gets_the_rest_of_it() -> None:
    async with both_ends() as (running, engine), begun_stream(running, engine) as stream:
        stream.client.writer.write_eof()
        await asyncio.sleep(0.1)
        stream.upstream.frame("y")
        stream.upstream.end_stream()
        assert (await stream.client.eof()).endswith(b"0\r\n\r\n")
        await running.idle()
        assert running.events("client_gone") == []


@on_both_loops
async def test_within_a_stream_that_stands_still_a_closed_half_is_a_client_that_has_gone() -> None:
    clock = ManualClock()
    async with (
        both_ends(clock=clock, patience=Patience(half=5.0)) as (running, engine),
        begun_stream(running, engine) as stream,
    ):
        stream.client.writer.write_eof()
        await asyncio.sleep(0.2)
        assert running.in_flight() == 1
        clock.now += 5.0
        await stream.upstream.gone()
        await running.idle()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@on_both_loops
async def test_a_client_that_closed_all_before_the_first_byte_is_noticed_without_the_hub(
    monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    async with both_ends() as (running, engine), sent(running, engine, stream=stream) as (client, upstream):
        monkeypatch.setattr(running.sidecar._ports, "tick", lambda: None)
        client.writer.close()
        await upstream.gone()
        await running.idle()


@on_both_loops
async def test_a_client_that_closed_all_within_a_stream_is_noticed_at_the_next_word_without_the_hub(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with both_ends() as (running, engine), begun_stream(running, engine) as stream:
        monkeypatch.setattr(running.sidecar._ports, "tick", lambda: None)
        stream.client.writer.close()
        await asyncio.sleep(0.1)
        stream.upstream.frame("y")
        await stream.upstream.gone()
        await running.idle()


@on_both_loops
async def test_a_client_that_dies_after_it_closed_its_half_is_noticed_at_the_next_word() -> None:
    async with both_ends() as (running, engine), begun_stream(running, engine) as stream:
        stream.client.writer.write_eof()
        await asyncio.sleep(0.1)
        stream.client.reset()
        await eventually("it has gone", stream.client.writer.transport.is_closing)
        stream.upstream.frame("y")
        await stream.upstream.gone()
        await running.idle()
