"""What an engine refuses and how, and what it says of itself: the fake and the real vLLM alike."""

from typing import Any
from unittest.mock import ANY

import pytest

from testengine.bodies import CHAT, COMPLETION, chat, completion, distinct_prompt
from testengine.client import EngineClient

ERROR_KEYS = {"message", "type", "param", "code"}


# Limits and refusals


async def test_an_output_limit_beyond_the_context_is_cut_without_a_word(engine_client: EngineClient) -> None:
    body = completion(prompt=distinct_prompt(70, 2040), max_tokens=100)
    usage = (await engine_client.post(COMPLETION, body)).document["usage"]
    assert (usage["completion_tokens"], usage["total_tokens"]) == (8, 2048)


async def test_max_completion_tokens_beats_max_tokens(engine_client: EngineClient) -> None:
    reply = await engine_client.post(CHAT, chat(max_tokens=5, max_completion_tokens=2))
    assert reply.document["usage"]["completion_tokens"] == 2


async def test_of_a_key_given_twice_the_last_one_counts(engine_client: EngineClient) -> None:
    body = b'{"model":"tiny","prompt":"a","ignore_eos":true,"max_tokens":5,"max_tokens":2}'
    assert (await engine_client.post(COMPLETION, body)).document["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("change", "output_tokens"),
    [
        ({"max_tokens": "3"}, 3),
        ({"max_tokens": 3.0}, 3),
        ({"model": None}, 6),
        ({"model": ""}, 6),
        ({"best_of": 4}, 6),
        ({"stream_options": {}}, 6),
    ],
    ids=[
        "a number as text",
        "a number with a fraction of 0",
        "no model",
        "an empty model",
        "best_of is ignored",
        "empty stream options",
    ],
)
async def test_lenient_readings_are_accepted(
    engine_client: EngineClient, change: dict[str, Any], output_tokens: int
) -> None:
    reply = await engine_client.post(COMPLETION, completion(**change))
    assert (reply.status, reply.document["usage"]["completion_tokens"]) == (200, output_tokens)


async def test_a_stream_can_be_asked_for_in_words(engine_client: EngineClient) -> None:
    async with engine_client.open_stream(COMPLETION, completion()) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    body = b'{"model":"tiny","prompt":"a","max_tokens":1,"stream":"yes"}'
    with pytest.raises(ValueError, match="Expecting value"):
        await engine_client.post(COMPLETION, body)  # events, not one JSON document


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "param"),
    [
        (COMPLETION, completion(prompt=[7] * 2049), 400, "BadRequestError", "input_tokens"),
        (CHAT, chat(messages=[{"role": "user", "content": "word " * 3000}]), 400, "BadRequestError", "input_tokens"),
        (COMPLETION, completion(prompt=[7] * 2048), 400, "BadRequestError", "max_tokens"),
        (COMPLETION, completion(max_tokens=2049), 400, "BadRequestError", "max_tokens"),
        (COMPLETION, completion(max_tokens=0), 400, "BadRequestError", "max_tokens"),
        (COMPLETION, completion(max_tokens=2.5), 400, "Bad Request", "body.max_tokens"),
        (COMPLETION, completion(model="other"), 404, "NotFoundError", "model"),
        (CHAT, chat(model="other"), 404, "NotFoundError", "model"),
        ("/tokenize", {"model": "other", "prompt": "a"}, 404, "NotFoundError", "model"),
        (COMPLETION, completion(model=5), 400, "Bad Request", "body.model"),
        (COMPLETION, completion(prompt=""), 400, "BadRequestError", "prompt"),
        (COMPLETION, completion(prompt=[]), 400, "BadRequestError", None),
        (COMPLETION, completion(prompt=[[]]), 400, "BadRequestError", None),
        (CHAT, chat(messages=[]), 400, "BadRequestError", None),
        (CHAT, chat(messages="a"), 400, "Bad Request", "body.messages"),
        (CHAT, chat(messages=[{"content": "a"}]), 400, "Bad Request", ANY),
        (COMPLETION, completion(prompt=5), 400, "Bad Request", "body.prompt"),
        (COMPLETION, completion(prompt=[1, "a"]), 400, "Bad Request", "body.prompt.1"),
        (COMPLETION, completion(prompt=[1 << 40]), 400, "BadRequestError", None),
        (COMPLETION, completion(max_tokens="three"), 400, "Bad Request", "body.max_tokens"),
        (COMPLETION, completion(stream=2), 400, "Bad Request", "body.stream"),
        (COMPLETION, completion(stream=True, stream_options=1), 400, "Bad Request", "body.stream_options"),
        (COMPLETION, completion(n=0), 400, "BadRequestError", None),
        (COMPLETION, completion(cache_salt=""), 400, "BadRequestError", "cache_salt"),
        (COMPLETION, completion(cache_salt="a@b"), 400, "BadRequestError", "cache_salt"),
        (COMPLETION, completion(stream_options={"include_usage": True}), 400, "BadRequestError", "stream_options"),
        (COMPLETION, b'{"model":', 400, "Bad Request", "body.9"),
        (COMPLETION, b"[1]", 400, "Bad Request", "body"),
        (COMPLETION, b"", 400, "Bad Request", "body"),
    ],
    ids=[
        "a prompt above the context",
        "a conversation above the context",
        "a prompt that leaves no room for an answer",
        "a limit above the context",
        "a limit of nothing",
        "half a token",
        "a completion of an unknown model",
        "a chat with an unknown model",
        "an unknown model's tokens",
        "a model that is a number",
        "an empty text",
        "no prompts",
        "an empty prompt of token ids",
        "an empty conversation",
        "a conversation that is a text",
        "a message without a role",
        "a prompt that is a number",
        "a prompt of numbers and text",
        "a token that the model does not have",
        "a limit in words",
        "a stream that is neither true nor false",
        "stream options that are a number",
        "no choices",
        "an empty salt",
        "a salt with a forbidden character",
        "stream options without a stream",
        "JSON that breaks off",
        "JSON that is no object",
        "nothing at all",
    ],
)
async def test_what_is_wrong_is_refused_with_an_error_object(
    engine_client: EngineClient, path: str, body: Any, status: int, kind: str, param: str | None
) -> None:
    reply = await engine_client.post(path, body)
    assert set(reply.document) == {"error"}
    error = reply.document["error"]
    assert set(error) == ERROR_KEYS
    assert (reply.status, error["code"], error["type"], error["param"]) == (status, status, kind, param)
    assert reply.headers["content-type"] == "application/json"


