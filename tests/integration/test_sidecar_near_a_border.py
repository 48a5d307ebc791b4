"""Requests whose size decides, and is not known well enough: the engine's tokenizer is asked, for a moment."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from kvquota_sidecar.proxy.clerk import MAX_COUNTING_OF_ONE
from raw_client import RawClient
from raw_engine import EngineConnection, RawEngine
from raw_timers import let_the_tokenizer_take_its_time
from sidecar_rig import (
    BATCH,
    SEARCH,
    Running,
    both_ends,
    chat,
    completion,
    config,
    eventually,
    get,
    on_both_loops,
    post,
    share,
)

TIGHT = config(share(SEARCH, soft=16, hard=20), share(BATCH, soft=16, hard=1000))
NEAR = post(chat(text="word " * 80, max_tokens=32))  # 400 bytes are 80 to 400 tokens, and 288 are left


@asynccontextmanager
async def near(*, patient: bool = True) -> AsyncIterator[tuple[Running, RawEngine, RawClient]]:
    """A sidecar with little room, an engine that can count, and a client. `patient`: it is waited for."""
    if patient:
        let_the_tokenizer_take_its_time()
    async with both_ends(wanted=TIGHT, tokenizes=True) as (running, engine), await running.connect() as client:
        yield running, engine, client


async def tokenizer_asked(engine: RawEngine) -> EngineConnection:
    upstream = await engine.next()
    assert upstream.head.startswith(b"POST /tokenize "), upstream.head
    return upstream


def figures(running: Running) -> tuple[int, int, int]:
    sidecar = running.sidecar
    return sidecar.tally.tokenizer_asked, sidecar.tally.tokenizer_late, len(sidecar._desk.counting)


@on_both_loops
async def test_what_fits_by_the_engines_own_count_is_admitted() -> None:
    async with near() as (running, engine, client):
        client.send(NEAR)
        (await tokenizer_asked(engine)).answer_count(110)
        (await engine.next()).answer(b"{}")
        assert (await client.answer()).status == 200
        assert figures(running) == (1, 0, 0)
        await running.idle()


@on_both_loops
async def test_what_does_not_fit_by_the_engines_own_count_is_refused() -> None:
    async with near() as (running, engine, client):
        client.send(NEAR)
        (await tokenizer_asked(engine)).answer_count(400)
        got = await client.answer()
        assert running.report().tenants[0].total.rejected == {"request_exceeds_kv_quota": 1}
        assert engine.requests.empty()
        await running.idle()
    assert (got.status, got.code) == (400, "request_exceeds_kv_quota")
    assert "The request needs 432 tokens " in got.json()["error"]["message"]


@pytest.mark.parametrize(("words", "status"), [(80, 200), (115, 400)], ids=["fits at the worst", "does not"])
@on_both_loops
async def test_what_is_not_counted_in_time_is_taken_at_the_worst(words: int, status: int) -> None:
    async with near(patient=False) as (running, engine, client):
        client.send(post(chat(text="word " * words, max_tokens=32)))
        await (await tokenizer_asked(engine)).gone()
        if status == 200:
            (await engine.next()).answer(b"{}")
        got = await client.answer()
        assert got.status == status
        assert status == 200 or "The request needs about " in got.json()["error"]["message"]
        assert figures(running) == (1, 1, 0)
        await running.idle()


@on_both_loops
async def test_where_the_engine_cannot_count_it_is_taken_at_the_worst_at_once() -> None:
    wanted = config(share(SEARCH, soft=16, hard=20), engine_type="OpenAI")
    async with both_ends(wanted=wanted) as (running, engine), await running.connect() as client:
        client.send(NEAR)
        (await engine.next()).answer(b"{}")
        assert (await client.answer()).status == 200
        client.send(post(chat(text="word " * 120, max_tokens=32)))
        assert (await client.answer()).code == "request_exceeds_kv_quota"
        assert figures(running) == (0, 0, 0)
        await running.idle()


@on_both_loops
async def test_what_is_far_from_every_border_is_not_counted() -> None:
    async with near() as (running, engine, client):
        client.send(post(chat(text="hello", max_tokens=16)))
        upstream = await engine.next()
        upstream.answer(b"{}")
        assert (await client.answer()).status == 200
        client.send(post(completion(20), "/v1/completions"))  # token ids are exact
        (await engine.next()).answer(b"{}")
        assert (await client.answer()).status == 200
        assert figures(running) == (0, 0, 0)
    assert upstream.head.startswith(b"POST /v1/chat/completions ")


@on_both_loops
async def test_a_client_that_leaves_meanwhile_takes_nothing_and_the_count_is_given_up() -> None:
    let_the_tokenizer_take_its_time()
    async with both_ends(wanted=TIGHT, tokenizes=True) as (running, engine):
        async with await running.connect() as client:
            client.send(NEAR)
            upstream = await tokenizer_asked(engine)
            client.reset()
        await upstream.gone()
        await eventually("it has gone", lambda: figures(running)[2] == 0)
        assert running.report().tenants[0].total.admitted == 0
        await eventually("its bytes are let go of", lambda: running.sidecar._traffic_hub.buffers.total_bytes == 0)
        assert engine.requests.empty()


@on_both_loops
async def test_requests_behind_one_that_is_counted_wait_for_their_turn() -> None:
    async with near() as (_, engine, client):
        client.send(NEAR + get("/nowhere"))
        upstream = await tokenizer_asked(engine)
        await asyncio.sleep(0.05)
        upstream.answer_count(110)
        (await engine.next()).answer(b'"first"')
        assert [(await client.answer()).status for _ in range(2)] == [200, 404]


@on_both_loops
async def test_a_flood_near_the_border_is_not_queued_without_bound() -> None:
    let_the_tokenizer_take_its_time()
    flood = 3 * MAX_COUNTING_OF_ONE
    async with both_ends(wanted=TIGHT, tokenizes=True) as (running, _), AsyncExitStack() as all_:
        clients = [await all_.enter_async_context(await running.connect()) for _ in range(flood)]
        for at, client in enumerate(clients):
            client.send(post(chat(text=f"{at:05}" + "word " * 80, max_tokens=32)))
        await eventually("all have been looked at", lambda: running.sidecar._desk.at_work >= MAX_COUNTING_OF_ONE)
        await asyncio.sleep(0.1)
        assert figures(running)[2] == MAX_COUNTING_OF_ONE
        for client in clients:
            client.reset()
        await running.idle()
        await eventually("nobody is counted", lambda: figures(running)[2] == 0)


@on_both_loops
async def test_a_pod_that_leaves_does_not_wait_for_a_count() -> None:
    async with near() as (running, engine, client):
        client.send(NEAR)
        await tokenizer_asked(engine)
        stopping = asyncio.create_task(running.sidecar.stop())
        got = await client.answer()
        await stopping
    assert (got.status, got.code) == (503, "draining")
