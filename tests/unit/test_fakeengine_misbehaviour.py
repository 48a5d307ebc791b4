"""What the fake engine does wrong when it is told to: streams and metrics."""

import asyncio

import aiohttp
import pytest

from kvquota_fakeengine.clock import ManualClock
from kvquota_fakeengine.misbehaviour import GOOD, Framing, Metrics, Misbehaviour, Usage
from kvquota_fakeengine.server import FakeEngineServer
from testengine.bodies import CHAT, COMPLETION, chat, completion
from testengine.client import Readings, client_of, events
from testengine.fake import computed, port_of, until_held

USAGE = "vllm:kv_cache_usage_perc"


# Streams that go wrong


async def test_a_hang_before_the_first_byte_holds_blocks_and_sends_nothing(
    slow_engine: FakeEngineServer, engine_clock: ManualClock
) -> None:
    await slow_engine.misbehave(Misbehaviour(hang_before_first_byte=True))
    async with client_of(port_of(slow_engine)) as client:
        asking = asyncio.create_task(client.stream(COMPLETION, completion(prompt=[7] * 8)))
        await until_held(slow_engine, 2)
        await engine_clock.advance(60)
        assert not asking.done()
        assert slow_engine.engine.scheduler.pool.held == 2
        await slow_engine.misbehave(GOOD)
        await computed(slow_engine, engine_clock, 6)
        assert (await asking)[-1] == "[DONE]"


async def test_a_hang_in_the_middle_stops_the_sequence_where_it_is(
    slow_engine: FakeEngineServer, engine_clock: ManualClock
) -> None:
    await slow_engine.misbehave(Misbehaviour(hang_after_tokens=2))
    async with (
        client_of(port_of(slow_engine)) as client,
        client.open_stream(COMPLETION, completion(prompt=[7] * 8)) as stream,
    ):
        await until_held(slow_engine, 2)
        await computed(slow_engine, engine_clock, 3)
        arriving = events(stream)
        assert [(await anext(arriving))["choices"][0]["text"] for _ in range(2)] == [" 000", " 001"]
        await engine_clock.advance(60)
        produced = slow_engine.engine.scheduler.totals.generation_tokens
        await engine_clock.advance(60)
        assert slow_engine.engine.scheduler.totals.generation_tokens == produced
        assert slow_engine.engine.scheduler.pool.held > 0
        await slow_engine.misbehave(GOOD)
        await computed(slow_engine, engine_clock, 6)
        assert [event async for event in arriving][-1] == "[DONE]"


async def test_a_client_that_leaves_a_hanging_stream_gets_its_blocks_freed(slow_engine: FakeEngineServer) -> None:
    await slow_engine.misbehave(Misbehaviour(hang_before_first_byte=True))
    async with client_of(port_of(slow_engine)) as client:
        asking = asyncio.create_task(client.post(COMPLETION, completion(prompt=[7] * 8)))
        await until_held(slow_engine, 2)
        asking.cancel()
        await until_held(slow_engine, 0)


async def test_a_cut_ends_the_connection_without_a_last_chunk(quick_engine: FakeEngineServer) -> None:
    await quick_engine.misbehave(Misbehaviour(cut_after_tokens=3))
    async with client_of(port_of(quick_engine)) as client:
        async with client.open_stream(COMPLETION, completion()) as response:
            arriving = events(response)
            assert [(await anext(arriving))["choices"][0]["text"] for _ in range(3)] == [" 000", " 001", " 002"]
            with pytest.raises(aiohttp.ClientPayloadError):
                await anext(arriving)
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await client.post(COMPLETION, completion())
    await until_held(quick_engine, 0)


async def test_a_failure_in_the_middle_is_an_event_and_then_done(quick_engine: FakeEngineServer) -> None:
    await quick_engine.misbehave(Misbehaviour(fail_after_tokens=2))
    async with client_of(port_of(quick_engine)) as client:
        *chunks, failure, done = await client.stream(COMPLETION, completion())
        whole = await client.post(COMPLETION, completion())
    error = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
    assert (len(chunks), failure, done) == (2, {"error": error}, "[DONE]")
    assert (whole.status, whole.document) == (500, {"error": error})


async def test_an_engine_out_of_order_answers_500(quick_engine: FakeEngineServer) -> None:
    await quick_engine.misbehave(Misbehaviour(error_status=503))
    async with client_of(port_of(quick_engine)) as client:
        reply = await client.post(CHAT, chat(stream=True))
        health = await client.get("/health")
    assert (reply.status, reply.document["error"]["code"], health.status) == (503, 503, 200)


@pytest.mark.parametrize(
    ("framing", "events_per_write"),
    [(Framing.EVENTS, [1] * 7), (Framing.COALESCED, [4, 3])],
    ids=["an event a write", "several events a write"],
)
async def test_events_are_written_one_by_one_or_together(
    quick_engine: FakeEngineServer, framing: Framing, events_per_write: list[int]
) -> None:
    await quick_engine.misbehave(Misbehaviour(framing=framing))
    async with client_of(port_of(quick_engine)) as client, client.open_stream(COMPLETION, completion()) as response:
        writes = await http_chunks(response)
    assert [write.count(b"data: ") for write in writes] == events_per_write


