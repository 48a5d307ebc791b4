"""How long a sidecar waits for whom, what it refuses early, and how it leaves."""

import asyncio
import socket

import pytest

from kvquota_sidecar import ports
from kvquota_sidecar.proxy.hub import Patience
from raw_client import DEADLINE_SECONDS, RawClient
from sidecar_rig import ManualClock, both_ends, chat, eventually, get, on_both_loops, post, sent

# Waiting for the client.


@on_both_loops
async def test_an_idle_connection_is_closed_after_75_seconds() -> None:
    clock = ManualClock()
    async with both_ends(clock=clock) as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        (await engine.next()).answer(b"{}")
        await client.answer()
        clock.now += 74.9
        await asyncio.sleep(0.2)
        assert len(running.sidecar._traffic_hub.connections) == 1
        clock.now += 0.2
        assert await client.eof() == b""


SLOW = {"a head": (b"POST /v1/completions HT", 10.0), "a body": (post(chat())[:-1], 60.0)}


@pytest.mark.parametrize(("part", "seconds"), SLOW.values(), ids=SLOW)
@on_both_loops
async def test_a_request_that_does_not_arrive_is_a_408(part: bytes, seconds: float) -> None:
    clock = ManualClock()
    async with both_ends(clock=clock) as (running, _), await running.connect() as client:
        client.send(part)
        await eventually("it is read", lambda: running.sidecar._traffic_hub.buffers.total_bytes > 0)
        clock.now += seconds - 0.1
        await asyncio.sleep(0.2)
        client.send(b"" if len(part) > 50 else b"T")  # a byte more does not buy more time
        await asyncio.sleep(0.1)
        assert len(running.sidecar._traffic_hub.connections) == 1
        clock.now += 0.2
        got = await client.answer()
        assert await client.eof() == b""
    assert (got.status, got.code, got.headers["connection"]) == (408, "request_timeout", "close")


@on_both_loops
async def test_the_engine_may_take_as_long_as_it_likes_while_the_client_waits() -> None:
    clock = ManualClock()
    async with (
        both_ends(clock=clock, silence_seconds=10_000.0) as (running, engine),
        sent(running, engine, stream=False) as (client, upstream),
    ):
        clock.now += 3_600
        await asyncio.sleep(0.2)
        upstream.answer(b"{}")
        assert (await client.answer()).status == 200


@on_both_loops
async def test_the_kernel_finds_out_within_a_minute_when_a_client_is_cut_off() -> None:
    async with both_ends() as (running, _), await running.connect():
        await eventually("it is there", lambda: len(running.sidecar._traffic_hub.connections) == 1)
        (connection,) = running.sidecar._traffic_hub.connections
        sock = connection._transport.get_extra_info("socket")
        idle, interval, count, unacknowledged_ms = (
            sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        )
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert idle + interval * count <= 60
    assert unacknowledged_ms <= 60_000


# Refused early.


@on_both_loops
async def test_a_client_that_is_refused_while_it_sends_still_gets_to_read_why() -> None:
    body = b"x" * (9 * 1024 * 1024)
    async with both_ends() as (running, _), await running.connect() as client:
        client.send(post(body))
        await client.writer.drain()
        got = await client.answer()
        assert await client.reader.read() == b""  # an end, no reset: it could send all of it
    assert (got.status, got.code, got.headers["connection"]) == (413, "request_too_large", "close")


@on_both_loops
async def test_a_stranger_is_turned_away_before_its_body_is_read() -> None:
    request = post(b"x" * (4 * 1024 * 1024)).replace(b"Bearer kvq-", b"Bearer no-")
    async with both_ends() as (running, _), await running.connect() as client:
        client.send(request)
        got = await client.answer()
        assert running.sidecar._traffic_hub.buffers.total_bytes < 1 << 20
        assert await client.eof() == b""
    assert (got.status, got.code) == (401, "unknown_tenant")


