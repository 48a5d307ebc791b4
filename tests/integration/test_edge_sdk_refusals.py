"""What the unchanged clients of OpenAI and Anthropic make of every refusal: what they raise and show, whether they try
again, and how long they wait before they do."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import anyio
import httpx2
import msgspec
import pytest

from kvquota_api.amounts import Blocks
from kvquota_api.pod_config import Ladder, TenantShare
from kvquota_sidecar.ledger.asking import EngineSample
from kvquota_sidecar.proxy.hub import Patience
from kvquota_sidecar.refusals.codes import TABLE, Code
from raw_engine import EngineConnection, RawEngine
from sidecar_rig import (
    BATCH,
    KEYS,
    SEARCH,
    ManualClock,
    Running,
    begun_stream,
    both_ends,
    completion,
    config,
    eventually,
    post,
    share,
)
from sidecar_sdks import RETRIES, SDKS, Answers, Call, Sdk, seen_by


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long the clients would have waited before they tried again."""
    asked: list[float] = []

    async def no_sleep(seconds: float) -> None:
        asked.append(seconds)

    monkeypatch.setattr(anyio, "sleep", no_sleep)
    return asked


# How a sidecar comes to refuse.

Stage = Callable[[], AbstractAsyncContextManager[Running]]


def plain(*shares: TenantShare, **changes: Any) -> Stage:
    """Nothing else is going on."""

    @asynccontextmanager
    async def stage() -> AsyncIterator[Running]:
        async with both_ends(**{"wanted": config(*shares), **changes}) as (running, _):
            yield running

    return stage


def beside_a_stream(*shares: TenantShare) -> Stage:
    """The tenant has a stream running."""

    @asynccontextmanager
    async def stage() -> AsyncIterator[Running]:
        async with both_ends(wanted=config(*shares)) as (running, engine), begun_stream(running, engine):
            yield running

    return stage


def beside_a_borrower(ladder: Ladder) -> Stage:
    """Another tenant, which has no guarantee, holds 40 of the pool's 64 blocks."""
    shared = config(share(SEARCH, soft=32, hard=64), share(BATCH, soft=0, hard=64), blocks=65, ladder=ladder)

    @asynccontextmanager
    async def stage() -> AsyncIterator[Running]:
        held = post(completion(40, stream=True), "/v1/completions", BATCH)
        async with both_ends(wanted=shared) as (running, engine), begun_stream(running, engine, request=held):
            yield running

    return stage


@asynccontextmanager
async def leaving() -> AsyncIterator[Running]:
    async with both_ends(drain_seconds=50.0) as (running, engine), begun_stream(running, engine) as stream:
        stopping = asyncio.create_task(running.sidecar.stop())
        await eventually("the drain begins", lambda: running.events("draining") != [])
        yield running
        stream.upstream.end_stream()
        await stopping


@asynccontextmanager
async def without_an_engine() -> AsyncIterator[Running]:
    async with both_ends() as (running, engine):
        await engine.stop()
        yield running


def with_context(tokens: int) -> TenantShare:
    return msgspec.structs.replace(share(SEARCH, soft=400, hard=1000), max_context_tokens=tokens)


HELLO = Call()


@dataclass(frozen=True, slots=True)
class Row:
    """A refusal: how it comes about, what is asked, and whether the tenant is known by then."""

    code: Code
    stage: Stage
    call: Call = HELLO
    knows_the_tenant: bool = True


