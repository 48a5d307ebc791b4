"""What the rest of the project relies on in an engine's answers, blocks and cache: the fake and the real vLLM alike."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from testengine.bodies import CHAT, COMPLETION, chat, completion, distinct_prompt
from testengine.client import EngineClient, Readings, Work, events, eventually

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
QUERIES = "vllm:prefix_cache_queries_total"
HITS = "vllm:prefix_cache_hits_total"

CHUNK_KEYS = {"id", "object", "created", "model", "choices"}


# The answer in one piece


async def test_a_chat_answer_has_exactly_these_fields(engine_client: EngineClient) -> None:
    reply = await engine_client.post(CHAT, chat())
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    document = reply.document
    assert set(document) == (
        {"id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage", "metrics"}
        | {"prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params", "ec_transfer_params"}
    )
    (choice,) = document["choices"]
    assert set(choice) == (
        {"index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts"}
    )
    assert set(choice["message"]) == (
        {"role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"}
    )
    assert (document["object"], document["model"], choice["finish_reason"]) == ("chat.completion", "tiny", "length")
    assert document["id"].startswith("chatcmpl-")


async def test_a_completion_answer_has_exactly_these_fields(engine_client: EngineClient) -> None:
    reply = await engine_client.post(COMPLETION, completion())
    assert reply.status == 200
    document = reply.document
    assert set(document) == (
        {"id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage", "metrics"}
        | {"kv_transfer_params", "ec_transfer_params"}
    )
    (choice,) = document["choices"]
    assert set(choice) == (
        {"index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts"}
        | {"prompt_logprobs", "prompt_token_ids"}
    )
    assert (document["object"], choice["finish_reason"]) == ("text_completion", "length")
    assert document["id"].startswith("cmpl-")


async def test_usage_counts_the_tokenizer_s_tokens_and_adds_up(engine_client: EngineClient) -> None:
    for path, body in ((CHAT, chat()), (COMPLETION, completion())):
        counted = await engine_client.post(
            "/tokenize", {key: body[key] for key in body if key in ("messages", "prompt")}
        )
        usage = (await engine_client.post(path, body)).document["usage"]
        assert set(usage) == {
            *("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"),
            "completion_tokens_details",
        }
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (counted.document["count"], 6)
        assert usage["total_tokens"] == usage["prompt_tokens"] + 6
        assert set(usage["prompt_tokens_details"]) == {"cached_tokens", "created_cache_tokens", "multimodal_tokens"}


async def test_the_request_id_of_the_client_becomes_part_of_the_answer_s(engine_client: EngineClient) -> None:
    reply = await engine_client.post(CHAT, chat(), X_Request_Id="order-17")
    assert reply.document["id"] == "chatcmpl-order-17"


# Streams


async def test_a_chat_stream_opens_with_the_role_and_closes_with_reason_usage_and_done(
    engine_client: EngineClient,
) -> None:
    *chunks, last, done = await engine_client.stream(CHAT, chat(stream_options={"include_usage": True}))
    assert done == "[DONE]"
    opening = chunks[0]["choices"][0]
    assert (opening["delta"], opening["finish_reason"]) == ({"role": "assistant", "content": ""}, None)
    assert set(chunks[0]) == CHUNK_KEYS | {"prompt_token_ids", "prompt_text"}
    assert set(opening) == {"index", "delta", "logprobs", "finish_reason"}
    assert [set(chunk) for chunk in chunks[1:]] == [CHUNK_KEYS] * (len(chunks) - 1)
    assert set(chunks[1]["choices"][0]) == set(opening) | {"token_ids"}
    assert set(chunks[-1]["choices"][0]) == set(opening) | {"token_ids", "stop_reason"}
    assert [set(chunk["choices"][0]["delta"]) for chunk in chunks[1:]] == [{"content"}] * (len(chunks) - 1)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[1:]] == [None] * (len(chunks) - 2) + ["length"]
    assert {chunk["object"] for chunk in [*chunks, last]} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in [*chunks, last]}) == 1
    assert last["choices"] == []
    assert set(last["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}
    assert set(last) == {"id", "object", "created", "model", "choices", "usage", "system_fingerprint"}


async def test_a_completion_stream_has_no_opening_chunk(engine_client: EngineClient) -> None:
    *chunks, done = await engine_client.stream(COMPLETION, completion())
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    choice_keys = {"index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids"}
    assert [set(chunk["choices"][0]) for chunk in chunks] == [choice_keys] * len(chunks)
    assert [set(chunk) for chunk in chunks[:-1]] == [CHUNK_KEYS] * (len(chunks) - 1)
    assert set(chunks[-1]) == CHUNK_KEYS | {"system_fingerprint"}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (COMPLETION, completion())], ids=["chat", "completion"])
async def test_a_stream_s_usage_is_that_of_the_same_answer_in_one_piece(
    engine_client: EngineClient, path: str, body: dict[str, Any]
) -> None:
    whole = (await engine_client.post(path, body)).document["usage"]
    *_, last, _ = await engine_client.stream(path, body | {"stream_options": {"include_usage": True}})
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [last["usage"][name] for name in names] == [whole[name] for name in names]


async def test_continuous_usage_rides_on_every_chunk_and_never_falls(engine_client: EngineClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _ = await engine_client.stream(CHAT, chat(stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 6)
    assert len({chunk["usage"]["prompt_tokens"] for chunk in chunks}) == 1


async def test_continuous_usage_alone_gives_no_usage(engine_client: EngineClient) -> None:
    *chunks, _ = await engine_client.stream(COMPLETION, completion(stream_options={"continuous_usage_stats": True}))
    assert not any("usage" in chunk for chunk in chunks)


# Several sequences


async def test_two_choices_count_the_prompt_once_and_both_outputs(engine_client: EngineClient) -> None:
    one = (await engine_client.post(CHAT, chat())).document["usage"]
    two = (await engine_client.post(CHAT, chat(n=2))).document
    assert [choice["index"] for choice in two["choices"]] == [0, 1]
    assert two["usage"]["prompt_tokens"] == one["prompt_tokens"]
    assert two["usage"]["completion_tokens"] == 2 * one["completion_tokens"]


async def test_two_choices_stream_under_their_own_index(engine_client: EngineClient) -> None:
    *chunks, _ = await engine_client.stream(CHAT, chat(n=2))
    assert [chunk["choices"][0]["index"] for chunk in chunks[:2]] == [0, 1]
    finished = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"] == "length"]
    assert sorted(finished) == [0, 1]


def _is_seen(now: Readings, before: Work) -> bool:
    """Two outputs under way, or over."""
    return (now.value(RUNNING) == 2 and now.work != before) or (now.work - before).finished > 0


async def test_two_choices_share_the_blocks_of_their_prompt(engine_client: EngineClient) -> None:
    body = completion(prompt=distinct_prompt(1, 640), n=2, max_tokens=1400)
    for _ in range(5):  # it may be over before a busy machine has looked
        before = (await engine_client.readings()).work
        async with engine_client.open_stream(COMPLETION, body):
            now = await eventually(engine_client.readings, lambda now, before=before: _is_seen(now, before))
        if now.value(RUNNING) == 2:
            break
    # Blocks and output of the same moment, however late that is seen.
    apart = 2 * 20 + (now.work - before).output_tokens / 32
    shared = apart - engine_client.blocks_of(now)
    assert 15 <= shared <= 20  # all 20, but for the last one, blocks that were begun, and a step that is under way


@pytest.mark.parametrize(
    ("prompt", "prompt_tokens"),
    [([7, 8, 9], 3), ([[7, 8], [9]], 3)],
    ids=["token ids are one prompt", "lists of token ids are a prompt each"],
)
async def test_prompts_of_token_ids_are_counted_as_they_are(
    engine_client: EngineClient, prompt: list[Any], prompt_tokens: int
) -> None:
    document = (await engine_client.post(COMPLETION, completion(prompt=prompt))).document
    assert document["usage"]["prompt_tokens"] == prompt_tokens
    assert len(document["choices"]) == (2 if isinstance(prompt[0], list) else 1)


async def test_a_list_of_texts_is_a_prompt_each_with_n_choices(engine_client: EngineClient) -> None:
    document = (await engine_client.post(COMPLETION, completion(prompt=["Hello there", "Hello"], n=2))).document
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2, 3]
    assert document["usage"]["completion_tokens"] == 4 * 6


# What is held, and given back


async def test_an_open_stream_holds_blocks_until_its_client_goes(engine_client: EngineClient) -> None:
    body = completion(prompt=distinct_prompt(2, 320), max_tokens=1700)
    before = (await engine_client.readings()).work
    async with engine_client.open_stream(COMPLETION, body) as response:
        await anext(events(response))
        now = await eventually(engine_client.readings, lambda now: engine_client.blocks_of(now) > 10)
        assert (now.value(RUNNING), now.work.finished) == (1, before.finished)
        assert engine_client.blocks_of(now) <= 64
    await engine_client.until_idle()
    done = (await engine_client.readings()).work - before
    assert done.finished == 0
    assert 0 < done.output_tokens < 1700


async def test_an_answer_in_one_piece_is_aborted_too_when_its_client_goes(engine_client: EngineClient) -> None:
    before = (await engine_client.readings()).work
    asking = asyncio.create_task(
        engine_client.post(COMPLETION, completion(prompt=distinct_prompt(3, 320), max_tokens=1700))
    )
    await eventually(engine_client.blocks_in_use, lambda blocks: blocks >= 10)
    asking.cancel()
    await engine_client.until_idle()
    done = (await engine_client.readings()).work - before
    assert done.finished == 0
    assert done.output_tokens < 1700


async def test_a_finished_answer_leaves_its_blocks_free(engine_client: EngineClient) -> None:
    await engine_client.post(COMPLETION, completion(prompt=distinct_prompt(4, 320)))
    await engine_client.until_idle()


async def test_a_full_pool_makes_the_next_stream_wait_with_its_head_sent(engine_client: EngineClient) -> None:
    # 15 × 33 blocks of prompt leave 16 of 511; the next one wants 20.
    holders = [completion(prompt=distinct_prompt(10 + number, 1056), max_tokens=990) for number in range(15)]
    next_one = completion(prompt=distinct_prompt(30, 640), max_tokens=2)
    async with AsyncExitStack() as held:
        for holder in holders:
            await held.enter_async_context(engine_client.open_stream(COMPLETION, holder))
        await eventually(engine_client.blocks_in_use, lambda blocks: blocks >= 15 * 33)
        async with engine_client.open_stream(COMPLETION, next_one) as response:
            assert response.status == 200
            await eventually(engine_client.readings, lambda now: now.value(WAITING) >= 1)
            await held.aclose()
            assert [event async for event in events(response)][-1] == "[DONE]"


async def test_growth_beyond_the_pool_preempts_and_still_completes_everyone(engine_client: EngineClient) -> None:
    before = await engine_client.readings()
    # Eight prompts of 63 blocks fit 511; the 64th block, which each needs for its second token, does not for all.
    bodies = [completion(prompt=distinct_prompt(40 + number, 2016), max_tokens=32) for number in range(8)]
    replies = await asyncio.gather(*(engine_client.post(COMPLETION, body) for body in bodies))
    assert [reply.document["usage"]["completion_tokens"] for reply in replies] == [32] * 8
    after = await eventually(engine_client.readings, lambda now: now.value(RUNNING) == 0)
    name = "vllm:num_preemptions_total"
    assert after.value(name) > before.value(name)
    # A preempted request looks its prefix up again, but only its first look counts.
    assert after.value(QUERIES) - before.value(QUERIES) == 8 * 2016


# The prefix cache


async def test_a_repeated_prompt_hits_all_full_blocks_but_never_its_last_token(engine_client: EngineClient) -> None:
    body = completion(prompt=distinct_prompt(60, 320), max_tokens=2)
    before = await engine_client.readings()
    replies = [await engine_client.post(COMPLETION, body) for _ in range(2)]
    after = await engine_client.readings()
    cached = [reply.document["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies]
    assert cached == [0, 288]
    assert after.value(QUERIES) - before.value(QUERIES) == 640
    assert after.value(HITS) - before.value(HITS) == 288


async def test_a_stream_tells_its_cached_tokens_in_the_last_chunk(engine_client: EngineClient) -> None:
    body = completion(prompt=distinct_prompt(61, 330), max_tokens=2, stream_options={"include_usage": True})
    seen = [(await engine_client.stream(COMPLETION, body))[-2]["usage"]["prompt_tokens_details"] for _ in range(2)]
    assert seen == [{"cached_tokens": 0}, {"cached_tokens": 320}]


async def test_another_salt_finds_nothing_in_the_cache_and_the_same_one_does(engine_client: EngineClient) -> None:
    cached = []
    for salt in ("a", "b", "a", None):
        body = completion(prompt=distinct_prompt(62, 330), max_tokens=2, cache_salt=salt)
        usage = (await engine_client.post(COMPLETION, body)).document["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 0, 320, 0]
