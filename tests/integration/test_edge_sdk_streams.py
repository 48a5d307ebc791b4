"""What the unchanged clients of OpenAI and Anthropic make of a stream that is ended after its first byte: an error with
its code, always, and never an answer that looks complete. None of them asks again by itself."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anthropic
import anyio
import httpx2
import openai
import pytest

from kvquota_sidecar.estimate.outputs import FEWEST
from kvquota_sidecar.refusals.codes import TABLE, Code
from raw_client import DEADLINE_SECONDS
from raw_engine import EngineConnection, RawEngine
from sidecar_rig import (
    BATCH,
    KEYS,
    SEARCH,
    ManualClock,
    Running,
    both_ends,
    completion,
    config,
    eventually,
    post,
    share,
)
from sidecar_sdks import RETRIES, SDKS, Call, Sdk

# What may end a stream.


@dataclass(frozen=True, slots=True)
class Scene:
    """A sidecar before an engine; `begin` asks it for a stream by the client, whose first token has come."""

    running: Running
    engine: RawEngine
    sdk: Sdk
    clock: ManualClock
    http: httpx2.AsyncClient
    stack: AsyncExitStack

    async def begin(self, limit: int = 32, tenant: str = SEARCH) -> tuple[Any, EngineConnection]:
        call = Call(limit=limit, key=KEYS[tenant], stream=True)
        asking = asyncio.ensure_future(self.sdk.ask(self.running.url, call, RETRIES, self.http))
        upstream = await self.engine.next()
        upstream.begin_stream()
        upstream.chunk(self.sdk.token)
        stream = await asking
        await anext(stream)
        return stream, upstream

    async def whole(self) -> None:
        """A stream of one token that ends by itself."""
        stream, upstream = await self.begin()
        upstream.chunk(self.sdk.mark)
        upstream.send(b"0\r\n\r\n")
        upstream.done()
        assert len([each async for each in stream]) == self.sdk.shows_mark


Fate = Callable[[Scene], Awaitable[Any]]


async def cut(it: Scene) -> Any:
    stream, upstream = await it.begin()
    upstream.cut()
    return stream


async def closed(it: Scene) -> Any:
    stream, upstream = await it.begin()
    upstream.finish()
    return stream


async def silent(it: Scene) -> Any:
    stream, _ = await it.begin()
    await asyncio.sleep(0.2)  # the last word has been noted
    it.clock.now += 31
    return stream


async def drained(it: Scene) -> Any:
    stream, _ = await it.begin()
    stopping = asyncio.create_task(it.running.sidecar.stop())
    it.stack.push_async_callback(lambda: stopping)
    await eventually("the drain begins", lambda: it.running.events("draining") != [])
    it.clock.now += 20
    return stream


async def evicted(it: Scene) -> Any:
    stream, _ = await it.begin(limit=600, tenant=BATCH)
    newcomer = await it.stack.enter_async_context(await it.running.connect())
    newcomer.send(post(completion(30), "/v1/completions"))
    return stream


async def outgrown(it: Scene) -> Any:
    """Both promise the one token that answers had before, and grow together past the tenant's hard quota."""
    for _ in range(FEWEST):
        await it.whole()
    older, upstream_of_older = await it.begin(limit=400)
    it.stack.push_async_callback(older.close)
    stream, upstream = await it.begin(limit=400)
    for _ in range(280):
        upstream_of_older.chunk(it.sdk.token)
        upstream.chunk(it.sdk.token)
    return stream


SHARED = config(share(SEARCH, soft=32, hard=64), share(BATCH, soft=0, hard=64), blocks=65)
BORROWED = config(share(SEARCH, soft=0, hard=32), share(BATCH, soft=0, hard=64), blocks=257)
ROWS = {
    "the engine died": (cut, Code.ENGINE_ERROR, config()),
    "the engine closed its connection": (closed, Code.ENGINE_ERROR, config()),
    "the engine fell silent": (silent, Code.ENGINE_TIMEOUT, config()),
    "the pod had to go": (drained, Code.DRAINING, config()),
    "a guaranteed request needed the room": (evicted, Code.KV_EVICTED, SHARED),
    "its tenant outgrew its quota": (outgrown, Code.TENANT_KV_QUOTA_EXCEEDED, BORROWED),
}


@asynccontextmanager
async def scene(sdk: Sdk, wanted: Any) -> AsyncIterator[Scene]:
    clock = ManualClock()
    async with (
        both_ends(wanted=wanted, clock=clock, silence_seconds=30.0, drain_seconds=20.0) as (running, engine),
        httpx2.AsyncClient(timeout=DEADLINE_SECONDS) as http,
        AsyncExitStack() as stack,
    ):
        yield Scene(running, engine, sdk, clock, http, stack)


@pytest.mark.parametrize(("fate", "code", "wanted"), ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("sdk", SDKS.values(), ids=SDKS)
async def test_a_stream_that_is_ended_is_an_error_with_its_code_and_is_not_asked_for_again(
    sdk: Sdk, fate: Fate, code: Code, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_sleep(seconds: float) -> None:
        raise AssertionError("the client waits to ask again")

    monkeypatch.setattr(anyio, "sleep", no_sleep)
    async with scene(sdk, wanted) as it:
        stream = await fate(it)
        with pytest.raises(anthropic.APIStatusError if sdk.is_anthropic else openai.APIError) as caught:
            async with asyncio.timeout(DEADLINE_SECONDS):
                [each async for each in stream]
        assert [each for each in _left(it.engine) if f" {sdk.path} " in each] == []
    _check(caught.value, code)


def _left(engine: RawEngine) -> list[str]:
    """The requests that the engine has got and nobody has looked at."""
    return [engine.requests.get_nowait().head.decode() for _ in range(engine.requests.qsize())]


def _check(error: Any, code: Code) -> None:
    entry = TABLE[code]
    body: Any = error.body
    told = body["error"] if isinstance(error, anthropic.APIError) else body
    assert (told["code"], told["retryable"]) == (code.value, True)
    assert 1000 <= told["retry_after_ms"] <= 60_000
    assert told["message"] in str(error)
    if isinstance(error, anthropic.APIError):
        assert (body["type"], told["type"]) == ("error", entry.anthropic_type)
        assert getattr(error, "type", entry.anthropic_type) == entry.anthropic_type
    else:
        assert (error.code, error.type) == (code.value, entry.openai_type)
