"""The unchanged OpenAI client in front of a sidecar and the fake engine."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from kvquota_fakeengine.misbehaviour import Misbehaviour
from kvquota_fakeengine.server import FakeEngineServer
from kvquota_fakeengine.settings import EngineSettings
from raw_client import DEADLINE_SECONDS
from sidecar_rig import BATCH, KEYS, SEARCH, Running, config, eventually, on_both_loops, running_sidecar, share

HELLO: Any = [{"role": "user", "content": "hello"}]
DENSE: Any = [{"role": "user", "content": "!" * 2000}]


@asynccontextmanager
async def before_fake(*, rate: float = 1e6, **changes: Any) -> AsyncIterator[tuple[Running, FakeEngineServer]]:
    settings = EngineSettings(model="tiny", block_tokens=16, blocks=1024, decode_rate=rate, answer_tokens=8)
    async with FakeEngineServer(settings, control_port=0) as engine:
        port = int(engine.base_url.rpartition(":")[2])
        async with running_sidecar(("127.0.0.1", port), **{"sample_seconds": 0.05, **changes}) as running:
            yield running, engine
        engine.engine.scheduler.check_integrity()


@asynccontextmanager
async def client_of(running: Running, tenant: str = SEARCH, retries: int = 0) -> AsyncIterator[openai.AsyncOpenAI]:
    client = openai.AsyncOpenAI(
        base_url=f"{running.url}/v1", api_key=KEYS.get(tenant, tenant), max_retries=retries, timeout=DEADLINE_SECONDS
    )
    async with client:
        yield client


@on_both_loops
async def test_a_chat_a_completion_and_the_models_pass() -> None:
    async with before_fake() as (running, _), client_of(running) as client:
        chat = await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4)
        text = await client.completions.create(model="tiny", prompt=["a", "b"], n=2, max_tokens=4)
        models = await client.models.list()
        await running.idle()
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 4
    assert len(text.choices) == 4
    assert [model.id for model in models.data] == ["tiny"]


@on_both_loops
async def test_embeddings_pass_are_counted_and_refused_in_words_that_help() -> None:
    """As floats and in base64, in which the client asks for them by itself."""
    async with before_fake(wanted=config(share(SEARCH, soft=0, hard=8))) as (running, _), client_of(running) as client:
        told = await client.embeddings.with_raw_response.create(model="tiny", input=["a", "b"])
        floats = await client.embeddings.create(model="tiny", input="a", encoding_format="float")
        with pytest.raises(openai.BadRequestError) as caught:
            await client.embeddings.create(model="tiny", input=[[7] * 200])
        await running.idle()
        total = running.report().tenants[0].total
    embeddings = told.parse()
    assert [type(each.embedding) for each in embeddings.data] == [list, list]
    assert embeddings.data[0].embedding == pytest.approx(floats.data[0].embedding)
    assert int(told.headers["x-kvquota-used-tokens"]) > 0
    assert (caught.value.code, caught.value.type) == ("request_exceeds_kv_quota", "invalid_request_error")
    assert "128" in caught.value.message
    assert (total.admitted, total.rejected) == (2, {"request_exceeds_kv_quota": 1})


@on_both_loops
async def test_a_stream_looks_as_it_does_without_a_sidecar() -> None:
    """All but the fingerprint, which vLLM puts into the frame of the usage: that one is asked for and withheld."""
    own = {"id", "created", "system_fingerprint"}

    async def streamed(client: openai.AsyncOpenAI, **more: Any) -> list[dict[str, Any]]:
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5, stream=True, **more)
        return [chunk.model_dump(exclude=own) async for chunk in stream]

    async with before_fake() as (running, engine), client_of(running) as through:
        direct = openai.AsyncOpenAI(base_url=f"{engine.base_url}/v1", api_key="x", timeout=DEADLINE_SECONDS)
        async with direct:
            assert await streamed(through) == await streamed(direct)
            asked = {"stream_options": {"include_usage": True}}
            assert await streamed(through, **asked) == await streamed(direct, **asked)
        await running.idle()


@on_both_loops
async def test_the_prompts_tokens_are_learnt_from_a_stream_that_did_not_ask_for_usage() -> None:
    async with before_fake() as (running, _), client_of(running) as client:
        ratios = running.sidecar._desk.ratios
        assert ratios.error(SEARCH) is None
        stream = await client.chat.completions.create(model="tiny", messages=DENSE, max_tokens=5, stream=True)
        assert [chunk async for chunk in stream]
        learnt = ratios.error(SEARCH)
    assert learnt is not None
    assert learnt.count == 1


@on_both_loops
async def test_a_completion_without_a_limit_is_charged_what_vllm_would_make() -> None:
    """Not the whole context, which no tenant's hard quota may allow."""
    async with (
        before_fake(wanted=config(share(SEARCH, soft=0, hard=8))) as (running, _),
        client_of(running) as client,
    ):
        answer = await client.completions.create(model="tiny", prompt="hello")
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="tiny", messages=HELLO)
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 16
    assert caught.value.code == "request_exceeds_kv_quota"


