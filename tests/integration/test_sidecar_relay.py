"""A request's way to the engine and back, seen on the wire at both ends."""

import asyncio
import json

from raw_engine import frame
from sidecar_rig import BATCH, KEYS, SEARCH, ManualClock, begun_stream, both_ends, chat, get, on_both_loops, post


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
        "content-type": "application/json",
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
async def test_a_stream_that_ends_within_a_frame_passes_to_its_last_byte() -> None:
    async with both_ends() as (running, engine), begun_stream(running, engine) as stream:
        stream.upstream.chunk(b"data: half")
        stream.upstream.send(b"0\r\n\r\n")
        stream.upstream.done()
        assert await stream.client.line(b"0\r\n\r\n") == b"a\r\ndata: half\r\n0\r\n\r\n"
        await running.idle()


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
    async with both_ends(clock=ManualClock()) as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        upstream = await engine.next()
        upstream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        assert (await client.answer()).body == b"{}"
        upstream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
        await upstream.gone()
        client.send(post(chat()))
        (await engine.next()).answer(b'"true"')
        assert (await client.answer()).body == b'"true"'
