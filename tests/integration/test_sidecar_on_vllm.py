"""The sidecar before the real vLLM: all generating routes, what is counted, and what a client that leaves frees."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvquota_sidecar.engines.vllm import read_sample
from raw_client import Got, RawClient
from sidecar_rig import SEARCH, Running, config, eventually, post, running_sidecar, share
from testengine.client import EngineClient
from testengine.port import EngineUnderTest

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("vllm_client")]  # each begins on an idle engine

TEXT = "The quick brown fox jumps over the lazy dog. " * 4
OUTPUT = 12  # tokens


@asynccontextmanager
async def before(engine: EngineUnderTest) -> AsyncIterator[Running]:
    host, _, port = engine.base_url.removeprefix("http://").partition(":")
    plan = config(share(SEARCH, soft=100, hard=400))
    async with running_sidecar((host, int(port)), wanted=plan, sample_seconds=0.1) as running:
        await eventually("the engine was sampled", lambda: running.report().engine.used_blocks is not None)
        yield running


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": TEXT}], "max_tokens": OUTPUT, "ignore_eos": True, **more}


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", chat()),
    "completion": ("/v1/completions", {"prompt": TEXT, "max_tokens": OUTPUT, "ignore_eos": True}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": TEXT}], "max_tokens": OUTPUT}),
    "responses": ("/v1/responses", {"input": TEXT, "max_output_tokens": OUTPUT, "store": False}),
}


async def asked(running: Running, path: str, body: dict[str, Any]) -> Got:
    async with await running.connect() as client:
        return await client.ask(post(json.dumps({"model": "tiny", **body}).encode(), path))


class Settled:
    """The books of a sidecar, with what the engine's own counts told them."""

    def __init__(self, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: list[tuple[int, int]] = []
        books = running.sidecar.books
        settle = books.settle

        def noted(ticket: int, prompt: Any, produced: Any, now: float) -> Any:
            self.counts.append((prompt, produced))
            return settle(ticket, prompt, produced, now)

        monkeypatch.setattr(books, "settle", noted)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES)
async def test_every_generating_route_passes_and_is_counted_by_the_engines_own_count(
    vllm: EngineUnderTest, path: str, body: dict[str, Any], stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with before(vllm) as running:
        settled = Settled(running, monkeypatch)
        got = await asked(running, path, {**body, "stream": stream})
        assert (got.status, got.complete) == (200, True), got.body
        await running.idle()
        ((prompt, produced),) = settled.counts
        assert 10 < prompt < 200
        assert 0 < produced <= OUTPUT


async def test_a_stream_is_the_one_that_the_engine_sends(vllm: EngineUnderTest) -> None:
    def text(got: Got) -> str:
        """Of all frames together: how many tokens the engine puts into one depends on how busy it is."""
        frames = [line.removeprefix("data: ") for line in got.body.decode().split("\n\n") if line]
        assert frames[-1] == "[DONE]"
        events = [json.loads(frame) for frame in frames[:-1]]
        assert all(event["choices"] for event in events)
        return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)

    body = chat(stream=True, temperature=0, seed=1)
    async with before(vllm) as running:
        through = await asked(running, "/v1/chat/completions", body)
        host, _, port = vllm.base_url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with RawClient(reader, writer) as client:
            direct = await client.ask(post(json.dumps({"model": "tiny", **body}).encode()))
    assert text(through) == text(direct) != ""


async def test_the_engine_says_its_blocks_and_when_it_started(vllm: EngineUnderTest) -> None:
    host, _, port = vllm.base_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with RawClient(reader, writer) as client:
        got = await client.ask(b"GET /metrics HTTP/1.1\r\nHost: engine\r\n\r\n")
    sample = read_sample(got.body.decode())
    assert sample is not None
    assert (sample.blocks, sample.block_tokens) == (vllm.blocks, vllm.block_tokens)
    assert None not in (sample.used_blocks, sample.running, sample.waiting, sample.started_at)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_client_that_leaves_stops_the_engine(
    vllm: EngineUnderTest, vllm_client: EngineClient, stream: bool
) -> None:
    body = {"model": "tiny", **chat(max_tokens=1800, stream=stream)}
    at_first = (await vllm_client.readings()).work
    async with before(vllm) as running:
        async with await running.connect() as client:
            client.send(post(json.dumps(body).encode()))
            await eventually("the engine works", lambda: running.report().engine.running == 1)
            assert running.in_flight() == 1
        await running.idle()
        await eventually("the engine is idle", lambda: running.report().engine.running == 0)
        assert (running.report().engine.age_seconds or 0) < 5
    await vllm_client.until_idle()
    done = (await vllm_client.readings()).work - at_first
    assert done.finished == 0
    assert done.output_tokens < 1800


async def test_what_the_engine_refuses_itself_holds_nothing(vllm: EngineUnderTest) -> None:
    async with before(vllm) as running:
        got = await asked(running, "/v1/chat/completions", chat(temperature=-5))
        assert got.status == 400
        await running.idle()
