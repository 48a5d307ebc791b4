"""What the sidecar reads of an engine's metrics, and how its ranks are named: the fake and the real vLLM alike."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from kvquota_api.amounts import Blocks, Tokens
from kvquota_fakeengine.server import FakeEngineServer
from kvquota_fakeengine.settings import EngineSettings
from kvquota_sidecar.engines.sampling import MetricsSampler
from kvquota_sidecar.ledger.asking import EngineSample, RankSample
from kvquota_sidecar.proxy.engine_side import EngineAddress, EnginePool
from testengine.bodies import COMPLETION, completion, distinct_prompt
from testengine.client import EngineClient, client_of, eventually
from testengine.port import EngineUnderTest
from testengine.vllm import VllmArguments, VllmEngine


@asynccontextmanager
async def sampler_of(engine: EngineUnderTest) -> AsyncIterator[MetricsSampler]:
    """The sidecar's sampler of this engine."""
    url, loop = urlsplit(engine.base_url), asyncio.get_running_loop()
    pool = EnginePool(EngineAddress(str(url.hostname), url.port or 0), loop.create_task, loop.time)
    try:
        yield MetricsSampler(pool)
    finally:
        pool.close()


async def sampled(sampler: MetricsSampler) -> EngineSample:
    sample = await sampler.sample()
    assert sample is not None
    return sample


async def test_an_idle_engine_says_all_that_there_is_and_holds_nothing(engine_client: EngineClient) -> None:
    async with sampler_of(engine_client.engine) as sampler:
        sample = await sampled(sampler)
    counted = (sample.preemptions, sample.finished, sample.prompt_tokens, sample.cached_tokens)
    assert None not in (sample.started_at, *counted)
    assert sample == EngineSample(
        blocks=Blocks(512),
        block_tokens=Tokens(32),
        used_blocks=Blocks(0),
        running=0,
        waiting=0,
        started_at=sample.started_at,
        preemptions=sample.preemptions,
        finished=sample.finished,
        prompt_tokens=sample.prompt_tokens,
        cached_tokens=sample.cached_tokens,
    )


async def test_a_stream_is_seen_with_the_blocks_of_its_prompt(engine_client: EngineClient) -> None:
    body = completion(prompt=distinct_prompt(80, 320), max_tokens=1700)
    async with sampler_of(engine_client.engine) as sampler:
        idle = await sampled(sampler)
        async with engine_client.open_stream(COMPLETION, body):
            busy = await eventually(lambda: sampled(sampler), lambda now: (now.used_blocks or 0) >= 10)
    assert (busy.running, busy.waiting, busy.started_at) == (1, 0, idle.started_at)


@pytest.mark.parametrize(("rank", "status"), [("0", 200), ("first", 200), ("", 200), ("1", 400), ("-1", 400)], ids=str)
async def test_an_engine_of_one_rank_has_no_other(engine_client: EngineClient, rank: str, status: int) -> None:
    reply = await engine_client.post(COMPLETION, completion(), X_data_parallel_rank=rank)
    assert reply.status == status
    if status == 400:
        error = {"message": f"data_parallel_rank {rank} is out of range [0, 1).", "type": "BadRequestError"}
        assert reply.document == {"error": error | {"param": None, "code": 400}}


# Two ranks


@pytest.fixture(params=["fake", pytest.param("vllm", marks=pytest.mark.engine)])
async def two_ranks(request: pytest.FixtureRequest) -> AsyncIterator[EngineUnderTest]:
    """An engine of two ranks with 256 blocks each."""
    if request.param == "vllm":
        with VllmEngine(VllmArguments(kv_cache_bytes=8 * 2**20, extra=("--data-parallel-size", "2"))) as engine:
            yield engine.under_test
        return
    settings = EngineSettings(model="tiny", block_tokens=32, blocks=256, ranks=2, max_model_len=2048, decode_rate=500)
    async with FakeEngineServer(settings) as server:
        yield EngineUnderTest(
            name="fake", base_url=server.base_url, model="tiny", block_tokens=32, blocks=256, max_model_len=2048
        )


async def test_ranks_have_a_pool_each_and_a_request_goes_to_the_one_it_names(two_ranks: EngineUnderTest) -> None:
    def body(number: int) -> dict[str, object]:
        return completion(prompt=distinct_prompt(number, 320), max_tokens=1700)

    async with sampler_of(two_ranks) as sampler, client_of(two_ranks) as client:
        idle = await sampled(sampler)
        assert idle.ranks == tuple(RankSample(rank, used_blocks=Blocks(0), running=0, waiting=0) for rank in (0, 1))
        assert (idle.blocks, idle.block_tokens, idle.used_blocks) == (256, 32, 0)
        asking = [
            asyncio.create_task(client.post(COMPLETION, body(90 + n), X_data_parallel_rank="1")) for n in range(2)
        ]
        busy = await eventually(lambda: sampled(sampler), lambda now: (now.used_blocks or 0) >= 20)
        assert [(each.rank, each.running) for each in busy.ranks] == [(0, 0), (1, 2)]
        assert (busy.ranks[0].used_blocks, busy.ranks[1].used_blocks) == (0, busy.used_blocks)
        assert (busy.blocks, busy.running) == (256, 2)
        refused = await client.post(COMPLETION, body(99), X_data_parallel_rank="2")
        assert (refused.status, refused.document["error"]["message"]) == (
            400,
            "data_parallel_rank 2 is out of range [0, 2).",
        )
        for each in asking:
            each.cancel()
        await eventually(lambda: sampled(sampler), lambda now: (now.used_blocks, now.running) == (0, 0))
