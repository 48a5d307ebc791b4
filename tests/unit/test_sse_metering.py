"""What streams and plain answers say of tokens, however they are cut; and which bytes pass."""

import json
from typing import Any

import pytest

from kvquota_sidecar.proxy.metering import MAX_FRAME_BYTES, PlainAnswer, StreamMeter, Usage, read_plain
from kvquota_sidecar.proxy.usage_scope import Scope, usage_scope


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def named(name: str, **fields: Any) -> bytes:
    return f"event: {name}\n".encode() + event(type=name, **fields)


def chat(*texts: str, **more: Any) -> bytes:
    return event(choices=[{"index": at, "delta": {"content": text}} for at, text in enumerate(texts)], **more)


DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}

CACHING = {"input_tokens": 23, "output_tokens": 1, "cache_creation_input_tokens": 32, "cache_read_input_tokens": 7}
RESPONSE_DELTAS = (
    "output_text", "refusal", "reasoning_text", "reasoning_summary_text", "function_call_arguments",
    "custom_tool_call_input", "mcp_call_arguments", "code_interpreter_call_code",
)  # fmt: skip
BLOCK_DELTAS = ("text_delta", "thinking_delta", "input_json_delta", "signature_delta")

STREAMS: dict[str, tuple[bytes, int, Usage | None]] = {
    "nothing": (b"", 0, None),
    "one token a frame": (chat("a") + chat("b") + DONE, 2, None),
    "a role without text is no token": (
        event(choices=[{"delta": {"role": "assistant", "content": ""}}]) + chat("a"),
        1,
        None,
    ),
    "every choice counts": (chat("a", "b", "c"), 3, None),
    "reasoning counts": (
        event(choices=[{"delta": {"reasoning_content": "a"}}]) + event(choices=[{"delta": {"reasoning": "b"}}]),
        2,
        None,
    ),
    "tool calls count": (event(choices=[{"delta": {"tool_calls": [{"index": 0}]}}]), 1, None),
    "a delta that is no object": (event(choices=[{"delta": "a", "text": "b"}]) + chat("a"), 2, None),
    "completions have text, be it empty": (event(choices=[{"text": "a"}, {"text": ""}]), 2, None),
    "a token without text counts": (event(choices=[{"delta": {"content": ""}}]), 1, None),
    "an empty delta counts": (event(choices=[{"delta": {}}, {"delta": {"tool_calls": []}}]), 2, None),
    "the end of an answer is a token too": (
        event(choices=[{"delta": {"content": ""}, "finish_reason": "stop"}]) + DONE,
        1,
        None,
    ),
    "a role with text is one": (event(choices=[{"delta": {"role": "assistant", "content": "a"}}]), 1, None),
    "a role for every choice is none": (event(choices=[{"delta": {"role": "assistant"}}] * 2), 0, None),
    "a choice without either": (event(choices=[{"index": 0}]), 0, None),
    "usage at the end beats the count": (chat("a") + event(choices=[], usage=USAGE) + DONE, 5, Usage(7, 5)),
    "usage with every frame": (
        chat("ab", usage=USAGE | {"completion_tokens": 2}) + chat("c", usage=USAGE),
        5,
        Usage(7, 5),
    ),
    "a usage that is lower changes nothing": (
        chat("a") + chat("b") + chat("c", usage={"completion_tokens": 1}),
        3,
        Usage(None, 1),
    ),
    "a usage that is null": (chat("a", usage=None), 1, None),
    "a usage of nonsense": (chat("a", usage={"prompt_tokens": -1, "completion_tokens": True}), 1, None),
    "a usage that is no object": (chat("a", usage=[1]), 1, None),
    "an error of the engine": (chat("a") + event(error={"message": "x"}) + DONE, 1, None),
    "a comment": (b": ping\n\n" + chat("a"), 1, None),
    "an event without data": (b"event: ping\n\n" + chat("a"), 1, None),
    "data that is no JSON": (b"data: {\n\n" + chat("a"), 1, None),
    "data that is no UTF-8": (b'data: {"choices":[{"text":"\xff"}]}\n\n' + chat("a"), 1, None),
    "data without a space": (b'data:{"choices":[{"text":"a"}]}\n\n', 1, None),
    "data over two lines": (b'data: {"choices":\ndata: [{"text":"a"}]}\n\n', 1, None),
    "lines that end in CR LF": (
        b'data: {"choices":[{"text":"a"}]}\r\n\r\ndata: {"choices":[{"text":"b"}]}\r\n\r\n',
        2,
        None,
    ),
    "Anthropic's events": (
        named("message_start", message={"usage": {"input_tokens": 9, "output_tokens": 1}})
        + named("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"})
        + named("content_block_delta", index=0, delta={"type": "text_delta", "text": "b"})
        + named("message_delta", delta={}, usage={"output_tokens": 4})
        + named("message_stop"),
        4,
        Usage(9, 4),
    ),
    "what Anthropic's cache holds is of the prompt": (
        named("message_start", message={"usage": CACHING})
        + named("message_delta", delta={}, usage={"output_tokens": 4}),
        4,
        Usage(62, 4, 7),
    ),
    "what OpenAI's cache holds is of the prompt already": (
        event(choices=[], usage=USAGE | {"prompt_tokens_details": {"cached_tokens": 3}}),
        5,
        Usage(7, 5, 3),
    ),
    "the events of responses": (
        named("response.created", response={"usage": None})
        + named("response.output_text.delta", delta="a")
        + named("response.output_text.delta", delta="b")
        + named("response.completed", response={"usage": {"input_tokens": 3, "output_tokens": 2}}),
        2,
        Usage(3, 2),
    ),
    "whatever a response says bit by bit": (
        b"".join([named(f"response.{each}.delta", delta="") for each in RESPONSE_DELTAS])
        + named("response.output_text.done", text="a")
        + named("response.completed", response={"usage": None}),
        len(RESPONSE_DELTAS),
        None,
    ),
    "whatever Anthropic's says bit by bit": (
        b"".join([named("content_block_delta", index=0, delta={"type": each}) for each in BLOCK_DELTAS]),
        len(BLOCK_DELTAS),
        None,
    ),
    "an odd run of line ends": (b"\n" + chat("a") + b"\n" + chat("b") + b"\n\n\n", 2, None),
    "JSON nested beyond any reader": (b'data: {"x":' + b"[" * 3000 + b"]" * 3000 + b"}\n\n" + chat("a"), 1, None),
    "a type that is no text": (event(type=3), 0, None),
}


