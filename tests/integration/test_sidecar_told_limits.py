"""What the engine may make of a request, and what its stream shows of that, is what the books count."""

import json
from typing import Any

import msgspec
import pytest

from sidecar_rig import SEARCH, both_ends, chat, config, eventually, on_both_loops, post, share

CONTEXT = 1024  # tokens; the model's is 4,096
FRAMES = 40  # of a stream that is learnt from


def limited(**changes: Any) -> Any:
    return msgspec.structs.replace(share(SEARCH, soft=400, hard=1000), max_context_tokens=CONTEXT, **changes)


NEW, OLD = "max_completion_tokens", "max_tokens"
REQUESTS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "a chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, NEW, "vLLM"),
    "chats": ("/v1/chat/completions/batch", {"messages": [[{"role": "user", "content": "hi"}]]}, NEW, "vLLM"),
    "a response": ("/v1/responses", {"input": "hi"}, "max_output_tokens", "vLLM"),
    "a chat for another engine": (
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, OLD, "LlamaCpp"
    ),
    "a completion for another engine": ("/v1/completions", {"prompt": "hi"}, OLD, "LlamaCpp"),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(("path", "body", "name", "kind"), REQUESTS.values(), ids=REQUESTS)
@on_both_loops
async def test_the_engine_is_told_the_limit_that_the_books_count(
    path: str, body: dict[str, Any], name: str, kind: Any, stream: bool
) -> None:
    sent = json.dumps({"model": "tiny", **body, "stream": stream}).encode()
    wanted = config(limited(), engine_type=kind)
    async with both_ends(wanted=wanted) as (running, engine), await running.connect() as client:
        client.send(post(sent, path))
        told = json.loads((upstream := await engine.next()).body)[name]
        reserved = next(each.reserved for each in running.report().tenants if each.id == SEARCH)
        upstream.answer(b"{}")
        await client.answer()
    assert 0 < told < CONTEXT
    assert reserved == CONTEXT // 16, "the prompt and the limit fill the tenant's context"


UNTOLD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the client's own limit": ({}, {"max_tokens": 32}),
    "a context that is only counted": ({"enforcement": "Shadow"}, {"max_tokens": None}),
}


@pytest.mark.parametrize(("changes", "fields"), UNTOLD.values(), ids=UNTOLD)
@on_both_loops
async def test_a_limit_is_not_written_where_none_is_needed(changes: dict[str, Any], fields: dict[str, Any]) -> None:
    async with both_ends(wanted=config(limited(**changes))) as (running, engine), await running.connect() as client:
        client.send(post(chat(**fields)))
        upstream = await engine.next()
        upstream.answer(b"{}")
        await client.answer()
    got = json.loads(upstream.body)
    assert (NEW in got, got[OLD]) == (False, fields[OLD])


@on_both_loops
async def test_an_engine_that_puts_several_tokens_into_a_frame_is_seen_to_grow_in_time() -> None:
    used = []
    async with both_ends() as (running, engine), await running.connect() as client:
        for number in range(2):
            client.send(post(chat(stream=True, max_tokens=2000)))
            upstream = await engine.next()
            upstream.begin_stream()
            for _ in range(FRAMES):
                upstream.frame("ten tokens")
            await eventually("its frames are seen", lambda: running.report().tenants[0].used > 2)
            if number:
                await eventually("it has grown", lambda: running.report().tenants[0].used >= 10 * FRAMES // 16)
            used.append(running.report().tenants[0].used)
            usage = {"prompt_tokens": 20, "completion_tokens": 10 * FRAMES, "total_tokens": 20 + 10 * FRAMES}
            upstream.chunk(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
            upstream.end_stream()
            await client.answer()
        await running.idle()
    assert used[0] < used[1]
