"""A request's way to the engine and back, seen on the wire at both ends."""

import asyncio
import json
import re
from typing import Any

import pytest

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
    assert int(seen.pop("x-vllm-priority")) == got.pop("priority") >= 0
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


ODD = {
    "blanks": b'{\n\t"model" : "tiny" ,\r\n "prompt":"a" ,"max_tokens":4 }\n\n',
    "escapes": b'{"model":"ti\\u006ey","prompt":"\\ud83d\\ude00 \\/ \\u0000 \xc3\xa4","max_tokens":4}',
    "numbers": b'{"model":"tiny","prompt":"a","max_tokens":4,"t":1.0e-0,"seed":12345678901234567890123456789,"x":-0.0}',
    "what nobody knows": b'{"model":"tiny","prompt":"a","max_tokens":4,"zz":{"b":[1, 2,{}],"priority":9},"":null}',
}
# What the client sends before its prompt, what the engine gets there, and what it gets at the end.
OURS = {
    "nothing": (b"", b"", b',"priority":%(priority)d,"cache_salt":"%(salt)b"'),
    "a priority": (b'"priority": 5 , ', b'"priority": %(priority)d , ', b',"cache_salt":"%(salt)b"'),
    "a salt and arguments": (
        b'"vllm_xargs":{"a":[{}]},"cache_salt":"x" , ',
        b'"cache_salt":"%(salt)b" , ',
        b',"priority":%(priority)d',
    ),
}


@pytest.mark.parametrize("ours", OURS.values(), ids=OURS)
@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
@on_both_loops
async def test_a_body_reaches_the_engine_byte_for_byte_but_for_the_fields_that_are_not_the_clients(
    body: bytes, ours: tuple[bytes, bytes, bytes]
) -> None:
    given, there, last = ours
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(body.replace(b'"prompt"', given + b'"prompt"', 1), "/v1/completions"))
        upstream = await engine.next()
        upstream.answer(b"{}")
        assert (await client.answer()).status == 200
    found = json.loads(upstream.body)
    own = {b"priority": found["priority"], b"salt": found["cache_salt"].encode()}
    begin, _, end = body.replace(b'"prompt"', there % own + b'"prompt"', 1).rpartition(b"}")
    blank = re.compile(rb"\s+(?=[,}])")  # where a field is added or taken out, the blank beside it may go either way
    assert blank.sub(b"", upstream.body) == blank.sub(b"", begin + last % own + b"}" + end)


@pytest.mark.parametrize(("stream", "options"), [(False, None), (True, None), (True, {"include_usage": True})])
@on_both_loops
async def test_usage_is_asked_for_where_the_client_did_not(stream: bool, options: Any) -> None:
    body = chat(stream=stream) if options is None else chat(stream=stream, stream_options=options)
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(body))
        upstream = await engine.next()
        upstream.answer(b"{}")
        await client.answer()
    assert json.loads(upstream.body).get("stream_options") == ({"include_usage": True} if stream else None)


@on_both_loops
async def test_a_client_can_put_its_request_back_and_never_before_others() -> None:
    priorities = []
    async with both_ends() as (running, engine), await running.connect() as client:
        for wished in (None, 7, 0, -5, "high", 10**30):
            client.send(post(chat() if wished is None else chat(priority=wished), headers=("X-Vllm-Priority: -9",)))
            upstream = await engine.next()
            priorities.append(int(upstream.headers["x-vllm-priority"]))
            assert json.loads(upstream.body)["priority"] == priorities[-1]
            upstream.answer(b"{}")
            await client.answer()
    none, seven, *earlier, last = priorities
    assert seven == none + 7
    assert earlier == [none] * 3
    assert last > seven


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ((), None),
        (("X-Request-ID: mine-1",), "mine-1"),
        (("X-Request-ID: a b",), None),
        (("X-Request-ID: 1",) * 2, None),
    ],
    ids=["none", "its own", "one that is not plain", "two"],
)
@on_both_loops
async def test_an_answer_carries_the_clients_id_and_the_engine_never_sees_it(
    sent: tuple[str, ...], shown: str | None
) -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat(), headers=sent))
        upstream = await engine.next()
        upstream.answer(b"{}", "X-Request-ID: engines-own")
        good = await client.answer()
        refused = await client.ask(post(b"{}", headers=sent))
        (line,) = running.events("refused")
    own = upstream.headers["x-request-id"]
    assert own != "mine-1"
    assert good.headers["x-request-id"] == (shown or own)
    assert refused.headers["x-request-id"] == (shown or line["request"]) != own
    assert line.get("clientRequest") == shown


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
async def test_a_stream_whose_last_frame_has_no_empty_line_passes_to_its_last_byte() -> None:
    async with both_ends() as (running, engine), begun_stream(running, engine) as stream:
        stream.upstream.chunk(b"data: [DONE]")
        stream.upstream.send(b"0\r\n\r\n")
        stream.upstream.done()
        assert await stream.client.line(b"0\r\n\r\n") == b"c\r\ndata: [DONE]\r\n0\r\n\r\n"
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
