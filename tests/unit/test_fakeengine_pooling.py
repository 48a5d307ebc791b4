"""The fake engine's routes without output: embeddings, scores and rankings."""

import asyncio
import base64
import struct
from typing import Any

import pytest

from kvquota_fakeengine.clock import ManualClock
from kvquota_fakeengine.server import FakeEngineServer
from testengine.bodies import distinct_prompt
from testengine.client import client_of
from testengine.fake import port_of, until_held

EMBEDDINGS = "/v1/embeddings"


def counted(prompt_tokens: int) -> dict[str, Any]:
    usage: dict[str, Any] = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens, "completion_tokens": 0}
    return usage | {"prompt_tokens_details": None, "completion_tokens_details": None}


@pytest.mark.parametrize(
    ("given", "vectors", "prompt_tokens"),
    [
        ("abc", 1, 1),
        (["abc", "abc abc"], 2, 3),
        ([7, 8, 9], 1, 3),
        ([[7, 8], [9]], 2, 3),
    ],
    ids=["a text", "texts", "token ids", "lists of token ids"],
)
async def test_every_input_has_a_vector_and_its_tokens_are_counted(
    quick_engine: FakeEngineServer, given: Any, vectors: int, prompt_tokens: int
) -> None:
    async with client_of(port_of(quick_engine)) as client:
        document = (await client.post(EMBEDDINGS, {"model": "tiny", "input": given})).document
    assert set(document) == {"id", "object", "created", "model", "data", "usage"}
    assert [(each["index"], each["object"], len(each["embedding"])) for each in document["data"]] == [
        (index, "embedding", 4) for index in range(vectors)
    ]
    assert document["usage"] == counted(prompt_tokens)
    totals = quick_engine.engine.scheduler.totals
    assert (totals.prompt_tokens, totals.generation_tokens) == (prompt_tokens, 0)


async def test_vectors_can_come_as_text(quick_engine: FakeEngineServer) -> None:
    async with client_of(port_of(quick_engine)) as client:
        bodies = [{"input": "a", "encoding_format": how} for how in ("float", "base64")]
        numbers, text = [(await client.post(EMBEDDINGS, body)).document["data"][0]["embedding"] for body in bodies]
    assert list(struct.unpack("<4f", base64.b64decode(text))) == numbers


async def test_a_prompt_holds_its_blocks_while_it_is_computed_and_not_after(
    slow_engine: FakeEngineServer, engine_clock: ManualClock
) -> None:
    async with client_of(port_of(slow_engine)) as client:
        asking = asyncio.create_task(client.post(EMBEDDINGS, {"input": [distinct_prompt(1, 8), distinct_prompt(2, 9)]}))
        await until_held(slow_engine, 5)
        await engine_clock.advance(0.01)
        await until_held(slow_engine, 0)
        assert (await asking).document["usage"] == counted(17)


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    "body",
    [
        {"queries": "abc", "documents": ["abc", "abc abc"]},
        {"text_1": ["abc", "abc"], "text_2": ["abc", "abc abc"]},
        {"data_1": "abc", "data_2": ["abc", "abc abc"]},
    ],
    ids=["one question", "two questions", "the name before"],
)
async def test_each_pair_has_a_score(quick_engine: FakeEngineServer, path: str, body: dict[str, Any]) -> None:
    async with client_of(port_of(quick_engine)) as client:
        document = (await client.post(path, {"model": "tiny"} | body)).document
    assert document["data"] == [
        {"index": 0, "object": "score", "score": 1.0},
        {"index": 1, "object": "score", "score": 0.5},
    ]
    assert document["usage"] == counted(5)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_documents_are_ranked_with_the_question(quick_engine: FakeEngineServer, path: str) -> None:
    body = {"query": "abc", "documents": ["abc", "abc abc"], "top_n": 1}
    async with client_of(port_of(quick_engine)) as client:
        document = (await client.post(path, body)).document
    assert document["results"] == [
        {"index": 0, "document": {"text": "abc", "multi_modal": None}, "relevance_score": 1.0}
    ]
    assert document["usage"] == {"prompt_tokens": 5, "total_tokens": 5}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (EMBEDDINGS, {}, 400, "input"),
        (EMBEDDINGS, {"input": ["a", 5]}, 400, "body.input.0"),
        (EMBEDDINGS, {"input": [7] * 513}, 400, "input_tokens"),
        (EMBEDDINGS, {"input": [[]]}, 400, None),
        (EMBEDDINGS, {"input": "a", "model": "other"}, 404, "model"),
        (EMBEDDINGS, {"input": "a", "cache_salt": ""}, 400, "cache_salt"),
        ("/score", {"queries": ["a", "b"], "documents": ["a", "b", "c"]}, 400, "body"),
        ("/score", {"queries": "a"}, 400, "body"),
        ("/rerank", {"query": "a", "documents": []}, 400, "body"),
        ("/rerank", {"query": "a", "documents": [5]}, 400, "body"),
    ],
)
async def test_what_is_wrong_is_refused(
    quick_engine: FakeEngineServer, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    async with client_of(port_of(quick_engine)) as client:
        reply = await client.post(path, body)
    assert (reply.status, reply.document["error"]["param"]) == (status, param)
