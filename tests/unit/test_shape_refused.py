"""Bodies that are refused: what cannot be read, what could be read in two ways, what cannot be accounted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvquota_sidecar.estimate.prompts import MAX_PROMPTS
from kvquota_sidecar.estimate.scan import MAX_FIELDS, MAX_TOP_LEVEL
from kvquota_sidecar.estimate.shape import Shape, read_shape
from kvquota_sidecar.estimate.weighing import MAX_ITEMS, MAX_PARTS
from kvquota_sidecar.refusals import Code, Refusal

CHAT, COMPLETION, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
MESSAGE = {"role": "user", "content": "x"}


def refused(route: str, body: bytes | dict[str, Any]) -> Refusal:
    told = read_shape(route, body if isinstance(body, bytes) else json.dumps(body).encode())
    assert isinstance(told, Refusal), told
    assert (told.status, told.retryable, told.retry_after) == (400, False, None)
    return told


MALFORMED = [
    pytest.param(CHAT, b"", None, "truncated", id="nothing"),
    pytest.param(CHAT, b'{"messages":[]', None, "truncated", id="cut off"),
    pytest.param(CHAT, b'{"messages":[]} {}', None, "trailing", id="two values"),
    pytest.param(CHAT, b"[]", None, "Expected `object`", id="not an object"),
    pytest.param(CHAT, b'\xef\xbb\xbf{"messages":[]}', None, "malformed", id="a byte order mark"),
    pytest.param(CHAT, '{"messages":[]}'.encode("utf-16"), None, "UTF-8", id="UTF-16"),
    pytest.param(CHAT, b'{"messages":[],"user":"\xff"}', None, "UTF-8", id="bytes that are no UTF-8, in any field"),
    pytest.param(CHAT, b'{"messages":[],"user":"\\ud800"}', None, "truncated", id="half a surrogate pair"),
    pytest.param(CHAT, b'{"messages":[],"temperature":NaN}', None, "malformed", id="NaN, in any field"),
    pytest.param(CHAT, b'{"messages":[],"temperature":Infinity}', None, "malformed", id="Infinity"),
    pytest.param(CHAT, b'{"messages":[],"user":"a\nb"}', None, "malformed", id="a control character"),
    pytest.param(CHAT, b'{"messages":[],"x":' + b"[" * 500 + b"]" * 500 + b"}", None, "128 levels", id="deep nesting"),
    pytest.param(CHAT, b'{"messages":[],"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}", None, "128 levels", id="deeper"),
    pytest.param(CHAT, b'{"messages":[],"n":1,"n":2}', "n", "names 'n' twice", id="a key twice"),
    pytest.param(CHAT, b'{"messages":[],"n":1,"\\u006e":2}', "n", "twice", id="a key twice, once with escapes"),
    pytest.param(CHAT, b'{"messages":[{"role":"a","role":"b"}]}', "role", "twice", id="a key twice in a message"),
    pytest.param(CHAT, b'{"messages":[],"x":[1e400]}', None, "out of range", id="a number beyond all"),
    pytest.param(CHAT, {"messages": {"a": 1}}, "messages", "Expected `array`", id="messages are an object"),
    pytest.param(RESPONSES, {"input": {"a": 1}}, "input", "Expected `array`", id="an input is an object"),
    pytest.param(CHAT, {}, "messages", "missing required field", id="no messages"),
    pytest.param(CHAT, {"messages": None}, "messages", "Expected `array`", id="messages are null"),
    pytest.param(CHAT, {"messages": "hello"}, "messages", "Expected `array`", id="messages are a text"),
    pytest.param(CHAT, {"messages": ["hello"]}, "messages[0]", "Expected `object`", id="a message is a text"),
    pytest.param(CHAT, {"messages": [{"content": 5}]}, "messages[0].content", "Expected", id="content is a number"),
    pytest.param(CHAT, {"messages": [{"content": [5]}]}, "messages[0].content[0]", "Expected", id="a part is a number"),
    pytest.param(
        CHAT, {"messages": [{"content": {}}]}, "messages[0].content", "Expected `array`", id="content an object"
    ),
    pytest.param(CHAT, {"messages": [{"type": 5}]}, "messages[0].type", "Expected `str", id="a type that is none"),
    pytest.param(
        CHAT,
        {"messages": [{"content": [{"type": []}]}]},
        "messages[0].content[0].type",
        "Expected `str",
        id="a list as type",
    ),
    pytest.param(CHAT, {"messages": [], "model": 5}, "model", "Expected `str", id="a model that is a number"),
    pytest.param(CHAT, {"messages": [], "stream": "true"}, "stream", "Expected `bool", id="stream is a text"),
    pytest.param(CHAT, {"messages": [], "stream": 1}, "stream", "Expected `bool", id="stream is a number"),
    pytest.param(
        CHAT,
        {"messages": [], "stream_options": {"include_usage": 1}},
        "stream_options.include_usage",
        "bool",
        id="include_usage is a number",
    ),
    pytest.param(CHAT, {"messages": [], "tools": {}}, "tools", "Expected", id="tools are an object"),
    pytest.param(CHAT, {"messages": [], "tools": [5]}, "tools[0]", "Expected", id="a tool is a number"),
    pytest.param(CHAT, {"messages": [], "chat_template_kwargs": 5}, "chat_template_kwargs", "Expected", id="kwargs"),
    pytest.param(CHAT, {"messages": [], "n": 0}, "n", ">= 1", id="no copies"),
    pytest.param(COMPLETION, {"prompt": 5}, "prompt", "Expected `array`", id="a prompt is a number"),
    pytest.param(COMPLETION, {"prompt": None}, "prompt", "Expected `array`", id="a prompt is null"),
    pytest.param(COMPLETION, {}, "prompt", "missing required field", id="no prompt"),
    pytest.param(COMPLETION, {"prompt": []}, "prompt", "has 0 prompts", id="no prompt in the list"),
    pytest.param(COMPLETION, {"prompt": ["x"] * (MAX_PROMPTS + 1)}, "prompt", "split", id="too many prompts"),
    pytest.param(COMPLETION, {"prompt": [1, -2]}, "prompt[0]", "Expected `str`", id="a negative token id"),
    pytest.param(COMPLETION, {"prompt": [1.5]}, "prompt[0]", "Expected `str`", id="half a token id"),
    pytest.param(COMPLETION, {"prompt": [["x"]]}, "prompt[0]", "Expected `str`", id="a list of a list of texts"),
    pytest.param(COMPLETION, {"prompt": "x", "suffix": 5}, "suffix", "Expected", id="a suffix is a number"),
    pytest.param(MESSAGES, {"messages": []}, "max_tokens", "missing required field", id="Anthropic without a limit"),
    pytest.param(MESSAGES, {"messages": [], "max_tokens": 5, "system": 5}, "system", "Expected", id="system a number"),
    pytest.param(RESPONSES, {"input": 5}, "input", "Expected `array`", id="an input is a number"),
    pytest.param(RESPONSES, {"input": [5]}, "input[0]", "Expected `object`", id="an item is a number"),
]


@pytest.mark.parametrize(("route", "body", "param", "reason"), MALFORMED)
def test_what_cannot_be_read_is_refused_and_the_field_named(
    route: str, body: bytes | dict[str, Any], param: str | None, reason: str
) -> None:
    told = refused(route, body)
    assert (told.code, told.param) == (Code.MALFORMED_REQUEST, param)
    assert reason in told.message
    assert any(word in told.message for word in ("Correct it", "split a longer list"))


def listed(count: int, each: bytes = b'{"role":"user"}') -> bytes:
    return b"[" + b",".join([each] * count) + b"]"


TEXTS = b'{"content":%s}' % listed(1000, b'"x"')
TOO_MUCH = [
    pytest.param(
        CHAT, b'{"messages":%s}' % listed(MAX_ITEMS + 1), "messages", "4097 messages and at most 4096", id="messages"
    ),
    pytest.param(RESPONSES, b'{"input":%s}' % listed(MAX_ITEMS + 1), "input", "at most 4096", id="items of an input"),
    pytest.param(
        CHAT,
        b'{"messages":[{"content":%s}]}' % listed(MAX_PARTS + 1, b'"x"'),
        "messages[0].content",
        "4096",
        id="parts",
    ),
    pytest.param(
        MESSAGES,
        b'{"max_tokens":1,"system":%s,"messages":[%s]}' % (listed(97, b'"x"'), b",".join([TEXTS] * 4)),
        "messages[3].content",
        "at most 4096 parts are taken in all",
        id="parts of all messages together",
    ),
    pytest.param(
        CHAT,
        b'{"messages":[]' + b"".join(b',"%d":1' % at for at in range(MAX_TOP_LEVEL)) + b"}",
        None,
        "257 fields at the top and at most 256",
        id="fields at the top",
    ),
    pytest.param(
        CHAT,
        b'{"messages":[],"x":{' + b",".join(b'"%d":1' % at for at in range(MAX_FIELDS)) + b"}}",
        None,
        "16386 fields in all its objects and at most 16384",
        id="fields within",
    ),
    pytest.param(
        COMPLETION,
        b'{"prompt":"a","x":%s}' % listed(16_000, b'{"a":"b"}'),
        None,
        "16002 objects and lists",
        id="small objects in a field that no engine knows",
    ),
    pytest.param(
        CHAT,
        b'{"messages":[],"x":%s,"y":{"a":1,"a":2}}' % listed(6000, b'{"a":"b"}'),
        None,
        "an object names a key twice",
        id="a second key where there is too much to look at each",
    ),
    pytest.param(
        CHAT,
        b'{"messages":[],"x":%s%s' % (listed(6000, b'{"a":"b"}'), b"".join(b',"%d":1' % at for at in range(300)))
        + b"}",
        None,
        "302 fields at the top and at most 256",
        id="fields at the top beside so much",
    ),
    pytest.param(
        CHAT,
        b'{"messages":[],"x":%s,"y":%s}' % (listed(6000, b'{"a":"b"}'), b"[" * 200 + b"]" * 200),
        None,
        "more than 128 levels deep",
        id="levels beside so much",
    ),
    pytest.param(CHAT, b'{"messages":%s}' % listed(50_000, b"{}"), None, "50002 objects and lists", id="empty objects"),
    pytest.param(COMPLETION, b'{"prompt":%s}' % listed(50_000, b"[]"), None, "objects and lists", id="empty lists"),
    pytest.param(COMPLETION, b'{"prompt":%s}' % listed(66_000, b'""'), None, "66001 strings", id="empty strings"),
    pytest.param(
        COMPLETION,
        b'{"prompt":%s}' % listed(66_000, rb'"\\\""'),
        None,
        "66001 strings",
        id="strings that end in escapes",
    ),
    pytest.param(CHAT, b'{"messages":%s}' % listed(66_000, b"null"), None, "65999 values", id="nulls"),
    pytest.param(COMPLETION, b'{"prompt":%s}' % listed(66_000, b"-1"), None, "at most 32768", id="negative numbers"),
    pytest.param(COMPLETION, b'{"prompt":[[1],%s]}' % listed(66_000, b"1.5"), None, "32768", id="halves"),
    pytest.param(CHAT, b'{"messages":%s}' % listed(66_000, b"7"), "messages[0]", "Expected `object`", id="numbers"),
]


@pytest.mark.parametrize(("route", "body", "param", "reason"), TOO_MUCH)
def test_more_structure_than_is_looked_at_is_refused_and_the_bound_named(
    route: str, body: bytes, param: str | None, reason: str
) -> None:
    told = refused(route, body)
    assert (told.code, told.param) == (Code.MALFORMED_REQUEST, param)
    assert reason in told.message
    assert len(told.message) < 300


FULL = [
    pytest.param(CHAT, b'{"messages":%s}' % listed(MAX_ITEMS), id="as many messages as may be"),
    pytest.param(CHAT, b'{"messages":[{"content":%s}]}' % listed(MAX_PARTS, b'"x"'), id="as many parts"),
    pytest.param(
        CHAT,
        b'{"messages":[]' + b"".join(b',"%d":1' % at for at in range(MAX_TOP_LEVEL - 1)) + b"}",
        id="as many fields at the top",
    ),
    pytest.param(
        CHAT,
        b'{"messages":[],"x":{' + b",".join(b'"%d":1' % at for at in range(MAX_FIELDS - 2)) + b"}}",
        id="as many fields",
    ),
    pytest.param(COMPLETION, b'{"prompt":%s}' % listed(500_000, b"7"), id="as many token ids as somebody likes"),
    pytest.param(COMPLETION, b'{"prompt":[%s]}' % b",".join([listed(500, b"7")] * 1000), id="in several prompts too"),
    pytest.param(
        CHAT,
        b'{"messages":[{"content":"%s"}]}' % (rb"{\"a\":[{}, \\" * 100_000),
        id="a text of all of this, as one string",
    ),
]


@pytest.mark.parametrize(("route", "body"), FULL)
def test_what_is_within_the_bounds_is_taken(route: str, body: bytes) -> None:
    assert isinstance(read_shape(route, body), Shape)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "n", "best_of"])
@pytest.mark.parametrize("value", ["true", "1.0", "1.5", '"5"', "-1", str(2**31), str(2**63), "1e400", "[]"])
def test_a_number_that_engine_and_ledger_might_read_differently_is_refused(field: str, value: str) -> None:
    told = refused(CHAT, f'{{"messages":[],"{field}":{value}}}'.encode())
    assert (told.code, told.param) == (Code.MALFORMED_REQUEST, field)


UNSUPPORTED = [
    *(
        pytest.param(route, {field: True}, field, id=f"{field} on {route}")
        for route in (CHAT, COMPLETION, MESSAGES, RESPONSES)
        for field in ("store", "background")
    ),
    pytest.param(RESPONSES, {"previous_response_id": "r"}, "previous_response_id", id="an earlier response"),
    pytest.param(RESPONSES, {"conversation": {"id": "c"}}, "conversation", id="a stored conversation"),
    pytest.param(RESPONSES, {"prompt": {"id": "p"}}, "prompt", id="a stored prompt"),
    pytest.param(CHAT, {"kv_transfer_params": {}}, "kv_transfer_params", id="a transfer of cache"),
    pytest.param(CHAT, {"ec_transfer_params": {}}, "ec_transfer_params", id="a transfer of encodings"),
    pytest.param(COMPLETION, {"prompt_embeds": "x"}, "prompt_embeds", id="a prompt as vectors"),
    pytest.param(CHAT, {"chat_template": "{{ x }}"}, "chat_template", id="a template of one's own"),
    pytest.param(
        CHAT,
        {"chat_template_kwargs": {"chat_template": "x"}},
        "chat_template_kwargs.chat_template",
        id="by the back door",
    ),
    *(
        pytest.param(
            route,
            {"chat_template_kwargs": {"chat_template": None}},
            "chat_template_kwargs.chat_template",
            id=f"by the back door of {route}",
        )
        for route in (COMPLETION, MESSAGES, RESPONSES)
    ),
    pytest.param(CHAT, {"mm_processor_kwargs": {"max_pixels": 10**9}}, "mm_processor_kwargs", id="larger images"),
    pytest.param(CHAT, {"media_io_kwargs": {"video": {"num_frames": 999}}}, "media_io_kwargs", id="longer videos"),
    pytest.param(COMPLETION, {"session_params": {"id": "s"}}, "session_params", id="a session of SGLang"),
    pytest.param(CHAT, {"bootstrap_room": 0}, "bootstrap_room", id="a transfer of SGLang, zero too"),
    pytest.param(CHAT, {"bootstrap_host": "h"}, "bootstrap_host", id="where SGLang transfers to"),
    pytest.param(CHAT, {"bootstrap_port": 1}, "bootstrap_port", id="and through which port"),
    pytest.param(COMPLETION, {"id_slot": 3}, "id_slot", id="a slot of llama.cpp"),
    pytest.param(COMPLETION, {"n_cmpl": 3}, "n_cmpl", id="outputs of llama.cpp"),
    pytest.param(CHAT, {"n_predict": 5}, "n_predict", id="a limit of another name"),
    pytest.param(
        CHAT,
        {"messages": [{"content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}]},
        "messages[0].content[1].type",
        id="an image",
    ),
    pytest.param(
        CHAT,
        {"messages": [MESSAGE, {"content": [{"image_url": "x"}]}]},
        "messages[1].content[0].type",
        id="a part without type",
    ),
    pytest.param(
        CHAT, {"messages": [{"content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type", id="audio"
    ),
    pytest.param(
        CHAT, {"tools": [{"type": "function"}, {"type": "web_search"}]}, "tools[1].type", id="a tool of the engine"
    ),
    pytest.param(MESSAGES, {"tools": [{"type": "bash_20250124"}]}, "tools[0].type", id="a tool of Anthropic"),
    pytest.param(RESPONSES, {"tools": [{"type": "code_interpreter"}]}, "tools[0].type", id="a tool of a response"),
    pytest.param(MESSAGES, {"system": [{"type": "image"}]}, "system[0].type", id="an image in system"),
    pytest.param(
        MESSAGES, {"messages": [{"content": [{"type": "document"}]}]}, "messages[0].content[0].type", id="a document"
    ),
    pytest.param(
        MESSAGES,
        {"messages": [{"content": [{"type": "tool_result", "content": [{"type": "image"}]}]}]},
        "messages[0].content[0].content[0].type",
        id="an image in the result of a tool",
    ),
    pytest.param(
        MESSAGES,
        {"messages": [{"content": [{"type": "tool_result", "content": [{"type": "tool_result", "content": "x"}]}]}]},
        "messages[0].content[0].content[0].type",
        id="results within results",
    ),
    pytest.param(RESPONSES, {"input": [{"type": "item_reference", "id": "i"}]}, "input[0].type", id="a stored item"),
    pytest.param(
        RESPONSES,
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0].content[0].type",
        id="an image in the input",
    ),
    pytest.param(
        RESPONSES,
        {"input": [{"type": "function_call_output", "output": [{"type": "input_file"}]}]},
        "input[0].output[0].type",
        id="a file in an output",
    ),
]
WHOLE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [MESSAGE]},
    COMPLETION: {"prompt": "x"},
    MESSAGES: {"messages": [MESSAGE], "max_tokens": 5},
    RESPONSES: {"input": "x"},
}


@pytest.mark.parametrize(("route", "fields", "param"), UNSUPPORTED)
def test_what_outlives_the_answer_or_hides_its_size_is_refused(route: str, fields: dict[str, Any], param: str) -> None:
    told = refused(route, {**WHOLE[route], **fields})
    assert (told.code, told.param) == (Code.NOT_SUPPORTED_UNDER_QUOTA, param)
    assert repr(param) in told.message
    assert told.message.endswith("Leave it out.")


@pytest.mark.parametrize("value", [None, False])
def test_what_is_switched_off_is_not_refused(value: object) -> None:
    for field in ("store", "background", "previous_response_id"):
        assert isinstance(read_shape(RESPONSES, json.dumps({"input": "x", field: value}).encode()), Shape)


def test_of_several_unsupported_fields_always_the_same_one_is_named() -> None:
    fields = {"background": True, "store": True, "previous_response_id": "r"}
    params = {
        refused(RESPONSES, {"input": "x", **dict(order)}).param for order in (fields.items(), reversed(fields.items()))
    }
    assert params == {"store"}


def test_a_route_that_is_not_accounted_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError):
        read_shape("/v1/audio/speech", b"{}")