ROWS = [
    Row(Code.TENANT_CONCURRENCY_EXCEEDED, beside_a_stream(share(SEARCH, soft=400, hard=1000, concurrent=1))),
    Row(Code.TENANT_KV_QUOTA_EXCEEDED, beside_a_stream(share(SEARCH, soft=4, hard=8)), Call(limit=60)),
    Row(Code.KV_POOL_CONTENDED, beside_a_borrower(Ladder()), Call(limit=300, key=KEYS[BATCH])),
    Row(Code.KV_POOL_EXHAUSTED, beside_a_borrower(Ladder(eviction_wait_seconds=0.0)), Call(limit=400)),
    Row(Code.DRAINING, leaving),
    Row(Code.NOT_CONFIGURED, plain(configured=False), knows_the_tenant=False),
    Row(Code.REQUEST_EXCEEDS_KV_QUOTA, plain(share(SEARCH, soft=4, hard=8)), Call(limit=600)),
    Row(Code.CONTEXT_LENGTH_EXCEEDED, plain(with_context(64)), Call(limit=100)),
    Row(Code.UNKNOWN_TENANT, plain(), Call(key="kvq-" + "00" * 32), knows_the_tenant=False),
    Row(
        Code.AMBIGUOUS_IDENTITY,
        plain(),
        Call(headers={"Authorization": f"Bearer {KEYS[BATCH]}", "X-Api-Key": KEYS[SEARCH]}),
        knows_the_tenant=False,
    ),
    Row(Code.NOT_SUPPORTED_UNDER_QUOTA, plain(), Call(body={"kv_transfer_params": {}})),
    Row(Code.MALFORMED_REQUEST, plain(), Call(body={"model": 5})),
    Row(Code.REQUEST_TOO_LARGE, plain(patience=Patience(max_body_bytes=32))),
    Row(Code.UNSUPPORTED_ENCODING, plain(), Call(headers={"Content-Encoding": "gzip"})),
    Row(Code.EXPECTATION_FAILED, plain(), Call(headers={"Expect": "200-ok"})),
    Row(Code.HEADERS_TOO_LARGE, plain(), Call(headers={"X-Large": "x" * 40_000})),
    Row(Code.ENGINE_ERROR, without_an_engine),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.code.value for row in ROWS])
@pytest.mark.parametrize("sdk", SDKS.values(), ids=SDKS)
async def test_a_refusal_is_raised_shown_and_retried_as_it_says(sdk: Sdk, row: Row, waits: list[float]) -> None:
    async with row.stage() as running:
        for stream in (False, True):
            waits.clear()
            async with seen_by() as (http, answers):
                with pytest.raises(sdk.base) as caught:
                    await sdk.ask(running.url, replace(row.call, stream=stream), RETRIES, http)
            _check(caught.value, sdk, row.code)
            _check_attempts(answers, waits, row)
            assert _sentence(answers[-1], sdk) in str(caught.value)


def _check(error: Any, sdk: Sdk, code: Code) -> None:
    """That it is what users of the client look for."""
    entry = TABLE[code]
    expected: Any = sdk.errors.get(entry.status, sdk.base)
    assert isinstance(error, expected)
    assert error.status_code == entry.status
    assert sdk.shown(error) == (code.value, entry.anthropic_type if sdk.is_anthropic else entry.openai_type)


def _check_attempts(answers: Answers, waits: list[float], row: Row) -> None:
    """That the client came back, or not, when it was told to."""
    assert len(answers) == (1 + RETRIES if TABLE[row.code].retryable else 1)
    assert waits == [float(each.headers["retry-after-ms"]) / 1000 for each in answers[:-1]]
    assert all(1 <= wait <= 60 for wait in waits)
    for answer in answers:
        _check_headers(answer, row)


def _sentence(answer: httpx2.Response, sdk: Sdk) -> str:
    """That of the error object of the API that was called, which has all its fields and no others."""
    told = answer.json()
    error = told["error"]
    if sdk.is_anthropic:
        assert told == {"type": "error", "error": {name: error[name] for name in ("type", "message", "code")}}
    else:
        assert told == {"error": {name: error[name] for name in ("message", "type", "param", "code")}}
    return str(error["message"])


def _check_headers(answer: httpx2.Response, row: Row) -> None:
    said = answer.headers
    assert said["x-kvquota-code"] == row.code.value
    assert said["x-should-retry"] == str(TABLE[row.code].retryable).lower()
    assert ("retry-after" in said) == ("retry-after-ms" in said) == TABLE[row.code].retryable
    room = {"ratelimit", "ratelimit-policy", "x-kvquota-used-tokens", "x-kvquota-soft-tokens", "x-kvquota-hard-tokens"}
    assert room & set(said) == (room if row.knows_the_tenant else set())


# What takes time to come about.


