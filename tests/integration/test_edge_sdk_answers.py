"""What the unchanged clients of OpenAI and Anthropic are told with a good answer: how much room their tenant has."""

import asyncio
import json

import pytest

from sidecar_rig import SEARCH, both_ends, config, share
from sidecar_sdks import RETRIES, SDKS, Call, Sdk, seen_by

ROOM = {
    "ratelimit-policy": '"kv";q=16000;qu="kv-tokens", "concurrency";q=9;qu="concurrent-requests"',
    "x-kvquota-soft-tokens": "6400",
    "x-kvquota-hard-tokens": "16000",
    "x-kvquota-in-flight": "1",
    "x-kvquota-rung": "Normal",
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("sdk", SDKS.values(), ids=SDKS)
async def test_a_good_answer_carries_the_tenants_room_and_says_nothing_of_retries(sdk: Sdk, stream: bool) -> None:
    """It is that of the beginning of the answer, when this request still holds what it was admitted with."""
    limited = config(share(SEARCH, soft=400, hard=1000, concurrent=9))
    async with both_ends(wanted=limited) as (running, engine), seen_by() as (http, answers):
        asking = asyncio.ensure_future(sdk.ask(running.url, Call(stream=stream), RETRIES, http))
        upstream = await engine.next()
        if stream:
            upstream.begin_stream()
            upstream.chunk(sdk.token + sdk.mark)
            upstream.send(b"0\r\n\r\n")
            upstream.done()
            assert len([event async for event in await asking]) == 1 + sdk.shows_mark
        else:
            upstream.answer(json.dumps(sdk.good).encode())
            await asking
        await running.idle()
    (answer,) = answers
    said, used = answer.headers, int(answer.headers["x-kvquota-used-tokens"])
    assert {name: said[name] for name in ROOM} == ROOM
    assert used > 0
    assert said["ratelimit"] == f'"kv";r={16000 - used}, "concurrency";r=8'
    assert not {"retry-after", "retry-after-ms", "x-should-retry", "x-kvquota-code"} & set(said)
