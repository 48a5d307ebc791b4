"""How requests and connections end: whoever leaves, whenever, everything is released once and the engine is freed."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from kvquota_sidecar.estimate.outputs import FEWEST
from kvquota_sidecar.proxy.client_side import MAX_AHEAD_BYTES
from kvquota_sidecar.proxy.hub import Patience
from kvquota_sidecar.telemetry.journal import LINES_PER_SECOND, RARE_LINES
from raw_client import LEAVING, RawClient
from raw_engine import EngineConnection, frame
from sidecar_rig import (
    ManualClock,
    begun_stream,
    both_ends,
    chat,
    eventually,
    get,
    on_both_loops,
    post,
    running_sidecar,
    sent,
)

# The client leaves.


def nothing(upstream: EngineConnection) -> None:
    """The engine has sent nothing yet."""


def a_head(upstream: EngineConnection) -> None:
    upstream.begin_stream()


def a_frame(upstream: EngineConnection) -> None:
    upstream.begin_stream()
    upstream.frame()


def half_a_frame(upstream: EngineConnection) -> None:
    a_frame(upstream)
    upstream.chunk(frame()[:10])


def half_a_chunk(upstream: EngineConnection) -> None:
    a_frame(upstream)
    upstream.send(b"100\r\ndata: ")


def a_plain_part(upstream: EngineConnection) -> None:
    upstream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{")


STAGES = {
    "before the answer": nothing,
    "after its head": a_head,
    "after a frame": a_frame,
    "within a frame": half_a_frame,
    "within a chunk": half_a_chunk,
    "within a plain answer": a_plain_part,
}


@on_both_loops
async def test_many_that_leave_at_once_leave_the_log_room_for_what_is_rare() -> None:
    many = LINES_PER_SECOND + 3 * RARE_LINES  # and there is room for 107
    async with both_ends() as (running, engine), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await running.connect()) for _ in range(many)]
        for client in clients:
            client.send(post(chat(stream=True)))
        await eventually("all are with the engine", lambda: engine.requests.qsize() == many)
        for client in clients:
            client.reset()
        await running.idle()
        seconds = Counter(int(line["at"]) for line in running.events("client_gone"))
    assert 0 < max(seconds.values()) <= LINES_PER_SECOND


@pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING)
@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
@on_both_loops
async def test_a_client_that_leaves_frees_the_engine_and_what_it_held(
    leave: Callable[[RawClient], None], stage: Callable[[EngineConnection], None]
) -> None:
    patience = Patience(half=0.1)  # a FIN alone could be a client that still listens
    async with both_ends(patience=patience) as (running, engine), sent(running, engine, stream=True) as both:
        client, upstream = both
        stage(upstream)
        if stage not in (nothing, a_head):
            await client.line(b"\r\n\r\n")
        leave(client)
        await upstream.gone()
        await running.idle()
        assert [line["event"] for line in running.events("client_gone")] == ["client_gone"]


@on_both_loops
async def test_a_client_that_leaves_a_plain_request_frees_the_engine() -> None:
    async with both_ends() as (running, engine), sent(running, engine, stream=False) as (client, upstream):
        LEAVING["by FIN"](client)
        await upstream.gone()
        await running.idle()


@on_both_loops
async def test_a_client_that_leaves_before_its_body_is_complete_was_never_there() -> None:
    async with both_ends() as (running, engine):
        async with await running.connect() as client:
            client.send(post(chat())[:-1])
            await eventually("it is read", lambda: running.sidecar._traffic_hub.buffers.total_bytes > 0)
        await eventually("it is forgotten", lambda: running.sidecar._traffic_hub.buffers.total_bytes == 0)
        assert engine.requests.empty()
        assert running.report().tenants[0].total.admitted == 0


@on_both_loops
async def test_a_client_that_leaves_while_the_engine_is_being_dialled_holds_nothing() -> None:
    """The engine's queue of connections is full, so that dialling waits."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        address = deaf.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        async with running_sidecar(address) as running:
            async with await running.connect() as client:
                client.send(post(chat()))
                await eventually("it is admitted", lambda: running.in_flight() == 1)
            await running.idle()
        for filler in fillers:
            filler.close()


@on_both_loops
async def test_a_client_that_leaves_with_requests_still_waiting_loses_all_of_them() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat()) * 3)
        upstream = await engine.next()
        LEAVING["by RST"](client)
        await upstream.gone()
        await running.idle()
        assert engine.requests.empty()
        assert running.report().tenants[0].total.admitted == 1


# The client does not read.


@on_both_loops
async def test_a_client_that_does_not_read_stops_the_engine_and_costs_no_memory() -> None:
    piece = b"data: " + b"x" * 65_000 + b"\n\n"
    async with both_ends() as (running, engine), sent(running, engine, stream=True) as (client, upstream):
        client.pause_reading()
        upstream.begin_stream()
        (connection,) = running.sidecar._traffic_hub.connections
        written = 0
        for _ in range(2_000):  # 130 MB if nobody stops it
            upstream.chunk(piece)
            written += len(piece)
            try:
                async with asyncio.timeout(0.5):
                    await upstream.writer.drain()
            except TimeoutError:
                break
        else:
            raise AssertionError("the engine was never stopped")
        held = connection._transport.get_write_buffer_size()
        client.resume_reading()
        upstream.end_stream()
        got = await client.answer()
        await running.idle()
    assert len(got.body) == written + len(b"data: [DONE]\n\n")
    assert 0 < held < 1 << 20  # beside that what the kernel holds on both sides