class Slowly(httpx2.AsyncByteStream):
    """A body whose second half comes a minute after the first."""

    def __init__(self, body: bytes, running: Running, clock: ManualClock) -> None:
        self.body, self.running, self.clock = body, running, clock

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.body[:10]
        buffers = self.running.sidecar._traffic_hub.buffers
        await eventually("it is read", lambda: buffers.total_bytes > 0)
        self.clock.now += 61
        await asyncio.sleep(0.3)  # several looks at the connection
        yield self.body[10:]


class SlowTransport(httpx2.AsyncHTTPTransport):
    def __init__(self, running: Running, clock: ManualClock) -> None:
        super().__init__()
        self.running, self.clock = running, clock

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.stream = Slowly(request.content, self.running, self.clock)
        return await super().handle_async_request(request)


@pytest.mark.parametrize("sdk", SDKS.values(), ids=SDKS)
async def test_a_request_that_came_too_slowly_is_not_sent_again(sdk: Sdk, waits: list[float]) -> None:
    """By themselves the clients would: an answer of 408 is one that they retry."""
    clock = ManualClock()
    async with both_ends(clock=clock) as (running, _), seen_by(transport=SlowTransport(running, clock)) as (http, got):
        with pytest.raises(sdk.base) as caught:
            await sdk.ask(running.url, Call(), RETRIES, http)
    _check(caught.value, sdk, Code.REQUEST_TIMEOUT)
    _check_attempts(got, waits, Row(Code.REQUEST_TIMEOUT, plain()))


@pytest.mark.parametrize("sdk", SDKS.values(), ids=SDKS)
async def test_an_engine_that_says_nothing_is_asked_again(sdk: Sdk, waits: list[float]) -> None:
    clock = ManualClock()
    async with both_ends(clock=clock, silence_seconds=30.0) as (running, engine), seen_by() as (http, answers):

        async def time_passes() -> None:
            for _ in range(1 + RETRIES):
                await engine.next()
                clock.now += 31

        passing = asyncio.create_task(time_passes())
        with pytest.raises(sdk.base) as caught:
            await sdk.ask(running.url, Call(), RETRIES, http)
        await passing
        await running.idle()
    _check(caught.value, sdk, Code.ENGINE_TIMEOUT)
    _check_attempts(answers, waits, Row(Code.ENGINE_TIMEOUT, plain()))


async def _again(engine: RawEngine) -> EngineConnection:
    """The next request for the whole of an answer of 600 tokens."""
    while True:
        request = await engine.next()
        if b":600," in request.body:
            return request
        engine.requests.put_nowait(request)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("sdk", SDKS.values(), ids=SDKS)
async def test_one_that_was_ended_before_its_first_byte_comes_back_and_is_served(
    sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its client's own retry, which waits until the room is free again."""
    ladder = Ladder(min_dwell_seconds=0.0)
    shared = config(share(SEARCH, soft=32, hard=64), share(BATCH, soft=0, hard=64), blocks=65, ladder=ladder)
    async with both_ends(wanted=shared) as (running, engine), await running.connect() as newcomer:

        def gauge(used: int) -> None:
            sample = EngineSample(blocks=Blocks(65), used_blocks=Blocks(used), running=1, waiting=0, started_at=1.0)
            running.sidecar._observe(sample)

        async def pause(seconds: float) -> None:
            waited.append(seconds)
            gauge(0)
            (await engine.next()).answer(b"{}")
            assert (await newcomer.answer()).status == 200
            gauge(0)

        waited: list[float] = []
        monkeypatch.setattr(anyio, "sleep", pause)
        async with seen_by() as (http, answers):
            asking = asyncio.ensure_future(sdk.ask(running.url, Call(limit=600, key=KEYS[BATCH]), RETRIES, http))
            await engine.next()
            gauge(40)
            newcomer.send(post(completion(30), "/v1/completions"))
            (await _again(engine)).answer(json.dumps(sdk.good).encode())
            assert (await asking).model == "tiny"
        await running.idle()
    assert [each.status_code for each in answers] == [503, 200]
    assert answers[0].headers["x-kvquota-code"] == "kv_evicted"
    assert waited == [float(answers[0].headers["retry-after-ms"]) / 1000]
