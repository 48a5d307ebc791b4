"""What embeddings, scores and ranks ask for, and batches of chats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvquota_sidecar.estimate.prompts import MAX_PROMPTS, TEMPLATE_SIZE
from kvquota_sidecar.estimate.shape import Shape, read_shape
from kvquota_sidecar.refusals import Code, Refusal

BATCH, EMBEDDINGS, RERANK, SCORE = "/v1/chat/completions/batch", "/v1/embeddings", "/rerank", "/score"
USER = {"role": "user", "content": "hello"}
CHAT_SIZE = TEMPLATE_SIZE + 20 + len("userhello")
PAIR = TEMPLATE_SIZE


def encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def sizes(route: str, fields: dict[str, Any]) -> list[tuple[int, int | None]]:
    read = read_shape(route, encoded(fields))
    assert isinstance(read, Shape), read
    return [(each.size, each.tokens) for each in read.prompts]


@pytest.mark.parametrize(
    ("route", "fields", "expected"),
    [
        pytest.param(EMBEDDINGS, {"input": "hello"}, [(5, None)], id="a text"),
        pytest.param(EMBEDDINGS, {"input": ["ab", "c"]}, [(2, None), (1, None)], id="texts"),
        pytest.param(EMBEDDINGS, {"input": ["a{b"]}, [(3, None)], id="a text with a brace"),
        pytest.param(EMBEDDINGS, {"input": [1, 22]}, [(6, 2)], id="token ids are exact"),
        pytest.param(EMBEDDINGS, {"input": [[1, 2], [3]]}, [(5, 2), (3, 1)], id="lists of token ids"),
        pytest.param(EMBEDDINGS, {"messages": [USER]}, [(CHAT_SIZE, None)], id="a chat"),
        pytest.param(EMBEDDINGS, {"input": [USER]}, [(CHAT_SIZE, None)], id="a chat as input"),
        pytest.param(
            EMBEDDINGS, {"messages": [USER], "chat_template_kwargs": {"a": 1}}, [(CHAT_SIZE + 7, None)], id="arguments"
        ),
        pytest.param("/pooling", {"input": "hello"}, [(5, None)], id="pooling"),
        pytest.param("/classify", {"input": ["hello"]}, [(5, None)], id="classifying"),
        pytest.param(
            RERANK,
            {"query": "abc", "documents": ["1234", "56"]},
            [(PAIR + 7, None), (PAIR + 5, None)],
            id="the query stands before each document",
        ),
        pytest.param("/v1/rerank", {"query": "abc", "documents": "12"}, [(PAIR + 5, None)], id="one document"),
        pytest.param(
            "/v2/rerank",
            {"query": "abc", "documents": [{"content": [{"type": "text", "text": "12"}]}]},
            [(PAIR + 3 + len("text") + 2, None)],
            id="a document in parts",
        ),
        pytest.param(
            RERANK,
            {"query": {"content": []}, "documents": ["x"], "instruction": "rank", "chat_template_kwargs": {"b": 2}},
            [(PAIR + 1 + 4 + 7, None)],
            id="an instruction, which each has, and arguments",
        ),
        pytest.param(SCORE, {"text_1": "ab", "text_2": "c"}, [(PAIR + 3, None)], id="one pair"),
        pytest.param(
            SCORE, {"text_1": "ab", "text_2": ["c", "de"]}, [(PAIR + 3, None), (PAIR + 4, None)], id="one with each"
        ),
        pytest.param(
            SCORE, {"queries": ["a", "bc"], "documents": "d"}, [(PAIR + 2, None), (PAIR + 3, None)], id="each with one"
        ),
        pytest.param(
            "/v1/score",
            {"data_1": ["a", "bc"], "data_2": ["d", "ef"]},
            [(PAIR + 2, None), (PAIR + 4, None)],
            id="pairs",
        ),
        pytest.param(SCORE, {"queries": "a", "items": ["d"]}, [(PAIR + 2, None)], id="items"),
        pytest.param(
            BATCH, {"messages": [[USER], [USER, USER]]}, [(CHAT_SIZE, None), (2 * CHAT_SIZE - TEMPLATE_SIZE, None)],
            id="each chat of a batch is a prompt of its own",
        ),
        pytest.param(
            BATCH, {"messages": [[USER]], "chat_template_kwargs": {"a": 1}}, [(CHAT_SIZE + 7, None)],
            id="with the arguments of all",
        ),
    ],
)  # fmt: skip
def test_the_prompts(route: str, fields: dict[str, Any], expected: list[tuple[int, int | None]]) -> None:
    assert sizes(route, fields) == expected


@pytest.mark.parametrize(
    ("route", "fields", "param", "reason"),
    [
        pytest.param(EMBEDDINGS, {}, "input", "not both", id="nothing to embed"),
        pytest.param(EMBEDDINGS, {"input": "x", "messages": [USER]}, "messages", "not both", id="two things to embed"),
        pytest.param(EMBEDDINGS, {"input": []}, "input", "send 1 to", id="an empty list"),
        pytest.param(EMBEDDINGS, {"input": 5}, "input", "Expected `array`", id="a number"),
        pytest.param(EMBEDDINGS, {"input": ["x", 5]}, "input[1]", "Expected `str`", id="a number in the list"),
        pytest.param(EMBEDDINGS, {"input": ["x", {}]}, "input[1]", "Expected `str`", id="an object in the list"),
        pytest.param(EMBEDDINGS, {"input": [USER, "x"]}, "input[1]", "Expected `object`", id="a text in a chat"),
        pytest.param(EMBEDDINGS, {"input": ["x"] * (MAX_PROMPTS + 1)}, "input", "split", id="too many"),
        pytest.param(
            EMBEDDINGS,
            {"messages": [USER], "chat_template_kwargs": {"chat_template": "x"}},
            "chat_template_kwargs.chat_template",
            "Leave it out",
            id="a template of one's own",
        ),
        pytest.param("/pooling", {"data": {}, "input": "x"}, "data", "plugin", id="data for a plugin"),
        pytest.param(RERANK, {"query": "x"}, "documents", "missing", id="nothing to rank"),
        pytest.param(RERANK, {"query": "x", "documents": []}, "documents", "send 1 to", id="no documents"),
        pytest.param(RERANK, {"query": 5, "documents": "x"}, "query", "Expected", id="a query that is a number"),
        pytest.param(
            RERANK, {"query": "x", "documents": ["a", 5]}, "documents[1]", "Expected", id="a document that is a number"
        ),
        pytest.param(
            RERANK, {"query": "x", "documents": [{}, 5]}, "documents[1]", "Expected", id="a number behind an object"
        ),
        pytest.param(
            RERANK,
            {"query": "x", "documents": [{"content": [{"type": "text", "text": "a"}, {"type": "file"}]}]},
            "documents[0].content[1].type",
            "Leave it out",
            id="a file in a document",
        ),
        pytest.param(SCORE, {"text_1": "x"}, "text_1", "beside `text_2`", id="half a pair"),
        pytest.param(
            SCORE,
            {"text_1": "x", "text_2": "y", "queries": "x", "documents": "y"},
            "text_1",
            "no other pair",
            id="two pairs of names",
        ),
        pytest.param(
            SCORE, {"text_1": ["x", "y"], "text_2": ["a", "b", "c"]}, "text_2", "has 3 texts", id="sides of two lengths"
        ),
        pytest.param(BATCH, {"messages": []}, "messages", "send 1 to", id="a batch without chats"),
        pytest.param(BATCH, {"messages": [1, 2]}, "messages[0]", "Expected `object`", id="a batch of numbers"),
        pytest.param(BATCH, {"messages": [USER]}, "messages[0]", "Expected `array`", id="a batch that is a chat"),
        pytest.param(BATCH, {"messages": [[USER], [5]]}, "messages[1][0]", "Expected `object`", id="a number in it"),
        pytest.param(BATCH, {"messages": [[USER]], "tools": [{}]}, "tools", "batch", id="tools in a batch"),
    ],
)
def test_what_is_refused(route: str, fields: dict[str, Any], param: str, reason: str) -> None:
    told = read_shape(route, encoded(fields))
    assert isinstance(told, Refusal), told
    assert (told.status, told.param) == (400, param)
    assert told.code in {Code.MALFORMED_REQUEST, Code.NOT_SUPPORTED_UNDER_QUOTA}
    assert reason in told.message