@on_both_loops
async def test_a_client_that_asks_before_it_sends_is_told_to_go_on_or_not() -> None:
    head, body = post(chat(), headers=("Expect: 100-continue",)).split(b"\r\n\r\n")
    async with both_ends() as (running, engine):
        async with await running.connect() as client:
            client.send(head + b"\r\n\r\n")
            assert await client.line(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(body)
            upstream = await engine.next()
            upstream.answer(b"{}")
            assert (await client.answer()).status == 200
            assert "expect" not in upstream.headers
        async with await running.connect() as client:
            got = await client.ask(head.replace(b"Bearer kvq-", b"Bearer no-") + b"\r\n\r\n")
            assert got.status == 401


@on_both_loops
async def test_a_small_refused_request_keeps_its_connection() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        assert (await client.ask(post(b"{}").replace(b"Bearer kvq-", b"Bearer no-"))).status == 401
        client.send(post(chat()))
        (await engine.next()).answer(b"{}")
        assert (await client.answer()).status == 200


@on_both_loops
async def test_what_all_unread_requests_hold_together_is_bounded() -> None:
    patience = Patience(max_held_bytes=3 * 1024 * 1024)
    async with both_ends(patience=patience) as (running, _):
        clients = [await running.connect() for _ in range(4)]
        for client in clients:
            client.send(post(b"x" * (1 << 20))[:-1])
        refusals = {asyncio.create_task(client.answer()) for client in clients}
        done, waiting = await asyncio.wait(refusals, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result().status for task in done} == {503}
        for client in clients:
            client.reset()
        await asyncio.gather(*waiting, return_exceptions=True)


@on_both_loops
async def test_connections_beyond_the_limit_are_closed_unread_where_all_others_are_in_a_request() -> None:
    async with (
        both_ends(patience=Patience(max_connections=2)) as (running, engine),
        await running.connect() as one,
        await running.connect() as two,
    ):
        for client in (one, two):
            client.send(post(chat()))
        upstream = [await engine.next(), await engine.next()]
        async with await running.connect() as three:
            assert await three.eof() == b""
        for each in upstream:
            each.answer(b"{}")
        for client in (one, two):
            assert (await client.answer()).status == 200


@on_both_loops
async def test_who_comes_when_all_places_are_taken_gets_that_of_one_in_no_request() -> None:
    async with both_ends(patience=Patience(max_connections=2)) as (running, engine):
        hub = running.sidecar._traffic_hub

        async def served(client: RawClient) -> None:
            client.send(post(chat()))
            (await engine.next()).answer(b"{}")
            assert (await client.answer()).status == 200

        async with await running.connect() as friend, await running.connect() as stranger:
            await served(friend)
            async with await running.connect() as third:
                assert await stranger.eof() == b""
                await served(third)
                async with await running.connect() as fourth:
                    assert await friend.eof() == b""
                    await served(fourth)
        assert (hub.made_room, hub.turned_away) == (2, 0)


# The pod leaves.


@on_both_loops
async def test_the_pod_leaves_in_order_and_lets_streams_end() -> None:
    clock = ManualClock()
    async with both_ends(clock=clock, lame_duck_seconds=3.0, drain_seconds=50.0) as (running, engine):
        async with sent(running, engine, stream=True) as (client, upstream):
            upstream.begin_stream()
            upstream.frame()
            await client.line(b"\n\n")
            stopping = asyncio.create_task(running.sidecar.stop())
            await eventually("the drain begins", lambda: running.events("draining") != [])
            async with await running.connect() as late:
                assert (await late.ask(get("/health"))).status == 503
            async with await running.connect() as late:
                late.send(post(chat()))
                (await engine.next()).answer(b"{}")
                got = await late.answer()
                assert (got.status, got.headers["connection"]) == (200, "close")
            clock.now += 3.0
            async with await running.connect() as late:
                refused = await late.ask(post(chat()))
                assert (refused.status, refused.code, refused.headers["connection"]) == (503, "draining", "close")
                assert int(refused.headers["retry-after"]) >= 1
            assert not stopping.done()
            upstream.end_stream()
            assert b"[DONE]" in await client.line(b"0\r\n\r\n")
            await stopping
        assert running.events("stopped")[0]["reserved"] == 0


@on_both_loops
async def test_what_still_runs_at_the_limit_is_ended_with_a_final_event() -> None:
    clock = ManualClock()
    async with both_ends(clock=clock, lame_duck_seconds=3.0, drain_seconds=50.0) as (running, engine):
        async with sent(running, engine, stream=True) as (client, upstream):
            upstream.begin_stream()
            upstream.frame()
            await client.line(b"\n\n\r\n")
            stopping = asyncio.create_task(running.sidecar.stop())
            await eventually("the drain begins", lambda: running.events("draining") != [])
            clock.now += 49.9
            await asyncio.sleep(0.2)
            assert not stopping.done()
            clock.now += 0.1
            got = await client.eof()
            await upstream.gone()
            await stopping
        assert running.events("drained")[0]["code"] == "draining"
        assert running.events("stopped")[0]["reserved"] == 0
    assert b'"code":"draining"' in got
    assert got.endswith(b"0\r\n\r\n")
    assert b"[DONE]" not in got


@on_both_loops
async def test_idle_connections_do_not_hold_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "FLUSH_SECONDS", 3600.0)
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        (await engine.next()).answer(b"{}")
        assert (await client.answer()).status == 200
        async with asyncio.timeout(DEADLINE_SECONDS):
            await running.sidecar.stop()
        assert await client.eof() == b""


@on_both_loops
async def test_connections_within_a_request_are_cut_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "FLUSH_SECONDS", 0.1)
    async with both_ends() as (running, _), await running.connect() as client:
        client.send(b"POST /v1/comp")
        await eventually("it is read", lambda: running.sidecar._traffic_hub.buffers.total_bytes > 0)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await running.sidecar.stop()
        assert await client.eof() == b""