def metered(
    parts: list[bytes], *, withholds_usage: bool = False, scope: Scope = "Answer"
) -> tuple[int, Usage | None, bytes]:
    meter = StreamMeter(withholds_usage=withholds_usage, scope=scope)
    passed = b"".join([meter.feed(part) for part in parts])
    return meter.produced, meter.usage, passed + meter.rest()


@pytest.mark.parametrize(("stream", "produced", "usage"), STREAMS.values(), ids=STREAMS)
def test_a_stream_is_counted_and_passes_unchanged_however_it_is_cut(
    stream: bytes, produced: int, usage: Usage | None
) -> None:
    expected = (produced, usage, stream)
    assert metered([stream]) == expected
    assert metered([stream[at : at + 1] for at in range(len(stream))]) == expected
    step = max(1, len(stream) // 500)
    assert all(metered([stream[:at], stream[at:]]) == expected for at in range(0, len(stream), step))


# What llama.cpp's server (build 11549) has sent, without its times and names. Where a token ends within a character it
# has no frame of its own; each output is counted where it ends, in a usage of its own.


def part(index: int, *, reason: str | None = None, **delta: Any) -> bytes:
    return event(choices=[{"finish_reason": reason, "index": index, "delta": delta}])


def piece(index: int, text: str, *, reason: str | None = None, **more: Any) -> bytes:
    return event(choices=[{"text": text, "index": index, "logprobs": None, "finish_reason": reason}], **more)


def counted(output: int, prompt: int = 31) -> dict[str, Any]:
    details = {"cached_tokens": prompt - 1}
    return {"completion_tokens": output, "prompt_tokens": prompt, "prompt_tokens_details": details}


def counted_part(output: int) -> bytes:
    return event(choices=[], usage=counted(output))


LLAMACPP_STREAMS: dict[str, tuple[list[bytes], int, Usage]] = {
    "a chat": (
        [
            part(0, role="assistant", content=None),
            *[part(0, content=text) for text in ("+", "\x16", "nto")],
            part(0, reason="length"),
            counted_part(3),
            DONE,
        ],
        3,
        Usage(31, 3, 30),
    ),
    "two outputs of a chat, one of which ends early": (
        [
            part(1, role="assistant", content=None),
            part(0, role="assistant", content=None),
            part(1, content="sw"),
            part(0, content="ime"),
            part(0, content="\ufffd d"),
            part(0, reason="stop"),
            counted_part(4),
            *[part(1, content=text) for text in ("first", " being", "\ufffd", " c", "\ufffdemory")],
            part(1, reason="stop"),
            counted_part(11),
            DONE,
        ],
        15,
        Usage(31, 15, 30),
    ),
    "a completion": (
        [*[piece(0, text) for text in (" no", "ice", "0")], piece(0, "", reason="length", usage=counted(3, 25)), DONE],
        3,
        Usage(25, 3, 24),
    ),
    "two outputs of a completion": (
        [
            *[piece(1, text) for text in ("0", "ory")],
            piece(0, "\ufffdce"),
            piece(1, "ef"),
            piece(1, "", reason="length", usage=counted(3, 25)),
            piece(0, "\ufffd"),
            piece(0, "", reason="length", usage=counted(3, 25)),
            DONE,
        ],
        6,
        Usage(25, 6, 24),
    ),
    "Messages, whose first usage is no output's": (
        [
            named("message_start", message={"usage": {"cache_read_input_tokens": 30, "input_tokens": 1}}),
            *[named("content_block_delta", delta={"type": "text_delta", "text": text}) for text in "abc"],
            named("message_delta", delta={"stop_reason": "max_tokens"}, usage={"output_tokens": 2}),
            named("message_delta", delta={"stop_reason": "max_tokens"}, usage={"output_tokens": 3}),
            named("message_stop"),
        ],
        3,
        Usage(31, 3, 30),
    ),
}


@pytest.mark.parametrize(("frames", "produced", "usage"), LLAMACPP_STREAMS.values(), ids=LLAMACPP_STREAMS)
def test_what_an_engine_counts_for_each_output_is_added_up(frames: list[bytes], produced: int, usage: Usage) -> None:
    stream = b"".join(frames)
    for way in ([stream], frames, [stream[at : at + 1] for at in range(len(stream))]):
        assert metered(way, scope="Output") == (produced, usage, stream)


def test_while_outputs_run_never_more_is_counted_than_there_is() -> None:
    meter, produced = StreamMeter(withholds_usage=False, scope="Output"), []
    for frame in LLAMACPP_STREAMS["two outputs of a completion"][0]:
        meter.feed(frame)
        produced.append(int(meter.produced))
    assert (produced, meter.shown) == ([1, 2, 3, 4, 4, 5, 6, 6], 5)


def test_a_frame_stands_for_as_many_tokens_as_earlier_ones_until_the_engine_has_counted() -> None:
    meter = StreamMeter(withholds_usage=False, tokens_per_frame=2.5)
    produced = []
    for frame in (
        *[chat("a")] * 3,
        chat("a", usage={"completion_tokens": 5}),
        chat("a"),
        event(choices=[], usage=USAGE),
    ):
        meter.feed(frame)
        produced.append(meter.produced)
    assert (produced, meter.shown) == ([2, 5, 7, 5, 7, 6], 5)


def test_bytes_pass_in_whole_frames_only() -> None:
    meter = StreamMeter(withholds_usage=False)
    first, second = chat("a"), chat("b")
    assert meter.feed(first + second[:5]) == first
    assert meter.feed(second[5:-1]) == b""
    assert meter.feed(second[-1:]) == second
    assert meter.rest() == b""


WITHHELD = {
    "the last frame": ([chat("a"), event(choices=[], usage=USAGE), DONE], [0, 2]),
    "a frame between others": ([chat("a"), event(choices=[], usage=USAGE), chat("b")], [0, 2]),
    "the only frame": ([event(choices=[], usage=USAGE)], []),
    "not a frame that has text too": ([chat("a", usage=USAGE), DONE], [0, 1]),
    "not a line end beyond a frame": (
        [chat("a"), b"\n", event(choices=[], usage=USAGE), b"\n", DONE, b"\n"],
        [0, 1, 3, 4, 5],
    ),
    "not a frame without usage": ([event(choices=[]), event(choices=[], usage=None), DONE], [0, 1, 2]),
}


@pytest.mark.parametrize(("frames", "kept"), WITHHELD.values(), ids=WITHHELD)
def test_only_a_frame_of_usage_alone_is_withheld(frames: list[bytes], kept: list[int]) -> None:
    stream, expected = b"".join(frames), b"".join(frames[at] for at in kept)
    ways = [[stream], frames, [stream[at : at + 1] for at in range(len(stream))]]
    assert [metered(way, withholds_usage=True)[2] for way in ways] == [expected] * 3


def test_a_frame_beyond_the_limit_passes_in_pieces_uncounted_and_the_next_is_counted_again() -> None:
    huge = b'data: {"choices":[{"text":"' + b"x" * MAX_FRAME_BYTES + b'"}]}\n\n'
    meter = StreamMeter(withholds_usage=True)
    pieces = [meter.feed(huge[: MAX_FRAME_BYTES + 5]), meter.feed(huge[MAX_FRAME_BYTES + 5 :]), meter.feed(chat("a"))]
    assert b"".join(pieces) == huge + chat("a")
    assert len(pieces[0]) == MAX_FRAME_BYTES + 5
    assert meter.produced == 1


def test_nothing_can_be_added_in_the_middle_of_a_frame_that_passes_in_pieces() -> None:
    huge = b'data: {"choices":[{"text":"' + b"x" * MAX_FRAME_BYTES + b'"}]}\n\n'
    meter, seen = StreamMeter(withholds_usage=False), []
    for part in (chat("a"), b"data: {", huge[7:-3], b"", huge[-3:], chat("b")):
        meter.feed(part)
        seen.append(meter.is_between_frames)
    assert seen == [True, True, False, False, True, True]


PLAIN: dict[str, tuple[bytes, Usage | None]] = {
    "OpenAI's": (json.dumps({"choices": [], "usage": USAGE}).encode(), Usage(7, 5)),
    "Anthropic's and of responses": (b'{"usage":{"input_tokens":3,"output_tokens":2}}', Usage(3, 2)),
    "with what the cache held": (
        b'{"usage":{"input_tokens":3,"output_tokens":2,"input_tokens_details":{"cached_tokens":1}}}',
        Usage(3, 2, 1),
    ),
    "with details that say nothing": (b'{"usage":{"prompt_tokens":3,"prompt_tokens_details":null}}', Usage(3, None)),
    "half of it": (b'{"usage":{"prompt_tokens":3}}', Usage(3, None)),
    "more than any engine keeps": (b'{"usage":{"prompt_tokens":2147483648,"completion_tokens":5}}', Usage(None, 5)),
    "a number beyond all": (b'{"usage":{"prompt_tokens":99999999999999999999999}}', None),
    "none": (b'{"choices":[]}', None),
    "no JSON": (b"<html>", None),
    "no object": (b"[1]", None),
    "nothing": (b"", None),
    "JSON nested beyond any reader": (b'{"x":' + b"[" * 3000 + b"]" * 3000 + b"}", None),
}


@pytest.mark.parametrize(("body", "usage"), PLAIN.values(), ids=PLAIN)
def test_usage_of_a_plain_answer(body: bytes, usage: Usage | None) -> None:
    assert read_plain(body).usage == usage


OF_EACH: dict[str, tuple[Any, Usage | None]] = {
    "one output": ({"choices": [{}], "usage": counted(3)}, Usage(31, 3, 30)),
    "two outputs": (
        {"choices": [{"finish_reason": "length", "index": at} for at in range(2)], "usage": counted(3)},
        Usage(31, 6, 30),
    ),
    "another dialect": ({"usage": {"input_tokens": 3, "output_tokens": 2}}, Usage(3, 2)),
    "no output counted": ({"choices": [{}] * 2, "usage": {"prompt_tokens": 3}}, Usage(3, None)),
    "nothing counted": ({"choices": [{}] * 2}, None),
}


@pytest.mark.parametrize(("answer", "usage"), OF_EACH.values(), ids=OF_EACH)
def test_the_outputs_that_a_plain_answer_does_not_count_are_as_long_as_the_one_that_it_does(
    answer: Any, usage: Usage | None
) -> None:
    assert read_plain(json.dumps(answer).encode(), "Output") == PlainAnswer(usage)


def test_of_whose_usage_is_of_what() -> None:
    asked = [(engine, prompts) for engine in ("vLLM", "SGLang", "LlamaCpp", "OpenAI") for prompts in (1, 2)]
    assert {each: scope for each in asked if (scope := usage_scope(*each)) != "Answer"} == {
        ("LlamaCpp", 1): "Output",
        ("LlamaCpp", 2): "Prompt",
    }
