"""Answers that the engine itself ends badly: what the client sees, and what is learnt of them."""

import asyncio
import json
import re

import pytest

from kvquota_sidecar.telemetry.tally import Outcome
from raw_client import RawClient
from raw_engine import RawEngine
from sidecar_rig import SEARCH, Running, both_ends, chat, on_both_loops, post

TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
ABORTED = b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"abort"}]}\n\n'
BROKEN = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}\n\n'
ERROR = b'data: {"error":{"message":"boom","code":500}}\n\n'
DONE = b"data: [DONE]\n\n"
CHATS, FAILED = "/v1/chat/completions", Outcome.ENGINE_FAILED


def event(**data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def named(kind: str, **data: object) -> bytes:
    return f"event: {kind}\n".encode() + event(type=kind, **data)


def frames_of(stream: bytes) -> list[bytes]:
    return [frame + b"\n\n" for frame in stream.split(b"\n\n")[:-1]]


def unchunked(got: bytes) -> bytes:
    """The body without what stands between its chunks."""
    return re.sub(rb"\r\n[0-9a-f]+\r\n", b"", got.partition(b"\r\n\r\n")[2])


LONG = post(chat(stream=True, max_tokens=3000))


async def streamed(engine: RawEngine, client: RawClient, request: bytes, *parts: bytes) -> None:
    """Send a request, and let the engine answer it with a stream of these parts and close its connection."""
    client.send(request)
    upstream = await engine.next()
    upstream.begin_stream()
    for each in parts:
        upstream.chunk(each)
        await asyncio.sleep(0.002)
    upstream.send(b"0\r\n\r\n")
    upstream.done()


def outcomes(running: Running) -> dict[str, int]:
    return {outcome: count for (_, outcome), count in running.sidecar.tally.requests.items()}


@on_both_loops
async def test_a_stream_that_the_engine_ends_with_an_error_passes_as_it_is_and_is_no_success() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        await streamed(engine, client, LONG, TEXT + BROKEN + ERROR + DONE)
        answer = await client.answer()
        assert answer.body == TEXT + BROKEN + ERROR + DONE
        await running.idle()
        assert outcomes(running) == {FAILED: 1}
        assert len(running.events(FAILED)) == 1


COMPLETION = b'{"model":"m","prompt":"a","stream":true,"max_tokens":3000}'
MESSAGES = b'{"model":"m","messages":[{"role":"user","content":"a"}],"stream":true,"max_tokens":3000}'
RESPONSE = b'{"model":"m","input":"a","stream":true,"max_output_tokens":3000}'
SPOKEN = named("content_block_delta", index=0, delta={"type": "text_delta", "text": "x"})
UNREASONED = named("message_delta", delta={"stop_reason": None, "stop_sequence": None}, usage={"output_tokens": 1})
SAID = named("response.output_text.delta", delta="x")
CANCELLED = named("response.completed", response={"status": "cancelled", "usage": None})
GIVEN_UP = {
    "a chat": (CHATS, chat(stream=True, max_tokens=3000), TEXT + ABORTED, DONE),
    "a chat, in older words": (CHATS, chat(stream=True, max_tokens=3000), TEXT + BROKEN, DONE),
    "a completion": (
        "/v1/completions",
        COMPLETION,
        event(choices=[{"text": "x"}]) + event(choices=[{"text": "", "finish_reason": "abort"}]),
        DONE,
    ),
    "messages": ("/v1/messages", MESSAGES, SPOKEN + UNREASONED, named("message_stop")),
    "a response": ("/v1/responses", RESPONSE, SAID, CANCELLED),
}


@pytest.mark.parametrize("whole", [True, False], ids=["in one piece", "frame by frame"])
@pytest.mark.parametrize(("path", "body", "passed", "mark"), GIVEN_UP.values(), ids=GIVEN_UP)
@on_both_loops
async def test_a_stream_that_the_engine_gives_up_ends_with_an_error_in_place_of_its_mark(
    path: str, body: bytes, passed: bytes, mark: bytes, whole: bool
) -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        if whole:
            await streamed(engine, client, post(body, path), passed + mark)
        else:
            await streamed(engine, client, post(body, path), *frames_of(passed + mark))
        got = await client.eof()
        assert b"".join(frames_of(passed)) in unchunked(got)
        assert mark not in got
        assert b'"code":"engine_error"' in got
        assert not got.endswith(b"0\r\n\r\n")
        await running.idle()
        assert outcomes(running) == {FAILED: 1}
        assert [each["code"] for each in running.events(FAILED)] == ["engine_error"]


PLAIN_ENDS = {
    "a chat": (CHATS, {"choices": [{"message": {"content": "x"}, "finish_reason": "abort"}]}),
    "one of two completions": (
        "/v1/completions",
        {"choices": [{"text": "x", "finish_reason": "stop"}, {"text": "x", "finish_reason": "abort"}]},
    ),
    "messages": ("/v1/messages", {"type": "message", "stop_reason": None}),
    "a response": ("/v1/responses", {"status": "cancelled"}),
}
PLAIN_BODIES = {
    CHATS: chat(max_tokens=3000),
    "/v1/completions": b'{"model":"m","prompt":"a","max_tokens":3000}',
    "/v1/messages": b'{"model":"m","messages":[{"role":"user","content":"a"}],"max_tokens":3000}',
    "/v1/responses": b'{"model":"m","input":"a","max_output_tokens":3000}',
}


@pytest.mark.parametrize(("path", "end"), PLAIN_ENDS.values(), ids=PLAIN_ENDS)
@on_both_loops
async def test_a_plain_answer_that_the_engine_gave_up_is_no_success_and_says_no_length(
    path: str, end: dict[str, object]
) -> None:
    answer = json.dumps({**end, "usage": {"prompt_tokens": 5, "completion_tokens": 1}}).encode()
    async with both_ends() as (running, engine), await running.connect() as client:
        for _ in range(21):
            client.send(post(PLAIN_BODIES[path], path))
            (await engine.next()).answer(answer)
            assert (await client.answer()).body == answer
        await running.idle()
        assert outcomes(running) == {FAILED: 21}
        assert running.sidecar.books._roll.accounts[SEARCH].outputs.p90() is None


@pytest.mark.parametrize(
    ("path", "stream", "passed"),
    [
        pytest.param(CHATS, TEXT, TEXT, id="a chat without [DONE]"),
        pytest.param(CHATS, TEXT + b'data: {"choi', TEXT, id="within an event"),
        pytest.param("/v1/completions", TEXT, TEXT, id="a completion without [DONE]"),
    ],
)
@on_both_loops
async def test_a_stream_that_stops_without_its_end_mark_ends_with_an_error(
    path: str, stream: bytes, passed: bytes
) -> None:
    body = chat(stream=True) if path == CHATS else b'{"model":"m","prompt":"a","stream":true,"max_tokens":4}'
    async with both_ends() as (running, engine), await running.connect() as client:
        await streamed(engine, client, post(body, path), stream)
        got = await client.eof()
        assert passed in got
        assert DONE not in got
        assert b"engine_error" in got
        assert not got.endswith(b"0\r\n\r\n")
        await running.idle()
        assert outcomes(running) == {FAILED: 1}


@on_both_loops
async def test_streams_that_end_badly_say_how_long_outputs_are_at_least() -> None:
    async with both_ends() as (running, engine):
        for _ in range(21):
            async with await running.connect() as client:
                await streamed(engine, client, LONG, TEXT + ABORTED + DONE)
                await client.eof()
        await running.idle()
        assert running.sidecar.books._roll.accounts[SEARCH].outputs.p90() is None
