"""The sidecar before the real vLLM: all generating routes, what is counted, what a client that leaves frees, and what a
client cannot steer."""

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest

from kvquota_sidecar.engines.vllm import read_vllm
from raw_client import Got
from sidecar_on_vllm import asked, before, settled, straight_to
from sidecar_rig import BATCH, SEARCH, Running, eventually, post, share
from testengine.client import EngineClient
from testengine.port import EngineUnderTest

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("vllm_client")]  # each begins on an idle engine

TEXT = "The quick brown fox jumps over the lazy dog. " * 4
OUTPUT = 12  # tokens
SHARES = (share(SEARCH, soft=100, hard=400), share(BATCH, soft=100, hard=400))


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": TEXT}], "max_tokens": OUTPUT, "ignore_eos": True, **more}


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", chat()),
    "completion": ("/v1/completions", {"prompt": TEXT, "max_tokens": OUTPUT, "ignore_eos": True}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": TEXT}], "max_tokens": OUTPUT}),
    "responses": ("/v1/responses", {"input": TEXT, "max_output_tokens": OUTPUT, "store": False}),
}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES)
async def test_every_generating_route_passes_and_is_counted_by_the_engines_own_count(
    vllm: EngineUnderTest, path: str, body: dict[str, Any], stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with before(vllm, *SHARES) as running:
        counts = settled(running, monkeypatch)
        got = await asked(running, path, {**body, "stream": stream}, tenant=SEARCH)
        assert (got.status, got.complete) == (200, True), got.body
        await running.idle()
        ((prompt, produced),) = counts
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
    async with before(vllm, *SHARES) as running:
        through = await asked(running, "/v1/chat/completions", body, tenant=SEARCH)
        async with await straight_to(vllm) as client:
            direct = await client.ask(post(json.dumps({"model": "tiny", **body}).encode()))
    assert text(through) == text(direct) != ""


async def test_the_engine_says_its_blocks_and_when_it_started(vllm: EngineUnderTest) -> None:
    async with await straight_to(vllm) as client:
        got = await client.ask(b"GET /metrics HTTP/1.1\r\nHost: engine\r\n\r\n")
    reading = read_vllm(got.body.decode())
    assert reading is not None
    sample = reading.sample
    assert (sample.blocks, sample.block_tokens) == (vllm.blocks, vllm.block_tokens)
    assert None not in (sample.used_blocks, sample.running, sample.waiting)
    assert len(reading.marks.starts) == 1


async def _left_at_work(running: Running, request: bytes) -> bool:
    """Whether its client left while the engine was seen to work; a busy machine may look when the answer is there."""
    async with await running.connect() as client:
        answer = asyncio.create_task(client.ask(request))
        await eventually(
            "the engine works",
            lambda: answer.done() or (running.report().engine.running, running.in_flight()) == (1, 1),
        )
        if answered := answer.done():
            got = await answer
            assert (got.status, got.complete) == (200, True), got.body
        answer.cancel()
    await running.idle()
    await eventually("the engine is idle", lambda: running.report().engine.running == 0)
    return not answered


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_client_that_leaves_stops_the_engine(
    vllm: EngineUnderTest, vllm_client: EngineClient, stream: bool
) -> None:
    request = post(json.dumps({"model": "tiny", **chat(max_tokens=1800, stream=stream)}).encode())
    async with before(vllm, *SHARES) as running:
        for _ in range(5):
            at_first = (await vllm_client.readings()).work
            if await _left_at_work(running, request):
                break
        else:
            pytest.fail("five answers came before the engine was seen to work")
        assert (running.report().engine.age_seconds or 0) < 5
    await vllm_client.until_idle()
    done = (await vllm_client.readings()).work - at_first
    assert done.finished == 0
    assert done.output_tokens < 1800


async def test_what_the_engine_refuses_itself_holds_nothing(vllm: EngineUnderTest) -> None:
    async with before(vllm, *SHARES) as running:
        got = await asked(running, "/v1/chat/completions", chat(temperature=-5), tenant=SEARCH)
        assert got.status == 400
        await running.idle()


# What a client would like to steer. Told straight to the engine each of these has an effect, that it refuses it at
# least; through the sidecar none has.
FORGED: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "a priority that is none": ("/v1/chat/completions", chat(priority="first"), ()),
    "arguments of a plugin": ("/v1/completions", {"prompt": TEXT, "vllm_xargs": {"kvq_tenant": {"a": 1}}}, ()),
    "a salt that is none": ("/v1/chat/completions", chat(cache_salt="@/"), ()),
    "a session that is none": ("/v1/chat/completions", chat(session_id=5), ()),
    "a rank that is not there": ("/v1/completions", {"prompt": TEXT}, ("X-data-parallel-rank: 7",)),
}


@pytest.mark.parametrize(("path", "body", "headers"), FORGED.values(), ids=FORGED)
async def test_what_would_steer_the_engine_does_not_reach_it(
    vllm: EngineUnderTest, path: str, body: dict[str, Any], headers: tuple[str, ...]
) -> None:
    async with await straight_to(vllm) as client:
        direct = await client.ask(post(json.dumps({"model": "tiny", **body}).encode(), path, headers=headers))
    async with before(vllm, *SHARES) as running:
        through = await asked(running, path, body, *headers, tenant=SEARCH)
    assert direct.status >= 400, direct.body
    assert through.status == 200, through.body


async def test_two_tenants_with_one_salt_of_their_own_choice_share_no_blocks(
    vllm: EngineUnderTest, vllm_client: EngineClient
) -> None:
    async def found() -> float:
        return (await vllm_client.readings()).value("vllm:prefix_cache_hits_total")

    body = chat(cache_salt="guessed", messages=[{"role": "user", "content": "Nobody else has asked this. " * 40}])
    hits = [await found()]
    async with before(vllm, *SHARES) as running:
        for tenant in (SEARCH, BATCH, SEARCH):
            assert (await asked(running, "/v1/chat/completions", body, tenant=tenant)).status == 200
            hits.append(await found())
    first, other, again = (after - earlier for earlier, after in pairwise(hits))
    assert (first, other) == (0, 0)
    assert again >= 5 * vllm.block_tokens


async def test_a_body_that_names_a_field_twice_reaches_no_engine(vllm: EngineUnderTest) -> None:
    twice = b'{"model":"tiny","prompt":"a","max_tokens":1,"max_tokens":1000}'
    async with before(vllm, *SHARES) as running, await running.connect() as client:
        got = await client.ask(post(twice, "/v1/completions"))
    assert (got.status, got.code) == (400, "malformed_request")