async def test_a_stream_can_come_byte_by_byte(quick_engine: FakeEngineServer) -> None:
    await quick_engine.misbehave(Misbehaviour(framing=Framing.BYTES))
    async with client_of(port_of(quick_engine)) as client, client.open_stream(COMPLETION, completion()) as response:
        writes = await http_chunks(response)
    assert {len(write) for write in writes} == {1}
    assert b"".join(writes).count(b"data: ") == 7


async def http_chunks(response: aiohttp.ClientResponse) -> list[bytes]:
    """The body as the chunks that it was sent in."""
    whole, part = [], b""
    async for data, ends_chunk in response.content.iter_chunks():
        part += data
        if ends_chunk:
            whole.append(part)
            part = b""
    return whole


async def test_a_frame_can_hold_several_tokens(quick_engine: FakeEngineServer) -> None:
    await quick_engine.misbehave(Misbehaviour(tokens_per_frame=4))
    async with client_of(port_of(quick_engine)) as client:
        *chunks, _ = await client.stream(COMPLETION, completion())
    assert [chunk["choices"][0]["text"] for chunk in chunks] == [" 000 001 002 003", " 004 005"]


async def test_usage_can_be_missing_everywhere(quick_engine: FakeEngineServer) -> None:
    await quick_engine.misbehave(Misbehaviour(usage=Usage.MISSING))
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with client_of(port_of(quick_engine)) as client:
        *chunks, _ = await client.stream(CHAT, chat(stream_options=options))
        whole = await client.post(CHAT, chat())
    assert not any("usage" in chunk for chunk in chunks)
    assert whole.document["usage"] is None


async def test_usage_can_be_wrong(quick_engine: FakeEngineServer) -> None:
    async with client_of(port_of(quick_engine)) as client:
        right = (await client.post(COMPLETION, completion())).document["usage"]
        await quick_engine.misbehave(Misbehaviour(usage=Usage.WRONG))
        wrong = (await client.post(COMPLETION, completion())).document["usage"]
    assert wrong["prompt_tokens"] == 2 * right["prompt_tokens"] + 1
    assert wrong["completion_tokens"] == 13


# Metrics that go wrong


async def test_metrics_can_lack_everything_of_the_engine(quick_engine: FakeEngineServer) -> None:
    await quick_engine.misbehave(Misbehaviour(metrics=Metrics.MISSING))
    async with client_of(port_of(quick_engine)) as client:
        assert names(await client.readings()) == {"process_start_time_seconds"}


async def test_metrics_can_have_other_names(quick_engine: FakeEngineServer) -> None:
    async with client_of(port_of(quick_engine)) as client:
        good = await client.readings()
        await quick_engine.misbehave(Misbehaviour(metrics=Metrics.RENAMED))
        renamed = await client.readings()
    assert len(names(renamed)) == len(names(good))
    assert names(renamed) & names(good) == {"process_start_time_seconds"}


async def test_metrics_can_stay_as_they_were(slow_engine: FakeEngineServer) -> None:
    await slow_engine.misbehave(Misbehaviour(metrics=Metrics.STALE))
    async with client_of(port_of(slow_engine)) as client:
        async with client.open_stream(COMPLETION, completion(prompt=[7] * 8)):
            await until_held(slow_engine, 2)
            assert (await client.readings()).value(USAGE) == 0
            await slow_engine.misbehave(GOOD)
            assert (await client.readings()).value(USAGE) == 2 / 128
        await until_held(slow_engine, 0)


async def test_metrics_can_fail_or_never_come(quick_engine: FakeEngineServer) -> None:
    async with client_of(port_of(quick_engine)) as client:
        await quick_engine.misbehave(Misbehaviour(metrics=Metrics.ERROR))
        assert (await client.get("/metrics")).status == 500
        await quick_engine.misbehave(Misbehaviour(metrics=Metrics.HANG))
        asking = asyncio.create_task(client.readings())
        assert (await client.get("/health")).status == 200
        assert not asking.done()
        await quick_engine.misbehave(GOOD)
        assert (await asking).value(USAGE) == 0


async def test_another_pool_can_be_announced_than_there_is(quick_engine: FakeEngineServer) -> None:
    await quick_engine.misbehave(Misbehaviour(announced_blocks=4096))
    async with client_of(port_of(quick_engine)) as client:
        (config,) = (await client.readings()).labels("vllm:cache_config_info")
    assert (config["num_gpu_blocks"], config["kv_cache_size_tokens"]) == ("4096", "16384")
    assert quick_engine.engine.scheduler.pool.usable == 128


def names(readings: Readings) -> set[str]:
    return {sample.name for family in readings.families for sample in family.samples}
