"""What a body asks for, on each generating route."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.prompts import TEMPLATE_SIZE, PromptSize
from kvquota_sidecar.estimate.shape import ROUTES, Shape, read_shape
from kvquota_sidecar.proxy.routes import PATHS, find_route

CHAT, COMPLETION, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
BATCH, EMBEDDINGS, RERANK, SCORE = "/v1/chat/completions/batch", "/v1/embeddings", "/rerank", "/score"
MINIMAL: dict[str, dict[str, Any]] = {
    CHAT: {"messages": []},
    BATCH: {"messages": [[]]},
    COMPLETION: {"prompt": "x"},
    MESSAGES: {"messages": [], "max_tokens": 5},
    RESPONSES: {"input": "x"},
    EMBEDDINGS: {"input": "x"},
    "/pooling": {"input": "x"},
    "/classify": {"input": "x"},
    RERANK: {"query": "x", "documents": ["y"]},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
    "/v2/rerank": {"query": "x", "documents": ["y"]},
    SCORE: {"text_1": "x", "text_2": "y"},
    "/v1/score": {"text_1": "x", "text_2": "y"},
}
POOLING = sorted(MINIMAL.keys() - {CHAT, BATCH, COMPLETION, MESSAGES, RESPONSES})


def encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def shape(route: str, **fields: Any) -> Shape:
    read = read_shape(route, encoded({**MINIMAL[route], **fields}))
    assert isinstance(read, Shape), read
    return read


def test_the_routes_are_those_that_are_accounted() -> None:
    generating = {route.path for route in map(find_route, ["POST"] * len(PATHS), PATHS) if route is not None}
    assert sorted(ROUTES) == sorted(MINIMAL)
    assert {path for path in generating if getattr(find_route("POST", path), "purpose", "") == "Generate"} == {*ROUTES}


def test_a_whole_chat_request() -> None:
    message = {"role": "user", "content": "héllo"}
    read = shape(
        CHAT,
        model="m",
        messages=[message],
        stream=True,
        stream_options={"include_usage": True},
        n=3,
        max_tokens=7,
        cache_salt="s",
        priority=-5,
        temperature=0.5,
    )
    size = TEMPLATE_SIZE + 20 + len("userhéllo".encode())
    assert read == Shape(
        kind="Generate",
        model="m",
        stream=True,
        prompts=(PromptSize(size, size, density=6),),
        copies=3,
        output_limit=Tokens(7),
        cache_salt="s",
        priority=b"-5",
        include_usage=True,
        fields=(
            "messages", "model", "stream", "stream_options", "n", "max_tokens", "cache_salt", "priority", "temperature",
        ),
        shows_output=True,
    )  # fmt: skip


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_what_is_left_out_or_null_takes_its_usual_value(route: str) -> None:
    left_out = shape(route)
    null = shape(route, model=None, stream=None, stream_options=None, cache_salt=None)
    for read in (left_out, null):
        assert (read.model, read.stream, read.cache_salt, read.include_usage, read.copies) == ("", False, "", False, 1)
        assert read.priority == b""


@pytest.mark.parametrize("route", sorted(MINIMAL))
def test_what_pools_makes_no_output_whatever_it_asks_for(route: str) -> None:
    read = shape(route, max_tokens=7, max_output_tokens=7, n=1)
    assert (read.kind, read.output_limit) == (("Pool", 0) if route in POOLING else ("Generate", 7))


@pytest.mark.parametrize(
    ("route", "fields", "expected"),
    [
        pytest.param(CHAT, {}, None, id="none given"),
        pytest.param(CHAT, {"max_tokens": None, "max_completion_tokens": None}, None, id="null is none"),
        pytest.param(CHAT, {"max_tokens": 5}, 5, id="the old name"),
        pytest.param(CHAT, {"max_completion_tokens": 6}, 6, id="the new name"),
        pytest.param(CHAT, {"max_tokens": 9, "max_completion_tokens": 6}, 9, id="both: the larger is reserved"),
        pytest.param(BATCH, {"max_tokens": 9, "max_completion_tokens": 12}, 12, id="of a batch too"),
        pytest.param(CHAT, {"max_tokens": 0}, 0, id="zero is a limit"),
        pytest.param(COMPLETION, {"max_tokens": 5, "max_completion_tokens": 9}, 5, id="completions know one name"),
        pytest.param(COMPLETION, {"max_completion_tokens": 9}, None, id="the other is no limit there"),
        pytest.param(MESSAGES, {"max_tokens": 8}, 8, id="Anthropic's is required"),
        pytest.param(RESPONSES, {"max_output_tokens": 4}, 4, id="the responses' own name"),
        pytest.param(RESPONSES, {"max_tokens": 4}, None, id="and no other"),
    ],
)
def test_the_output_limit(route: str, fields: dict[str, Any], expected: int | None) -> None:
    assert shape(route, **fields).output_limit == expected


@pytest.mark.parametrize(
    ("route", "fields", "expected"),
    [
        pytest.param(CHAT, {"max_tokens": 9, "max_completion_tokens": 6}, 6, id="the new name beats the old"),
        pytest.param(CHAT, {"max_tokens": 9, "max_completion_tokens": None}, 9, id="null does not"),
        pytest.param(CHAT, {}, None, id="a chat without a limit may fill the context"),
        pytest.param(COMPLETION, {}, 16, id="a completion without one ends after 16 tokens"),
        pytest.param(COMPLETION, {"max_tokens": None}, None, id="null is none there, or older vLLM's context"),
        pytest.param(COMPLETION, {"max_tokens": 7}, 7, id="its own limit stands"),
    ],
)
def test_the_output_limit_is_what_vllm_makes_of_it(route: str, fields: dict[str, Any], expected: int | None) -> None:
    read = read_shape(route, encoded({**MINIMAL[route], **fields}), engine="vLLM")
    assert isinstance(read, Shape)
    assert read.output_limit == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, 1, id="one"),
        pytest.param({"n": None}, 1, id="null is one"),
        pytest.param({"n": 4}, 4, id="n"),
        pytest.param({"n": 2, "best_of": 5}, 5, id="best_of runs more than it returns"),
        pytest.param({"n": 3, "use_beam_search": True}, 3, id="beams are as many as n"),
    ],
)
def test_copies(fields: dict[str, Any], expected: int) -> None:
    assert shape(COMPLETION, **fields).copies == expected
    assert shape(CHAT, **fields).copies == expected
    assert [shape(route, **fields).copies for route in (MESSAGES, RESPONSES, EMBEDDINGS)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        pytest.param("hello", [(5, None)], id="a text"),
        pytest.param("", [(0, None)], id="an empty text"),
        pytest.param("日本", [(6, None)], id="a text beyond ASCII counts as UTF-8"),
        pytest.param(["ab", "c"], [(2, None), (1, None)], id="a list of texts"),
        pytest.param([1, 22, 333], [(10, 3)], id="token ids are exact"),
        pytest.param([[1, 2], [3]], [(5, 2), (3, 1)], id="a list of lists of token ids"),
        pytest.param(["ab", [7]], [(2, None), (3, 1)], id="texts and token ids"),
    ],
)
def test_the_prompts_of_a_completion(prompt: Any, expected: list[tuple[int, int | None]]) -> None:
    assert [(each.size, each.tokens) for each in shape(COMPLETION, prompt=prompt).prompts] == expected


def test_a_suffix_is_part_of_every_prompt() -> None:
    prompts = shape(COMPLETION, prompt=["ab", [7]], suffix="xyz").prompts
    assert [(each.size, each.tokens) for each in prompts] == [(5, None), (3, 4)]


def test_escapes_count_as_the_text_that_they_stand_for() -> None:
    read = read_shape(COMPLETION, b'{"prompt":"\\n\\u0041\\u00e9\\ud83d\\ude00"}')
    assert isinstance(read, Shape)
    assert read.prompts[0].size == 1 + 1 + 2 + 4


LONG = "x" * 1000
COUNTED = [
    pytest.param(CHAT, {"messages": [{"role": "user", "content": LONG}]}, id="content"),
    pytest.param(CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]}, id="text parts"),
    pytest.param(CHAT, {"messages": [{"role": "user", "content": ["a", LONG]}]}, id="parts that are strings"),
    pytest.param(CHAT, {"messages": [{"role": "tool", "content": None, "name": LONG}]}, id="any field of a message"),
    pytest.param(
        CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": LONG}}]}]}, id="calls"
    ),
    pytest.param(CHAT, {"messages": [{"role": "assistant", "reasoning": LONG}]}, id="reasoning"),
    pytest.param(
        CHAT, {"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": LONG}]}]}, id="refusals"
    ),
    pytest.param(CHAT, {"tools": [{"type": "function", "function": {"description": LONG}}]}, id="tools"),
    pytest.param(CHAT, {"functions": [{"description": LONG}]}, id="functions"),
    pytest.param(CHAT, {"documents": [{"text": LONG}]}, id="documents"),
    pytest.param(CHAT, {"chat_template_kwargs": {"note": LONG}}, id="arguments of the template"),
    pytest.param(MESSAGES, {"chat_template_kwargs": {"note": LONG}}, id="arguments of the template of messages"),
    pytest.param(RESPONSES, {"chat_template_kwargs": {"note": LONG}}, id="and of a response"),
    pytest.param(MESSAGES, {"system": LONG}, id="a system text"),
    pytest.param(MESSAGES, {"system": [{"type": "text", "text": LONG}]}, id="system parts"),
    pytest.param(MESSAGES, {"tools": [{"name": "t", "input_schema": {"description": LONG}}]}, id="Anthropic's tools"),
    pytest.param(
        MESSAGES,
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": LONG}]}]},
        id="a result of a tool",
    ),
    pytest.param(
        MESSAGES,
        {
            "messages": [
                {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": LONG}]}]}
            ]
        },
        id="a result of a tool in parts",
    ),
    pytest.param(
        MESSAGES,
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {"a": LONG}}]}]},
        id="use",
    ),
    pytest.param(RESPONSES, {"input": LONG}, id="an input text"),
    pytest.param(RESPONSES, {"instructions": LONG}, id="instructions"),
    pytest.param(RESPONSES, {"tools": [{"type": "function", "description": LONG}]}, id="tools of a response"),
    pytest.param(RESPONSES, {"input": [{"role": "user", "content": LONG}]}, id="a message in the input"),
    pytest.param(
        RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": LONG}]}]}, id="input parts"
    ),
    pytest.param(RESPONSES, {"input": [{"type": "function_call", "arguments": LONG}]}, id="a call in the input"),
    pytest.param(RESPONSES, {"input": [{"type": "function_call_output", "output": LONG}]}, id="its output"),
    pytest.param(
        RESPONSES,
        {"input": [{"type": "function_call_output", "output": [{"type": "input_text", "text": LONG}]}]},
        id="its output in parts",
    ),
]


@pytest.mark.parametrize(("route", "fields"), COUNTED)
def test_text_counts_wherever_it_stands(route: str, fields: dict[str, Any]) -> None:
    (prompt,) = shape(route, **fields).prompts
    smaller = json.loads(json.dumps(fields).replace(LONG, ""))
    (without,) = shape(route, **smaller).prompts
    assert prompt.size - without.size == len(LONG)
    assert without.size >= TEMPLATE_SIZE


def sure(route: str, **fields: Any) -> int:
    (prompt,) = shape(route, **fields).prompts
    return prompt.sure


IGNORED = [
    pytest.param(CHAT, {"documents": [{"text": LONG}]}, id="documents"),
    pytest.param(CHAT, {"chat_template_kwargs": {"note": LONG}}, id="arguments of the template"),
    pytest.param(CHAT, {"messages": [{"role": "user", "content": "x", "junk": LONG}]}, id="a field of a message"),
    pytest.param(
        CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "junk": LONG}]}]}, id="of a part"
    ),
]


@pytest.mark.parametrize(("route", "fields"), COUNTED)
def test_tokens_are_weighed_against_what_surely_reaches_the_prompt(route: str, fields: dict[str, Any]) -> None:
    smaller = json.loads(json.dumps(fields).replace(LONG, ""))
    ignored = ("documents" in fields) or ("chat_template_kwargs" in fields)
    assert sure(route, **fields) - sure(route, **smaller) == (0 if ignored else len(LONG))


@pytest.mark.parametrize(("route", "fields"), IGNORED)
def test_what_an_engine_may_ignore_is_counted_but_tokens_are_not_weighed_against_it(
    route: str, fields: dict[str, Any]
) -> None:
    smaller = json.loads(json.dumps(fields).replace(LONG, ""))
    assert shape(route, **fields).prompts[0].size - shape(route, **smaller).prompts[0].size == len(LONG)
    assert sure(route, **fields) == sure(route, **smaller)


@pytest.mark.parametrize("field", ["response_format", "structured_outputs", "guided_json", "user", "stop"])
def test_what_never_reaches_the_prompt_is_not_counted(field: str) -> None:
    assert shape(CHAT, **{field: LONG}).prompts == shape(CHAT).prompts


def test_tools_of_a_chat_and_its_functions_add_up() -> None:
    both, tools, functions, none = (
        shape(CHAT, **fields).prompts[0].size
        for fields in (
            {"tools": [{"a": 1}], "functions": [{"b": 2}]}, {"tools": [{"a": 1}]}, {"functions": [{"b": 2}]}, {},
        )
    )  # fmt: skip
    assert both - none == (tools - none) + (functions - none)


@pytest.mark.parametrize("field", ["tools", "functions"])
def test_tools_come_with_instructions_of_the_template(field: str) -> None:
    (without,), (empty,), (one,) = (shape(CHAT, **{field: tools}).prompts for tools in (None, [], [{"name": "t"}]))
    assert without == empty
    assert (one.size, one.sure) == (without.size + 300 + 14, without.sure + 300 + 14)


def test_no_more_is_sure_than_is_counted_at_all() -> None:
    (prompt,) = shape(CHAT, messages=[{}] * 10).prompts
    assert prompt.sure == prompt.size == TEMPLATE_SIZE + 10 * (20 + len("null"))


def test_escapes_in_messages_count_as_their_text_too() -> None:
    message = '[{"role":"user","content":%s}]'
    sizes = []
    for content in (
        '"é\\n"',
        '"\\u00e9\\n"',
        '[{"type":"text","text":"é\\n"}]',
        '[{"type":"text","text":"\\u00e9\\n"}]',
    ):
        read = read_shape(CHAT, b'{"messages":' + (message % content).encode() + b"}")
        assert isinstance(read, Shape)
        sizes.append(read.prompts[0].size)
    assert sizes[0] == sizes[1] == TEMPLATE_SIZE + 20 + len("user") + 3
    assert sizes[2] == sizes[3] == sizes[0] + len("text")


def test_more_messages_are_more_marks_of_the_template() -> None:
    one, two = (shape(CHAT, messages=[{"role": "user", "content": "x"}] * count).prompts[0].size for count in (1, 2))
    assert two - one == 20 + len("user") + 1
