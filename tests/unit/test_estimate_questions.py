"""What the engine's tokenizer is asked about a body, and what its answers say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvquota_sidecar.estimate.questions import MAX_BYTES, MAX_QUESTIONS, Question, counted, is_askable, questions
from kvquota_sidecar.estimate.shape import Engine, Shape, read_shape

CHAT, COMPLETION, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
BATCH, EMBEDDINGS = "/v1/chat/completions/batch", "/v1/embeddings"
USER = {"role": "user", "content": "hé"}
SYSTEM = {"role": "system", "content": "be brief"}


def asked(engine: Engine, route: str, fields: dict[str, Any]) -> list[tuple[str, Any]]:
    body = json.dumps(fields).encode()
    shape = read_shape(route, body)
    assert isinstance(shape, Shape), shape
    found = questions(engine, route, body)
    assert len(found) in {0, sum(each.tokens is None for each in shape.prompts)}
    return [(each.path, json.loads(each.body)) for each in found]


def chat(*messages: Any, **fields: Any) -> tuple[str, Any]:
    return "/tokenize", {"messages": [*messages], "chat_template_kwargs": {}, **fields}


def text(prompt: str, **fields: Any) -> tuple[str, Any]:
    return "/tokenize", {"prompt": prompt, **fields}


TOOLS = [{"type": "function", "function": {"name": "f"}}]
ASKED = [
    pytest.param(CHAT, {"messages": [USER], "max_tokens": 5, "stream": True}, [chat(USER)], id="a chat"),
    pytest.param(
        CHAT,
        {
            "messages": [SYSTEM, USER], "model": "m", "tools": TOOLS, "add_generation_prompt": False,
            "continue_final_message": True, "add_special_tokens": True, "temperature": 0,
        },
        [
            chat(
                SYSTEM, USER, model="m", tools=TOOLS, add_generation_prompt=False, continue_final_message=True,
                add_special_tokens=True,
            )
        ],
        id="with all that shapes its prompt",
    ),
    pytest.param(
        CHAT,
        {
            "messages": [USER], "documents": [{"text": "d"}], "reasoning_effort": "low",
            "chat_template_kwargs": {"think": True, "reasoning_effort": "high"},
        },
        [
            chat(
                USER,
                chat_template_kwargs={
                    "documents": [{"text": "d"}],
                    "enable_thinking": True,
                    "reasoning_effort": "high",
                    "think": True,
                },
            )
        ],
        id="with the arguments of its template, where the client's own stand above the others",
    ),
    pytest.param(CHAT, {"messages": [USER], "chat_template_kwargs": None}, [chat(USER)], id="no arguments"),
    pytest.param(
        CHAT,
        {"messages": [USER], "reasoning_effort": "none"},
        [chat(USER, chat_template_kwargs={"reasoning_effort": "none", "enable_thinking": False})],
        id="no effort is no thinking, as vLLM tells templates",
    ),
    pytest.param(
        CHAT,
        {"messages": [USER], "reasoning_effort": None},
        [chat(USER, chat_template_kwargs={"reasoning_effort": None})],
        id="null says nothing",
    ),
    pytest.param(BATCH, {"messages": [[USER], [SYSTEM, USER]]}, [chat(USER), chat(SYSTEM, USER)], id="a batch"),
    pytest.param(
        MESSAGES,
        {"messages": [USER], "max_tokens": 5, "system": "s"},
        [("/v1/messages/count_tokens", {"messages": [USER], "max_tokens": 5, "system": "s"})],
        id="Anthropic's messages go to their own counter",
    ),
    pytest.param(COMPLETION, {"prompt": "ab", "model": "m", "n": 3}, [text("ab", model="m")], id="a prompt"),
    pytest.param(
        COMPLETION,
        {"prompt": ["ab", [1, 2], "c"], "add_special_tokens": False},
        [text("ab", add_special_tokens=False), text("c", add_special_tokens=False)],
        id="of several only those that are text",
    ),
    pytest.param(COMPLETION, {"prompt": [1, 2]}, [], id="none for token ids"),
    pytest.param(COMPLETION, {"prompt": ["x"] * MAX_QUESTIONS}, [text("x")] * MAX_QUESTIONS, id="as many as may be"),
    pytest.param(COMPLETION, {"prompt": ["x"] * (MAX_QUESTIONS + 1)}, [], id="none for more"),
    pytest.param(RESPONSES, {"input": "hé"}, [chat(USER, tools=None)], id="a response is a chat"),
    pytest.param(
        RESPONSES,
        {"input": [USER], "instructions": "be brief", "tools": [], "model": "m"},
        [chat(SYSTEM, USER, model="m", tools=None)],
        id="with its instructions first",
    ),
    pytest.param(RESPONSES, {"input": [USER], "instructions": None}, [chat(USER, tools=None)], id="without any"),
    pytest.param(RESPONSES, {"input": "x", "tools": [{"type": "function"}]}, [], id="none where tools look different"),
    pytest.param(RESPONSES, {"input": [USER, {"type": "reasoning"}]}, [], id="none for items that are no messages"),
    pytest.param(EMBEDDINGS, {"input": ["ab"]}, [text("ab")], id="a text to embed"),
    pytest.param(EMBEDDINGS, {"messages": [USER]}, [], id="none for a chat to embed"),
    pytest.param("/score", {"text_1": "x", "text_2": "y"}, [], id="none for pairs, which only their template joins"),
]  # fmt: skip


@pytest.mark.parametrize(("route", "fields", "expected"), ASKED)
def test_the_questions_to_vllm(route: str, fields: dict[str, Any], expected: list[tuple[str, Any]]) -> None:
    assert asked("vLLM", route, fields) == expected


@pytest.mark.parametrize(
    ("engine", "route", "fields", "expected"),
    [
        pytest.param("SGLang", COMPLETION, {"prompt": "ab"}, [text("ab")], id="SGLang counts prompts"),
        pytest.param("SGLang", EMBEDDINGS, {"input": "ab"}, [text("ab")], id="and texts to embed"),
        pytest.param("SGLang", CHAT, {"messages": [USER]}, [], id="but no chats"),
        pytest.param("LlamaCpp", COMPLETION, {"prompt": "ab"}, [], id="others are not asked"),
        pytest.param("OpenAI", CHAT, {"messages": [USER]}, [], id="whatever it is"),
    ],
)
def test_the_questions_to_other_engines(
    engine: Engine, route: str, fields: dict[str, Any], expected: list[tuple[str, Any]]
) -> None:
    assert asked(engine, route, fields) == expected
    assert is_askable(engine, route) is bool(expected)


def test_there_is_none_for_what_no_engine_counts_in_time() -> None:
    longest = b'{"prompt":"%s"}' % (b"x" * (MAX_BYTES - len(b'{"prompt":""}')))
    assert [len(questions("vLLM", COMPLETION, body)) for body in (longest, longest + b" ")] == [1, 0]


def test_a_question_keeps_the_text_as_it_was_written() -> None:
    body = b'{"prompt": "\\u00e9\\n", "model":"m"}'
    assert questions("vLLM", COMPLETION, body) == (Question("/tokenize", b'{"model":"m","prompt":"\\u00e9\\n"}'),)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(b'{"count":3,"max_model_len":9,"tokens":[1,2,3]}', 3, id="vLLM's tokenizer"),
        pytest.param(b'{"input_tokens":4,"context_management":{}}', 4, id="Anthropic's counter"),
        pytest.param(b'{"count":0}', 0, id="nothing in it"),
        pytest.param(b'{"error":{"message":"x"}}', None, id="an error"),
        pytest.param(b'{"count":[3,4]}', None, id="several counts"),
        pytest.param(b'{"count":-1}', None, id="less than nothing"),
        pytest.param(b"", None, id="nothing"),
        pytest.param(b'{"count":3', None, id="cut off"),
        pytest.param(b'{"x":"\xff"}', None, id="no UTF-8"),
    ],
)
def test_what_an_answer_says(answer: bytes, expected: int | None) -> None:
    assert counted(answer) == expected
