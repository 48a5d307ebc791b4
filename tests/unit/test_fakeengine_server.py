"""The fake engine as a server: its pace, its lives, and how it is controlled."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from kvquota_fakeengine.clock import ManualClock
from kvquota_fakeengine.control import state
from kvquota_fakeengine.misbehaviour import GOOD, Misbehaviour, Usage
from kvquota_fakeengine.server import FakeEngineServer
from kvquota_fakeengine.settings import EngineSettings
from testengine.bodies import CHAT, COMPLETION, chat, completion, distinct_prompt
from testengine.client import EngineClient, client_of, events, eventually
from testengine.fake import computed, port_of, until_held
from testengine.port import EngineUnderTest

USAGE = "vllm:kv_cache_usage_perc"


# Pace


async def test_an_answer_takes_as_long_as_its_tokens(slow_engine: FakeEngineServer, engine_clock: ManualClock) -> None:
    async with (
        client_of(port_of(slow_engine)) as client,
        client.open_stream(COMPLETION, completion(prompt=[7] * 8)) as stream,
    ):
        await until_held(slow_engine, 2)
        await engine_clock.advance(0.01)
        assert slow_engine.engine.scheduler.totals.generation_tokens == 1
        await engine_clock.advance(0.35)
        assert slow_engine.engine.scheduler.totals.generation_tokens == 4
        await engine_clock.advance(0.2)
        assert [event async for event in events(stream)][-1] == "[DONE]"


async def test_without_a_limit_an_answer_ends_by_itself(quick_engine: FakeEngineServer) -> None:
    async with client_of(port_of(quick_engine)) as client:
        document = (await client.post(CHAT, chat(max_tokens=None, ignore_eos=False))).document
    assert document["choices"][0]["finish_reason"] == "stop"
    assert document["usage"]["completion_tokens"] == quick_engine.settings.answer_tokens


async def test_a_smaller_limit_than_an_answer_s_own_length_cuts_it(quick_engine: FakeEngineServer) -> None:
    async with client_of(port_of(quick_engine)) as client:
        document = (await client.post(CHAT, chat(ignore_eos=False))).document
    assert document["choices"][0]["finish_reason"] == "length"


async def test_an_engine_that_does_not_tell_cached_tokens_says_null() -> None:
    silent = FakeEngineServer(EngineSettings(model="tiny", prompt_tokens_details=False))
    async with silent, client_of(port_of(silent)) as client:
        whole = (await client.post(CHAT, chat())).document["usage"]
        *_, last, _ = await client.stream(CHAT, chat(stream_options={"include_usage": True}))
    assert whole["prompt_tokens_details"] is None
    assert "prompt_tokens_details" not in last["usage"]


async def test_requests_are_remembered_as_they_came(quick_engine: FakeEngineServer) -> None:
    async with client_of(port_of(quick_engine)) as client:
        await client.post(CHAT, chat(cache_salt="s"), X_Vllm_Priority="3")
    (received,) = quick_engine.received
    assert (received.path, received.headers["X-Vllm-Priority"]) == (CHAT, "3")
    assert json.loads(received.body) == chat(cache_salt="s")


@pytest.mark.parametrize(
    ("header", "priority"), [(None, 7), ("3", 3), ("high", 7)], ids=["the body's", "the header's", "no number"]
)
async def test_priority_comes_from_the_header_else_from_the_body(
    slow_engine: FakeEngineServer, header: str | None, priority: int
) -> None:
    headers = {} if header is None else {"X_Vllm_Priority": header}
    async with client_of(port_of(slow_engine)) as client:
        asking = asyncio.create_task(client.post(COMPLETION, completion(prompt=[7] * 8, priority=7), **headers))
        await until_held(slow_engine, 2)
        (running,) = state(slow_engine.engine)["running"]
        asking.cancel()
        await until_held(slow_engine, 0)
    assert (running["priority"], len(running["blocks"])) == (priority, 2)


# Blocks that come back late, or not at all


async def test_an_aborted_request_s_blocks_can_stay_held_for_a_while(
    slow_engine: FakeEngineServer, engine_clock: ManualClock
) -> None:
    await slow_engine.misbehave(Misbehaviour(freeing_delay_seconds=5))
    async with client_of(port_of(slow_engine)) as client:
        async with client.open_stream(COMPLETION, completion(prompt=[7] * 8)):
            await until_held(slow_engine, 2)
        await eventually(client.readings, lambda now: now.value("vllm:num_requests_running") == 0)
        await engine_clock.advance(4.9)
        assert (await client.blocks_in_use(), len(state(slow_engine.engine)["lingering"])) == (2, 1)
        await engine_clock.advance(0.2)
        assert await client.blocks_in_use() == 0


async def test_connections_can_be_refused_for_a_while(slow_engine: FakeEngineServer, engine_clock: ManualClock) -> None:
    control = EngineUnderTest(
        name="control", base_url=slow_engine.control_url, model="", block_tokens=1, blocks=2, max_model_len=1
    )
    async with client_of(port_of(slow_engine)) as client, client_of(control) as controller:
        assert (await client.get("/health")).status == 200
        await controller.post("/__fake/misbehave", {"refuse_connections": True, "for_seconds": 30})
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.get("/health")
        await engine_clock.advance(31)
        await eventually(lambda: reachable(client), lambda yes: yes)


async def reachable(client: EngineClient) -> bool:
    try:
        return (await client.get("/health")).status == 200
    except aiohttp.ClientConnectionError:
        return False


async def test_a_restart_cuts_streams_and_starts_from_nothing(
    slow_engine: FakeEngineServer, engine_clock: ManualClock
) -> None:
    url, started = slow_engine.base_url, slow_engine.engine.started_at
    async with client_of(port_of(slow_engine)) as client:
        async with client.open_stream(COMPLETION, completion(prompt=[7] * 8)) as response:
            await until_held(slow_engine, 2)
            await computed(slow_engine, engine_clock, 2)
            restarting = asyncio.create_task(slow_engine.restart(down_seconds=3))
            with pytest.raises(aiohttp.ClientError):
                [event async for event in events(response)]
        assert not await reachable(client)
        await engine_clock.advance(3)
        await restarting
        readings = await client.readings()
    assert slow_engine.base_url == url
    assert readings.value("process_start_time_seconds") >= started + 3
    assert (readings.value(USAGE), readings.value("vllm:generation_tokens_total")) == (0, 0)


# Control


async def test_misbehaviour_is_shown_set_and_ended_over_http(quick_engine: FakeEngineServer) -> None:
    async with client_of(port_of(quick_engine)) as client:
        told = await client.post("/__fake/misbehave", {"usage": "wrong", "hang_after_tokens": 3})
        assert quick_engine.misbehaviour() == Misbehaviour(usage=Usage.WRONG, hang_after_tokens=3)
        assert (await client.get("/__fake/misbehave")).document == told.document
        async with (
            aiohttp.ClientSession() as session,
            session.delete(f"{quick_engine.base_url}/__fake/misbehave") as reply,
        ):
            assert reply.status == 200
    assert quick_engine.misbehaviour() == GOOD


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("misbehave", {"hang": True}, "unknown: hang; an engine can be told: refuse_connections, "),
        ("misbehave", {"framing": "letters"}, "framing must be one of events, bytes, coalesced"),
        ("misbehave", {"refuse_connections": 1}, "refuse_connections must be true or false"),
        ("misbehave", {"cut_after_tokens": -1}, "cut_after_tokens must be a whole number from 0 on, or null"),
        ("misbehave", {"tokens_per_frame": None}, "tokens_per_frame must be a whole number from 1 on"),
        ("misbehave", {"freeing_delay_seconds": "5"}, "freeing_delay_seconds must be a number from 0 on, or null"),
        ("misbehave", {"for_seconds": -1}, "give seconds as a number from 0 to 3600"),
        ("misbehave", [], "send a JSON object"),
        ("restart", {"down_seconds": True}, "give seconds as a number from 0 to 3600"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, (dict, list)) else None,
)
async def test_a_control_request_that_makes_no_sense_says_so(
    quick_engine: FakeEngineServer, path: str, body: Any, says: str
) -> None:
    async with client_of(port_of(quick_engine)) as client:
        reply = await client.post(f"/__fake/{path}", body)
    assert reply.status == 400
    assert reply.document["error"].startswith(says)
    assert quick_engine.misbehaviour() == GOOD


async def test_the_state_tells_who_holds_which_blocks(slow_engine: FakeEngineServer) -> None:
    async with client_of(port_of(slow_engine)) as client:
        body = completion(prompt=distinct_prompt(1, 8), cache_salt="tenant-a")
        async with client.open_stream(COMPLETION, body):
            await until_held(slow_engine, 2)
            told = (await client.get("/__fake/state")).document
        await until_held(slow_engine, 0)
    (running,) = told["running"]
    assert (running["salt"], len(running["blocks"])) == ("tenant-a", 2)
    assert (told["usable"], told["held"], told["waiting"], told["lingering"]) == (128, 2, [], [])


async def test_a_restart_over_http_answers_with_the_new_start_time(quick_engine: FakeEngineServer) -> None:
    before = quick_engine.engine.started_at
    url = f"{quick_engine.control_url}/__fake/restart"
    async with aiohttp.ClientSession() as session, session.post(url, json={"down_seconds": 0}) as reply:
        told = await reply.json()
    assert told["started_at"] == quick_engine.engine.started_at > before
