"""What the fake engine says of itself in the words of other engines, read by the sidecar's own readers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from kvquota_api.amounts import Blocks, Tokens
from kvquota_fakeengine.misbehaviour import GOOD, Metrics, Misbehaviour, Tokenizing
from kvquota_fakeengine.server import FakeEngineServer
from kvquota_fakeengine.settings import EngineSettings, Speech
from kvquota_sidecar.engines.sampling import MetricsSampler
from kvquota_sidecar.ledger.asking import EngineSample, RankSample
from kvquota_sidecar.proxy.engine_side import EngineAddress, EnginePool
from testengine.bodies import COMPLETION, completion, distinct_prompt
from testengine.client import EngineClient, client_of, eventually
from testengine.fake import port_of

WALL = 5000.0


@asynccontextmanager
async def looking_at(**settings: Any) -> AsyncIterator[tuple[FakeEngineServer, EngineClient, MetricsSampler]]:
    """An engine of 64 blocks of 4 tokens in each rank that takes its time, a client and a sampler of it."""
    usual: dict[str, Any] = {"model": "tiny", "block_tokens": 4, "blocks": 65, "max_model_len": 256, "decode_rate": 0.1}
    wanted = EngineSettings(**usual | settings)
    loop = asyncio.get_running_loop()
    async with FakeEngineServer(wanted) as server, client_of(port_of(server)) as client:
        url = urlsplit(server.base_url)
        pool = EnginePool(EngineAddress(str(url.hostname), url.port or 0), loop.create_task, loop.time)
        try:
            yield server, client, MetricsSampler(pool, wall=lambda: WALL)
        finally:
            pool.close()


@asynccontextmanager
async def busy(server: FakeEngineServer, client: EngineClient) -> AsyncIterator[None]:
    """Two sequences that have produced one token each: behind ten tokens of prompt, and behind nine."""
    prompts = [distinct_prompt(1, 10), distinct_prompt(2, 9)]

    async def produced() -> int:
        return sum(each.totals.generation_tokens for each in server.engine.schedulers)

    async with client.open_stream(COMPLETION, completion(prompt=prompts)):
        await eventually(produced, lambda tokens: tokens == 2)
        yield


def held(blocks: int, **more: Any) -> EngineSample:
    """What is said of those two by an engine of so many blocks: every block is 4 tokens, ten of prompt are three, nine
    too."""
    return EngineSample(Blocks(blocks), Tokens(4), Blocks(6), running=2, waiting=0, **more)


SINCE_THE_START = {"preemptions": 0, "finished": 0, "prompt_tokens": 19, "cached_tokens": 0}
ONE_EACH = tuple(RankSample(rank, Blocks(3), running=1, waiting=0) for rank in (0, 1))
READ: dict[str, tuple[dict[str, Any], EngineSample]] = {
    "vLLM": ({}, held(65, **SINCE_THE_START)),
    "vLLM with two ranks behind two API servers": (
        {"ranks": 2, "api_servers": 2},
        held(65, **SINCE_THE_START, ranks=ONE_EACH),
    ),
    "SGLang": ({"speech": Speech.SGLANG}, held(64)),
    "SGLang with two ranks": ({"speech": Speech.SGLANG, "ranks": 2}, held(64, ranks=ONE_EACH)),
    "llama.cpp": (
        {"speech": Speech.LLAMACPP},
        EngineSample(block_tokens=Tokens(1), used_blocks=Blocks(21), running=2, waiting=0),
    ),
}


@pytest.mark.parametrize(("settings", "expected"), READ.values(), ids=READ)
async def test_what_it_says_is_what_it_holds(settings: dict[str, Any], expected: EngineSample) -> None:
    async with looking_at(**settings) as (server, client, sampler), busy(server, client):
        sample = await sampler.sample()
    assert sample is not None
    started = server.engine.started_at if settings in ({},) else WALL
    assert (sample, sample.started_at) == (_at(expected, started), started)


def _at(sample: EngineSample, started: float) -> EngineSample:
    fields = {name: getattr(sample, name) for name in EngineSample.__dataclass_fields__}
    return EngineSample(**fields | {"started_at": started})


@pytest.mark.parametrize(
    "settings",
    [{}, {"api_servers": 2}, {"speech": Speech.SGLANG}, {"speech": Speech.LLAMACPP}],
    ids=["vLLM", "vLLM with several API servers", "SGLang", "llama.cpp"],
)
async def test_a_restart_is_seen_in_everybody_s_words(settings: dict[str, Any]) -> None:
    async with looking_at(decode_rate=1e6, **settings) as (server, client, sampler):
        await client.post(COMPLETION, completion())
        first = await sampler.sample()
        assert await sampler.sample() == first
        await server.restart()
        sampler._lives._wall = lambda: WALL + 9
        second = await sampler.sample()
    assert first is not None
    assert second is not None
    assert first.started_at != second.started_at


@pytest.mark.parametrize("speech", [Speech.SGLANG, Speech.LLAMACPP])
async def test_metrics_that_are_renamed_say_nothing_in_any_words(speech: Speech) -> None:
    async with looking_at(speech=speech) as (server, _, sampler):
        await server.misbehave(Misbehaviour(metrics=Metrics.RENAMED))
        assert await sampler.sample() is None


async def test_sglang_tells_its_cache_beside_its_metrics() -> None:
    async with looking_at(speech=Speech.SGLANG) as (_, client, _sampler):
        told = (await client.get("/get_server_info")).document
    assert (told["page_size"], told["max_total_num_tokens"]) == (4, 256)


async def test_llamacpp_tells_its_slots_and_tokens() -> None:
    async with looking_at(speech=Speech.LLAMACPP, max_sequences=4) as (_, client, _sampler):
        slots = (await client.get("/slots")).document
        props = (await client.get("/props")).document
        counted = (await client.post("/tokenize", {"content": "Hello there"})).document
    assert slots == [{"id": number, "n_ctx": 64, "is_processing": False} for number in range(4)]
    assert (props["total_slots"], props["default_generation_settings"]) == (4, {"n_ctx": 64})
    assert len(counted["tokens"]) == 4


@pytest.mark.parametrize(
    ("wrong", "status"), [(Tokenizing.RIGHT, 200), (Tokenizing.MISSING, 404), (Tokenizing.ERROR, 500)]
)
async def test_tokenizing_can_be_missing_or_fail(
    quick_engine: FakeEngineServer, wrong: Tokenizing, status: int
) -> None:
    await quick_engine.misbehave(Misbehaviour(tokenizing=wrong))
    async with client_of(port_of(quick_engine)) as client:
        assert (await client.post("/tokenize", {"prompt": "a"})).status == status


async def test_tokenizing_can_never_come(quick_engine: FakeEngineServer) -> None:
    await quick_engine.misbehave(Misbehaviour(tokenizing=Tokenizing.HANG))
    async with client_of(port_of(quick_engine)) as client:
        asking = asyncio.create_task(client.post("/tokenize", {"prompt": "a"}))
        assert (await client.get("/health")).status == 200
        assert not asking.done()
        await quick_engine.misbehave(GOOD)
        assert (await asking).status == 200
