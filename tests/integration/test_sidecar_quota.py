"""Refusals and endings by quota, seen on the wire."""

import asyncio
import json
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import msgspec
import pytest

from kvquota_api.pod_config import sealed
from kvquota_sidecar.estimate.outputs import FEWEST
from sidecar_rig import (
    SEARCH,
    Stream,
    begun_stream,
    both_ends,
    chat,
    config,
    eventually,
    get,
    on_both_loops,
    post,
    share,
)

UNREADABLE = {
    "no JSON": (b"{", "malformed_request"),
    "no object": (b"[]", "malformed_request"),
    "a key twice": (b'{"model":"tiny","model":"tiny","prompt":"a"}', "malformed_request"),
    "what outlives the answer": (chat(kv_transfer_params={}), "not_supported_under_quota"),
}


@pytest.mark.parametrize(("body", "code"), UNREADABLE.values(), ids=UNREADABLE)
@on_both_loops
async def test_a_body_that_cannot_be_accounted_is_refused_and_counted(body: bytes, code: str) -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        got = await client.ask(post(body))
        assert engine.requests.empty()
        assert running.report().tenants[0].total.rejected == {code: 1}
    assert (got.status, got.code) == (400, code)
    assert "x-kvquota-hard-tokens" in got.headers


@on_both_loops
async def test_an_engine_of_another_kind_gets_no_salt_and_no_credentials_where_the_config_says_so() -> None:
    other = config(engine_type="LlamaCpp", authorization="Remove")
    async with both_ends(wanted=other) as (running, engine), await running.connect() as client:
        client.send(post(chat(cache_salt="mine")))
        upstream = await engine.next()
        upstream.answer(b"{}")
        assert (await client.answer()).status == 200
    assert "authorization" not in upstream.headers
    assert "cache_salt" not in json.loads(upstream.body)


@on_both_loops
async def test_a_refusal_names_its_code_and_when_to_come_back_and_frees_nothing_it_did_not_take() -> None:
    tight = config(share(SEARCH, soft=4, hard=8))
    async with (
        both_ends(wanted=tight) as (running, engine),
        begun_stream(running, engine) as stream,
        await running.connect() as second,
    ):
        refused = await second.ask(post(chat(max_tokens=60)))
        assert running.in_flight() == 1
        stream.upstream.end_stream()
        await running.idle()
        second.send(post(chat(max_tokens=60)))
        (await engine.next()).answer(b"{}")
        assert (await second.answer()).status == 200
    assert (refused.status, refused.code) == (429, "tenant_kv_quota_exceeded")
    assert refused.headers["x-kvquota-hard-tokens"] == "128"
    assert refused.headers["x-should-retry"] == "true"
    assert float(refused.headers["retry-after-ms"]) <= 1000 * int(refused.headers["retry-after"])


@on_both_loops
async def test_growth_beyond_hard_ends_the_youngest_stream_with_a_final_event_and_frees_its_engine() -> None:
    """Prompts of 3 blocks, and a promise of the one token that answers had before: two fit, but cannot both grow."""
    tight = config(share(SEARCH, soft=0, hard=8))
    body = {"model": "tiny", "prompt": [0] * 40, "max_tokens": 32, "stream": True}
    request = post(json.dumps(body).encode(), "/v1/completions")
    async with both_ends(wanted=tight) as (running, engine):

        def begun() -> AbstractAsyncContextManager[Stream]:
            return begun_stream(running, engine, request=request)

        for _ in range(FEWEST):
            async with begun() as short:
                short.upstream.end_stream()
                await short.client.line(b"0\r\n\r\n")
        async with begun() as older, begun() as younger:
            for _ in range(31):
                older.upstream.frame()
                younger.upstream.frame()
            rest = await younger.client.line(b"0\r\n\r\n")
            assert (await younger.client.ask(get("/nowhere"))).status == 404  # nothing followed the end of the stream
            await younger.upstream.gone()
            assert running.in_flight() == 1
            older.upstream.end_stream()
            assert b"[DONE]" in await older.client.line(b"0\r\n\r\n")
        await running.idle()
        usage = running.report().tenants[0]
    last = json.loads(rest.rsplit(b"data: ", 1)[1].partition(b"\n")[0])
    assert (last["error"]["code"], last["error"]["retryable"]) == ("tenant_kv_quota_exceeded", True)
    assert b"[DONE]" not in rest
    assert (usage.total.ended, usage.total.evicted) == (1, 0)


@on_both_loops
async def test_a_plain_request_that_is_ended_before_its_answer_gets_a_plain_refusal() -> None:
    async with both_ends(drain_seconds=0.0) as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        upstream = await engine.next()
        upstream.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await eventually("the request runs", lambda: running.in_flight() == 1)
        stopping = asyncio.create_task(running.sidecar.stop())
        got = await client.answer()
        await stopping
        assert running.report().pool is not None
        assert running.report().tenants[0].reserved == 0
    assert (got.status, got.code, got.headers["connection"]) == (503, "draining", "close")


@on_both_loops
async def test_a_request_is_released_before_the_next_of_its_connection_is_looked_at() -> None:
    capped = config(share(SEARCH, soft=400, hard=1000, concurrent=1))
    async with both_ends(wanted=capped) as (running, engine), await running.connect() as client:
        client.send(post(chat()) * 3)
        for _ in range(3):
            (await engine.next()).answer(b"{}")
        assert [(await client.answer()).status for _ in range(3)] == [200] * 3
        await running.idle()


@on_both_loops
async def test_peak_in_flight_is_the_cap_and_not_above() -> None:
    capped = config(share(SEARCH, soft=400, hard=1000, concurrent=5))
    async with both_ends(wanted=capped) as (running, engine):
        clients = [await running.connect() for _ in range(20)]
        for client in clients:
            client.send(post(chat(stream=True)))
        upstreams = [await engine.next() for _ in range(5)]
        refused = 0
        peak = 0
        pending = {asyncio.create_task(client.answer()) for client in clients}
        while refused < 15:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            refused += sum(task.result().code == "tenant_concurrency_exceeded" for task in done)
            peak = max(peak, running.in_flight())
        assert (peak, running.in_flight(), engine.requests.empty()) == (5, 5, True)
        for upstream in upstreams:
            upstream.begin_stream()
            upstream.end_stream()
        assert [task.result().status for task in (await asyncio.wait(pending))[0]] == [200] * 5
        await running.idle()
        for client in clients:
            await client.close()


@on_both_loops
async def test_where_the_engine_has_ranks_each_request_goes_to_the_emptiest() -> None:
    two = config()
    two = sealed(msgspec.structs.replace(two, kv=msgspec.structs.replace(two.kv, ranks=2)))
    async with both_ends(wanted=two) as (running, engine), AsyncExitStack() as everything:
        ranks = []
        for _ in range(4):  # all of them run at once
            client = await everything.enter_async_context(await running.connect())
            client.send(post(chat(), headers=("X-Data-Parallel-Rank: 7",)))
            ranks.append((await engine.next()).headers["x-data-parallel-rank"])
    assert sorted(ranks) == ["0", "0", "1", "1"]
    assert ranks[0] != ranks[1]


@on_both_loops
async def test_what_the_engine_found_in_its_cache_reaches_the_books() -> None:
    usage = {"prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 32}}
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        (await engine.next()).answer(json.dumps({"usage": usage}).encode())
        assert (await client.answer()).status == 200
        await running.idle()
        total = running.report().tenants[0].total
    assert (total.prompt_tokens, total.cached_tokens) == (40, 32)