@on_both_loops
async def test_a_stream_that_is_not_read_for_a_second_is_charged_what_it_may_become() -> None:
    """The engine goes on with it, and nobody sees how far."""
    clock = ManualClock()
    long = post(chat(stream=True, max_tokens=3200))
    async with both_ends(clock=clock) as (running, engine):
        for _ in range(FEWEST):  # answers of one token: more is not promised to the next
            async with begun_stream(running, engine, request=long) as short:
                short.upstream.end_stream()
                await short.client.line(b"0\r\n\r\n")
        async with begun_stream(running, engine, request=long) as stream:
            stream.client.pause_reading()
            (connection,) = running.sidecar._traffic_hub.connections
            while not connection._full:
                stream.upstream.chunk(b"data: " + b"x" * 65_000 + b"\n\n")
                await asyncio.sleep(0.001)
            clock.now += 0.9
            await asyncio.sleep(0.2)
            assert running.report().tenants[0].reserved < 20
            clock.now += 0.1
            await eventually("its limit is charged", lambda: running.report().tenants[0].reserved >= 200)
            stream.client.reset()
        await running.idle()


@on_both_loops
async def test_a_client_that_never_reads_again_is_cut_and_its_engine_freed() -> None:
    clock = ManualClock()
    async with both_ends(clock=clock, patience=Patience(stall=60.0)) as (running, engine):
        async with sent(running, engine, stream=True) as (client, upstream):
            client.pause_reading()
            upstream.begin_stream()
            full = running.sidecar._traffic_hub.connections
            while not any(each._full for each in full):
                upstream.chunk(b"data: " + b"x" * 65_000 + b"\n\n")
                await asyncio.sleep(0.001)
            clock.now += 59
            await asyncio.sleep(0.2)
            assert running.in_flight() == 1
            clock.now += 1
            await eventually("it is cut", lambda: running.in_flight() == 0)
            client.resume_reading()
        await running.idle()


@on_both_loops
async def test_a_client_that_leaves_without_having_read_frees_the_engine_all_the_same() -> None:
    async with both_ends() as (running, engine), sent(running, engine, stream=True) as (client, upstream):
        client.pause_reading()
        upstream.begin_stream()
        (connection,) = running.sidecar._traffic_hub.connections
        while not connection._full:
            upstream.chunk(b"data: " + b"x" * 65_000 + b"\n\n")
            await asyncio.sleep(0.001)
        client.writer.write_eof()
        await eventually("its end is seen", lambda: connection._half is not None)
        assert running.in_flight() == 1  # it may still read on
        client.reset()
        await running.idle()


@on_both_loops
async def test_a_client_that_only_asks_and_never_reads_is_not_answered_for_ever() -> None:
    async with both_ends() as (running, _), await running.connect() as client:
        client.pause_reading()
        flood = get("/nowhere") * 1000
        for _ in range(1000):
            client.send(flood)
            try:
                async with asyncio.timeout(0.5):
                    await client.writer.drain()
            except TimeoutError:
                break
        else:
            raise AssertionError("all were read")
        (connection,) = running.sidecar._traffic_hub.connections
        assert connection._transport.get_write_buffer_size() < 1 << 20
        assert connection._reader.unread < 1 << 20
        client.reset()


@on_both_loops
async def test_a_client_that_reads_late_gets_every_answer() -> None:
    count = 30_000
    async with both_ends() as (running, _), await running.connect() as client:
        client.pause_reading()
        client.send(get("/nowhere") * count)
        (connection,) = running.sidecar._traffic_hub.connections
        await eventually("answers pile up", lambda: connection._full)
        client.resume_reading()
        for _ in range(count):
            assert (await client.answer()).status == 404


@on_both_loops
async def test_requests_sent_ahead_are_left_in_the_kernel_while_one_is_answered() -> None:
    async with both_ends() as (running, engine), sent(running, engine, stream=False) as (client, upstream):
        ahead = post(chat(text="x" * 5_000))
        count = 200
        client.send(ahead * count)
        (connection,) = running.sidecar._traffic_hub.connections
        await eventually("reading pauses", lambda: not connection._reading)
        assert MAX_AHEAD_BYTES < connection._reader.unread < MAX_AHEAD_BYTES + (1 << 19)
        upstream.answer(b"{}")
        await client.answer()
        for _ in range(count):
            (await engine.next()).answer(b"{}")
            assert (await client.answer()).status == 200
        await running.idle()


@on_both_loops
async def test_what_follows_a_last_request_is_not_looked_at_and_does_not_cost_its_answer() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat(), headers=("Connection: close",)) + post(chat()) + b"nonsense" * 1_000_000)
        upstream = await engine.next()
        upstream.answer(b"{}")
        got = await client.answer()
        assert await client.reader.read() == b""  # an end, no reset
        assert engine.requests.empty()
        await running.idle()
    assert (got.status, got.headers["connection"]) == (200, "close")
