"""Streams that the engine itself ends badly: what the client sees, and what is learnt of them."""

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
CHATS, ANSWERED, FAILED = "/v1/chat/completions", Outcome.ANSWERED, Outcome.ENGINE_FAILED


LONG = post(chat(stream=True, max_tokens=3000))


async def streamed(engine: RawEngine, client: RawClient, request: bytes, stream: bytes) -> None:
    """Send a request, and let the engine answer it with this stream and close its connection."""
    client.send(request)
    upstream = await engine.next()
    upstream.begin_stream()
    upstream.chunk(stream)
    upstream.send(b"0\r\n\r\n")
    upstream.done()


def outcomes(running: Running) -> dict[str, int]:
    return {outcome: count for (_, outcome), count in running.sidecar.tally.requests.items()}


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(TEXT + ABORTED + DONE, id="abort"),
        pytest.param(TEXT + BROKEN + DONE, id="finish reason error"),
        pytest.param(TEXT + ERROR + DONE, id="error frame"),
    ],
)
@on_both_loops
async def test_a_stream_that_the_engine_ends_badly_passes_as_it_is_and_is_no_success(stream: bytes) -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        await streamed(engine, client, LONG, stream)
        answer = await client.answer()
        assert answer.body == stream
        await running.idle()
        assert outcomes(running) == {FAILED: 1}
        assert len(running.events(FAILED)) == 1


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
    async with both_ends() as (running, engine), await running.connect() as client:
        for _ in range(21):
            await streamed(engine, client, LONG, TEXT + ABORTED + DONE)
            await client.answer()
        await running.idle()
        assert running.sidecar.books._roll.accounts[SEARCH].outputs.p90() is None
