"""A request's way to the engine and back, seen on the wire at both ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from sidecar_rig import (
    BATCH,
    KEYS,
    SEARCH,
    EngineConnection,
    ManualClock,
    RawClient,
    RawEngine,
    Running,
    both_ends,
    chat,
    config,
    eventually,
    frame,
    get,
    on_both_loops,
    post,
    share,
)


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream that has sent one token to its client."""

    client: RawClient
    upstream: EngineConnection


@asynccontextmanager
async def begun_stream(running: Running, engine: RawEngine, minor: int = 1) -> AsyncIterator[Stream]:
    async with await running.connect() as client:
        client.send(post(chat(stream=True), minor=minor))
        upstream = await engine.next()
        upstream.begin_stream()
        upstream.frame()
        await client.line(b"\n\n")
        yield Stream(client, upstream)


# What passes, and how.


@on_both_loops
async def test_an_answer_passes_byte_for_byte() -> None:
    body = b'{ "choices" : [],\n "x": "\xc3\xa4" }'
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        upstream = await engine.next()
        upstream.answer(body, "X-Engine: yes", "Connection: X-Hop", "X-Hop: secret", "X-Kvquota-Code: forged")
        got = await client.answer()
        await running.idle()
    assert (got.status, got.body, got.headers["x-engine"]) == (200, body, "yes")
    assert not {"x-hop", "connection", "x-kvquota-code"} & set(got.headers)
    assert {"date", "ratelimit", "ratelimit-policy", "x-kvquota-used-tokens"} <= set(got.headers)
    assert got.headers["x-request-id"] == upstream.headers["x-request-id"]


@on_both_loops
async def test_the_engine_sees_the_request_without_what_is_not_its_business() -> None:
    body = chat(
        text="\u00e4 & \U0001f600", temperature=0.50, priority=-5, vllm_xargs={"kvq_tenant": "x"}, cache_salt="mine"
    )
    sent = (
        "X-Mine: kept",
        "Connection: X-Hop",
        "X-Hop: 1",
        "X-Vllm-Priority: 0",
        "X_Session_ID: a",
        "Expect: 100-continue",
    )
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(body, headers=(*sent, "X-Kvquota-Tenant: shop/batch", "Accept-Encoding: gzip")))
        upstream = await engine.next()
        upstream.answer(b"{}")
        await client.answer()
    got, seen = json.loads(upstream.body), upstream.headers
    assert seen.pop("x-request-id")
    assert seen == {
        "host": engine.authority,
        "authorization": f"Bearer {KEYS[SEARCH]}",
        "x-mine": "kept",
        "content-length": str(len(upstream.body)),
    }
    assert got.pop("cache_salt").startswith("kvq.")
    assert got == {
        name: value for name, value in json.loads(body).items() if name not in ("priority", "vllm_xargs", "cache_salt")
    }


@on_both_loops
async def test_a_chunked_request_reaches_the_engine_with_its_length() -> None:
    body = chat()
    head = post(b"", headers=("Transfer-Encoding: chunked",)).replace(b"Content-Length: 0\r\n", b"")
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(head + b"5\r\n" + body[:5] + b"\r\n")
        client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body) - 5, body[5:]))
        upstream = await engine.next()
        upstream.answer(b"{}")
        assert (await client.answer()).status == 200
    assert json.loads(upstream.body)["messages"] == json.loads(body)["messages"]
    assert "transfer-encoding" not in upstream.headers


@on_both_loops
async def test_a_stream_passes_whole_in_chunks_and_ends_as_the_engine_ended_it() -> None:
    async with both_ends() as (running, engine), begun_stream(running, engine) as stream:
        assert running.in_flight() == 1
        stream.upstream.frame("y")
        stream.upstream.end_stream()
        rest = await stream.client.line(b"0\r\n\r\n")
        await running.idle()
    assert frame("y") in rest
    assert b"data: [DONE]\n\n" in rest


@on_both_loops
async def test_frames_that_are_cut_anywhere_reach_the_client_whole() -> None:
    frames = frame("one") + frame("two", usage={"prompt_tokens": 3, "completion_tokens": 2}) + b"data: [DONE]\n\n"
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat(stream=True, stream_options={"include_usage": True})))
        upstream = await engine.next()
        upstream.begin_stream()
        for at in range(len(frames)):
            upstream.chunk(frames[at : at + 1])
            await asyncio.sleep(0)
        upstream.send(b"0\r\n\r\n")
        upstream.done()
        got = await client.answer()
        await running.idle()
    assert (got.complete, got.body) == (True, frames)


