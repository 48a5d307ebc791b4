"""The fake engine's data-parallel ranks: a pool each, and which request goes where."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from kvquota_fakeengine.clock import ManualClock
from kvquota_fakeengine.misbehaviour import Misbehaviour
from kvquota_fakeengine.server import FakeEngineServer
from kvquota_fakeengine.settings import EngineSettings
from testengine.bodies import COMPLETION, completion, distinct_prompt
from testengine.client import EngineClient, client_of, eventually
from testengine.fake import port_of

RUNNING = "vllm:num_requests_running"


@pytest.fixture
async def server(engine_clock: ManualClock) -> AsyncIterator[FakeEngineServer]:
    """Three ranks of 64 blocks; only the test moves its time."""
    settings = EngineSettings(
        model="tiny", block_tokens=4, blocks=65, ranks=3, max_model_len=256, decode_rate=10, prefill_rate=1e9
    )
    async with FakeEngineServer(settings, clock=engine_clock, control_port=0) as engine:
        yield engine
        for scheduler in engine.engine.schedulers:
            scheduler.check_integrity()


@pytest.fixture
async def client(server: FakeEngineServer) -> AsyncIterator[EngineClient]:
    async with client_of(port_of(server)) as client:
        yield client


async def until_held(server: FakeEngineServer, *blocks: int) -> None:
    """Wait until the ranks hold so many blocks each."""

    async def held() -> list[int]:
        return [scheduler.pool.held for scheduler in server.engine.schedulers]

    await eventually(held, lambda now: now == list(blocks))


async def test_a_request_goes_to_the_rank_that_it_names(server: FakeEngineServer, client: EngineClient) -> None:
    body = completion(prompt=distinct_prompt(1, 8))
    asking = asyncio.create_task(client.post(COMPLETION, body, X_data_parallel_rank="2"))
    await until_held(server, 0, 0, 2)
    readings = await client.readings()
    by_rank = {labels["engine"]: labels for labels in readings.labels(RUNNING)}
    assert sorted(by_rank) == ["0", "1", "2"]
    assert readings.value(RUNNING) == 1
    (config, *others) = readings.labels("vllm:cache_config_info")
    assert (config["num_gpu_blocks"], config["kv_cache_size_tokens"], len(others)) == ("195", "260", 2)
    asking.cancel()
    await until_held(server, 0, 0, 0)


async def test_without_a_name_it_goes_to_the_one_with_least_to_do_in_turn(
    server: FakeEngineServer, client: EngineClient
) -> None:
    async with AsyncExitStack() as streams:
        seen = []
        for copies in (1, 1, 1, 1, 2):
            body = completion(prompt=distinct_prompt(1, 8), n=copies)
            await streams.enter_async_context(client.open_stream(COMPLETION, body))
            seen.append([rank.load for rank in server.engine.ranks])
    assert seen == [[1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 1, 1], [2, 2, 2]]
    await until_held(server, 0, 0, 0)


async def test_ranks_share_no_prefix(server: FakeEngineServer, client: EngineClient) -> None:
    body = completion(prompt=distinct_prompt(1, 9), max_tokens=1)
    cached = []
    for rank in ("0", "0", "1", "1"):
        asking = asyncio.create_task(client.post(COMPLETION, body, X_data_parallel_rank=rank))
        await until_held(server, *[3 * (rank == str(number)) for number in range(3)])
        await server._clock.advance(0.2)  # type: ignore[attr-defined]  # it is the manual one
        usage = (await asking).document["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 8, 0, 8]


@pytest.mark.parametrize("rank", ["3", "-1"])
async def test_a_rank_that_is_not_there_is_refused(client: EngineClient, rank: str) -> None:
    reply = await client.post(COMPLETION, completion(), X_data_parallel_rank=rank)
    assert (reply.status, reply.document["error"]["message"]) == (
        400,
        f"data_parallel_rank {rank} is out of range [0, 3).",
    )


async def test_the_state_adds_the_ranks_up_and_says_who_runs_where(
    server: FakeEngineServer, client: EngineClient
) -> None:
    async with client.open_stream(COMPLETION, completion(prompt=distinct_prompt(1, 8))):
        await until_held(server, 2, 0, 0)
        state = (await client.get("/__fake/state")).document
    assert (state["usable"], state["held"], [each["rank"] for each in state["running"]]) == (192, 2, [0])


async def test_an_engine_that_loses_aborts_goes_on_for_nobody(
    server: FakeEngineServer, client: EngineClient, engine_clock: ManualClock
) -> None:
    await server.misbehave(Misbehaviour(aborts_lost=True))
    async with client.open_stream(COMPLETION, completion(prompt=distinct_prompt(1, 8), max_tokens=50)):
        await until_held(server, 2, 0, 0)
    await engine_clock.advance(1.01)
    assert (await client.readings()).value(RUNNING) == 1
    assert server.engine.scheduler.totals.generation_tokens == 11
    await engine_clock.advance(5)
    assert (await client.readings()).value(RUNNING) == 0
    assert server.engine.scheduler.totals.generation_tokens == 50