async def test_bytes_that_are_no_text_are_refused_by_the_framework(engine_client: EngineClient) -> None:
    reply = await engine_client.post(COMPLETION, b"\x1f\x8b\x08\xff")
    assert (reply.status, reply.document) == (400, {"detail": "There was an error parsing the body"})


@pytest.mark.parametrize(
    "content",
    [[{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}], "Hello\nthere"],
    ids=["parts of text", "a text"],
)
async def test_parts_of_a_message_are_lines_of_it(engine_client: EngineClient, content: Any) -> None:
    messages = [{"role": "assistant", "content": None}, {"role": "user", "content": content}]
    usage = (await engine_client.post(CHAT, chat(messages=messages))).document["usage"]
    same = [{"role": "assistant", "content": ""}, {"role": "user", "content": "Hello\nthere"}]
    assert usage["prompt_tokens"] == (await engine_client.post("/tokenize", {"messages": same})).document["count"]


async def test_another_content_type_is_refused(engine_client: EngineClient) -> None:
    reply = await engine_client.post(COMPLETION, completion(), Content_Type="text/plain")
    assert (reply.status, reply.document["error"]["type"]) == (400, "Bad Request")


async def test_a_wrong_path_and_a_wrong_method_have_an_answer_of_their_own(engine_client: EngineClient) -> None:
    nothing, get = await engine_client.get("/v1/nothing"), await engine_client.get(COMPLETION)
    assert (nothing.status, nothing.document) == (404, {"detail": "Not Found"})
    assert (get.status, get.document, get.headers["allow"]) == (405, {"detail": "Method Not Allowed"}, "POST")


# What the engine says of itself


async def test_health_version_and_models_are_told(engine_client: EngineClient) -> None:
    assert (await engine_client.get("/health")).document is None
    assert (await engine_client.get("/version")).document == {"version": "0.32.0"}
    (card,) = (await engine_client.get("/v1/models")).document["data"]
    assert set(card) == {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"}
    assert (card["id"], card["max_model_len"]) == ("tiny", 2048)


async def test_the_routes_are_listed_with_their_methods(engine_client: EngineClient) -> None:
    paths = (await engine_client.get("/openapi.json")).document["paths"]
    assert {path: list(paths[path]) for path in (CHAT, COMPLETION, "/tokenize", "/v1/models", "/version")} == {
        CHAT: ["post"],
        COMPLETION: ["post"],
        "/tokenize": ["post"],
        "/v1/models": ["get"],
        "/version": ["get"],
    }


async def test_tokenize_counts_a_text_and_a_conversation(engine_client: EngineClient) -> None:
    text = await engine_client.post("/tokenize", {"model": "tiny", "prompt": "Hello there"})
    assert set(text.document) == {"count", "max_model_len", "tokens", "token_strs"}
    assert text.document["count"] == len(text.document["tokens"])
    messages = chat()["messages"]
    talk = await engine_client.post("/tokenize", {"messages": messages, "return_token_strs": True})
    assert talk.document["count"] > text.document["count"]
    assert len(talk.document["token_strs"]) == talk.document["count"]


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("vllm:num_requests_running", {"engine", "model_name"}),
        ("vllm:num_requests_waiting", {"engine", "model_name"}),
        ("vllm:num_requests_waiting_by_reason", {"engine", "model_name", "reason"}),
        ("vllm:kv_cache_usage_perc", {"engine", "model_name"}),
        ("vllm:prefix_cache_queries_total", {"engine", "model_name"}),
        ("vllm:prefix_cache_hits_total", {"engine", "model_name"}),
        ("vllm:num_preemptions_total", {"engine", "model_name"}),
        ("vllm:prompt_tokens_total", {"engine", "model_name"}),
        ("vllm:prompt_tokens_cached_total", {"engine", "model_name"}),
        ("vllm:generation_tokens_total", {"engine", "model_name"}),
        ("vllm:request_success_total", {"engine", "model_name", "finished_reason"}),
        ("process_start_time_seconds", set()),
    ],
)
async def test_a_metric_has_its_labels(engine_client: EngineClient, name: str, labels: set[str]) -> None:
    samples = (await engine_client.readings()).labels(name)
    assert samples
    assert all(set(sample) == labels for sample in samples)


async def test_the_cache_announces_the_size_that_was_planned(engine_client: EngineClient) -> None:
    (config,) = (await engine_client.readings()).labels("vllm:cache_config_info")
    told = ("block_size", "num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency", "engine")
    assert [config[name] for name in told] == ["32", "512", "16384", "8.0", "0"]
    assert config["enable_prefix_caching"] == "True"


async def test_finished_answers_are_counted_with_their_tokens(engine_client: EngineClient) -> None:
    before = await engine_client.readings()
    await engine_client.post(COMPLETION, completion(prompt=distinct_prompt(71, 40), n=2))
    after = await engine_client.readings()
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total")
    # Each choice counts the prompt again.
    assert [after.value(name) - before.value(name) for name in names] == [80, 12, 2]