@on_both_loops
async def test_usage_that_only_the_sidecar_asked_for_is_not_shown() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n'
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat(stream=True)))
        upstream = await engine.next()
        upstream.begin_stream()
        upstream.chunk(frame() + usage)
        upstream.end_stream()
        got = await client.answer()
        asked = json.loads(upstream.body)["stream_options"]
    assert asked == {"include_usage": True}
    assert got.body == frame() + b"data: [DONE]\n\n"


@on_both_loops
async def test_an_http_1_0_client_gets_the_stream_up_to_the_end_of_the_connection() -> None:
    async with both_ends() as (running, engine), begun_stream(running, engine, minor=0) as stream:
        stream.upstream.end_stream()
        rest = await stream.client.eof()
    assert rest == b"data: [DONE]\n\n"


@on_both_loops
async def test_an_answer_that_ends_with_the_engines_connection_passes() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        upstream = await engine.next()
        upstream.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{}")
        upstream.finish()
        got = await client.answer()
    assert (got.complete, got.body) == (True, b"{}")


@on_both_loops
async def test_interim_answers_of_the_engine_are_passed_over() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        upstream = await engine.next()
        upstream.send(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        upstream.answer(b"{}")
        got = await client.answer()
    assert (got.status, "link" in got.headers) == (200, False)


@on_both_loops
async def test_the_engines_own_refusal_passes_and_holds_nothing() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        (await engine.next()).answer(b'{"error":{}}', status="400 Bad Request")
        got = await client.answer()
        await running.idle()
        assert [line["engineStatus"] for line in running.events("engine_refused")] == [400]
    assert (got.status, got.body) == (400, b'{"error":{}}')


@on_both_loops
async def test_pipelined_requests_are_answered_in_order_each_counted_once() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat(text="first")) + get("/nowhere") + post(chat(text="second"), tenant=BATCH))
        first = await engine.next()
        assert engine.requests.empty()
        first.answer(b'"first"')
        second = await engine.next()
        second.answer(b'"second"')
        got = [await client.answer() for _ in range(3)]
        await running.idle()
        admitted = {each.id: each.total.admitted for each in running.report().tenants}
    assert [(each.status, each.body if each.status == 200 else each.code) for each in got] == [
        (200, b'"first"'),
        (404, "route_not_allowed"),
        (200, b'"second"'),
    ]
    assert admitted == {SEARCH: 1, BATCH: 1}


@on_both_loops
async def test_many_requests_that_come_at_once_are_all_answered() -> None:
    async with both_ends() as (running, _), await running.connect() as client:
        client.send(get("/nowhere") * 500)
        assert [(await client.answer()).status for _ in range(500)] == [404] * 500


# The engine's connections.


@on_both_loops
async def test_requests_share_one_connection_to_the_engine() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        for _ in range(3):
            client.send(post(chat()))
            (await engine.next()).answer(b"{}")
            assert (await client.answer()).status == 200
        assert engine.accepted == 1


@on_both_loops
async def test_a_kept_connection_that_the_engine_closes_meanwhile_costs_nobody_anything() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        first = await engine.next()
        first.answer(b"{}")
        assert (await client.answer()).status == 200
        client.send(post(chat()))
        stale = await engine.next()
        stale.finish()
        fresh = await engine.next()
        assert fresh.body.partition(b"cache_salt")[0] == stale.body.partition(b"cache_salt")[0]
        fresh.answer(b'"again"')
        got = await client.answer()
        await running.idle()
        assert running.report().tenants[0].total.admitted == 2
    assert (got.status, got.body) == (200, b'"again"')


@on_both_loops
async def test_a_request_is_repeated_once_at_most() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        (await engine.next()).answer(b"{}")
        await client.answer()
        client.send(post(chat()))
        (await engine.next()).finish()
        (await engine.next()).finish()
        got = await client.answer()
        assert engine.requests.empty()
    assert (got.status, got.code) == (502, "engine_error")


@on_both_loops
async def test_a_request_is_not_repeated_once_a_byte_of_its_answer_came() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        (await engine.next()).answer(b"{}")
        await client.answer()
        client.send(post(chat()))
        upstream = await engine.next()
        upstream.send(b"HTTP/1.1 200")
        upstream.finish()
        got = await client.answer()
        assert engine.requests.empty()
        await running.idle()
    assert (got.status, got.code) == (502, "engine_error")