@on_both_loops
async def test_a_refusal_is_a_rate_limit_error_with_the_numbers_in_it() -> None:
    async with (
        before_fake(rate=5, wanted=config(share(SEARCH, soft=0, hard=8))) as (running, _),
        client_of(running) as client,
    ):
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=60, stream=True)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=60)
        await stream.close()
        await running.idle()
    assert caught.value.code == "tenant_kv_quota_exceeded"
    assert "hard quota is 128" in caught.value.message
    assert "Shorten the input, or lower max_tokens, together by about" in caught.value.message
    assert "or wait for your running request to end" in caught.value.message
    assert caught.value.response.headers["x-kvquota-hard-tokens"] == "128"


@on_both_loops
async def test_a_refused_client_gets_through_by_its_own_retries() -> None:
    async with (
        before_fake(rate=20, wanted=config(share(SEARCH, soft=0, hard=8))) as (running, _),
        client_of(running) as first,
        client_of(running, retries=5) as second,
    ):
        stream = await first.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=10, stream=True, extra_body={"ignore_eos": True}
        )
        answer, chunks = await asyncio.gather(
            second.chat.completions.create(model="tiny", messages=HELLO, max_tokens=60), _all(stream)
        )
        await running.idle()
        refused = running.report().tenants[0].total.rejected
    assert answer.usage is not None
    assert len(chunks) == 11
    assert refused["tenant_kv_quota_exceeded"] >= 1


async def _all(stream: "openai.AsyncStream[Any]") -> list[Any]:
    return [chunk async for chunk in stream]


@on_both_loops
async def test_a_stranger_gets_an_authentication_error() -> None:
    async with before_fake() as (running, _), client_of(running, "kvq-" + "00" * 32) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.chat.completions.create(model="tiny", messages=HELLO)
    assert caught.value.code == "unknown_tenant"


@on_both_loops
async def test_a_request_that_can_never_fit_is_not_retried() -> None:
    async with before_fake(wanted=config(share(SEARCH, soft=0, hard=8))) as (running, _):
        async with client_of(running, retries=5) as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=600)
        assert running.report().tenants[0].total.rejected == {"request_exceeds_kv_quota": 1}
    assert caught.value.code == "request_exceeds_kv_quota"


@on_both_loops
async def test_an_engine_that_cuts_a_stream_is_an_error_to_the_client() -> None:
    async with before_fake() as (running, engine), client_of(running) as client:
        await engine.misbehave(Misbehaviour(cut_after_tokens=2))
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5, stream=True)
        with pytest.raises(openai.APIError) as caught:
            await _all(stream)
        assert (type(caught.value), caught.value.code) == (openai.APIError, "engine_error")
        assert "broke" in caught.value.message
        await running.idle()


@on_both_loops
async def test_a_client_that_stops_reading_a_stream_frees_the_engines_blocks() -> None:
    async with before_fake(rate=20) as (running, engine), client_of(running) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            break
        assert engine.engine.scheduler.running
        await stream.close()
        await running.idle()
        await eventually("the engine has stopped", lambda: not engine.engine.scheduler.running)


@on_both_loops
async def test_tenants_share_no_cached_prefix() -> None:
    async with before_fake() as (running, engine):
        for tenant in (SEARCH, BATCH, SEARCH):
            async with client_of(running, tenant) as client:
                await client.chat.completions.create(
                    model="tiny", messages=HELLO, max_tokens=4, extra_body={"cache_salt": "chosen", "priority": 7}
                )
        bodies = [json.loads(received.body) for received in engine.received]
    salts = [body["cache_salt"] for body in bodies]
    assert salts[0] == salts[2] != salts[1]
    assert "chosen" not in salts
    assert bodies[0]["priority"] == bodies[1]["priority"] >= 7


@on_both_loops
async def test_fifty_at_once_never_pass_the_cap_and_all_that_came_in_are_answered() -> None:
    capped = config(share(SEARCH, soft=400, hard=1000, concurrent=7))
    async with before_fake(rate=50, wanted=capped) as (running, engine), client_of(running) as client:
        peak = 0

        async def watch() -> None:
            nonlocal peak
            while True:
                peak = max(peak, running.in_flight(), len(engine.engine.scheduler.running))
                await asyncio.sleep(0.002)

        watching = asyncio.create_task(watch())
        asks = [client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=10) for _ in range(50)]
        outcomes = await asyncio.gather(*asks, return_exceptions=True)
        watching.cancel()
        await running.idle()
        total = running.report().tenants[0].total
    answered = [each for each in outcomes if not isinstance(each, BaseException)]
    assert {type(each) for each in outcomes if isinstance(each, BaseException)} == {openai.RateLimitError}
    assert peak == 7
    assert len(answered) == total.admitted
    assert total.rejected == {"tenant_concurrency_exceeded": 50 - total.admitted}