@on_both_loops
async def test_bytes_that_nobody_asked_for_end_the_engines_connection() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        upstream = await engine.next()
        upstream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        assert (await client.answer()).body == b"{}"
        upstream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
        await upstream.gone()
        client.send(post(chat()))
        (await engine.next()).answer(b'"true"')
        assert (await client.answer()).body == b'"true"'


# What goes wrong.


@on_both_loops
async def test_an_engine_that_does_not_listen_is_a_502_that_says_what_to_check() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        await engine.stop()
        got = await client.ask(post(chat()))
        await running.idle()
    assert (got.status, got.code, got.headers["x-should-retry"]) == (502, "engine_error", "true")
    assert engine.authority in got.json()["error"]["message"]
    assert 1 <= int(got.headers["retry-after"]) <= 60


BROKEN = {
    "nothing": b"",
    "a part of a head": b"HTTP/1.1 200 OK\r\nContent-",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n",
    "a head only": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "a head without end": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
}


@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN)
@on_both_loops
async def test_an_answer_that_breaks_before_its_body_is_a_502(sent: bytes) -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        upstream = await engine.next()
        upstream.send(sent)
        upstream.finish()
        got = await client.answer()
        await running.idle()
    assert (got.status, got.code) == (502, "engine_error")


@pytest.mark.parametrize("death", ["cut", "finish"])
@on_both_loops
async def test_an_engine_that_dies_in_a_stream_leaves_it_visibly_broken(death: str) -> None:
    async with both_ends() as (running, engine), begun_stream(running, engine) as stream:
        getattr(stream.upstream, death)()
        rest = await stream.client.eof()
        await running.idle()
        assert [line["code"] for line in running.events("engine_failed")] == ["engine_error"]
    assert b"engine_error" in rest
    assert b"[DONE]" not in rest
    assert b"0\r\n\r\n" not in rest


@on_both_loops
async def test_an_engine_that_dies_in_a_plain_answer_leaves_it_short() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        upstream = await engine.next()
        upstream.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        upstream.cut()
        got = await client.answer()
        await running.idle()
    assert (got.complete, got.body) == (False, b"{")


@on_both_loops
async def test_a_silent_engine_is_a_504_before_the_first_byte() -> None:
    clock = ManualClock()
    async with both_ends(clock=clock, silence_seconds=30.0) as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        upstream = await engine.next()
        clock.now += 29.9
        await asyncio.sleep(0.2)
        assert running.in_flight() == 1
        clock.now += 0.1
        got = await client.answer()
        await upstream.gone()
        await running.idle()
    assert (got.status, got.code) == (504, "engine_timeout")


@on_both_loops
async def test_an_engine_that_falls_silent_in_a_stream_ends_it() -> None:
    clock = ManualClock()
    async with (
        both_ends(clock=clock, silence_seconds=30.0) as (running, engine),
        begun_stream(running, engine) as stream,
    ):
        clock.now += 30
        rest = await stream.client.eof()
        await stream.upstream.gone()
        await running.idle()
    assert b"engine_timeout" in rest
    assert b"[DONE]" not in rest


# Quota on the wire.


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
    """Prompts of 3 blocks, and a promise of the one token that the first answer had: two fit, but cannot both grow."""
    tight = config(share(SEARCH, soft=0, hard=8))
    async with both_ends(wanted=tight) as (running, engine):
        async with begun_stream(running, engine) as short:
            short.upstream.end_stream()
            await short.client.line(b"0\r\n\r\n")
        async with begun_stream(running, engine) as older, begun_stream(running, engine) as younger:
            for _ in range(31):
                older.upstream.frame()
                younger.upstream.frame()
            rest = await younger.client.line(b"0\r\n\r\n")
            await younger.upstream.gone()
            assert running.in_flight() == 1
            older.upstream.end_stream()
            assert b"[DONE]" in await older.client.line(b"0\r\n\r\n")
        await running.idle()
        usage = running.report().tenants[0]
    last = json.loads(rest.rsplit(b"data: ", 1)[1].partition(b"\n")[0])
    assert (last["error"]["code"], last["error"]["retryable"]) == ("tenant_kv_quota_exceeded", True)
    assert b"[DONE]" not in rest
    assert usage.total.evicted == 1


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
