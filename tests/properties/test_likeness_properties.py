"""Frames that are taken to be like the one before count what they would count if each were read."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from kvquota_sidecar.proxy.likeness import Likeness
from kvquota_sidecar.proxy.metering import StreamMeter

TEXTS = st.one_of(
    st.text(max_size=4),
    st.sampled_from(
        ["", "token ", 'a"b', "back\\slash", '"content":"', "ü", "\\u0041", '","finish_reason":"stop', "}"]
    ),
)
ENDS = st.sampled_from([None, "stop", "abort", "length"])
HEADS = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """The data of one frame: mostly a token, and now and then what streams have beside those."""
    text, end = draw(TEXTS), draw(st.one_of(st.none(), st.none(), st.none(), ENDS))
    choice: dict[str, Any] = draw(
        st.sampled_from(
            [
                {"index": 0, "delta": {"content": text}, "logprobs": None},
                {"index": 0, "delta": {"content": text}, "logprobs": None},
                {"index": 0, "delta": {"role": "assistant", "content": text}},
                {"index": 0, "delta": {"reasoning_content": text}},
                {"index": 0, "delta": {"content": None, "tool_calls": [{"function": {"arguments": text}}]}},
                {"index": 0, "text": text},
                {"index": 0, "text": text, "logprobs": {"content": text}},
            ]
        )
    )
    frame: dict[str, Any] = {**HEADS, "choices": [{**choice, "finish_reason": end}]}
    if draw(st.integers(0, 9)) == 0:
        frame["choices"].append({"index": 1, "delta": {"content": draw(TEXTS)}})
    if draw(st.integers(0, 9)) == 0:
        frame["usage"] = {"prompt_tokens": 3, "completion_tokens": draw(st.integers(0, 9))}
    if draw(st.integers(0, 9)) == 0:
        frame["error"] = {"message": text}
    separators = draw(st.sampled_from([(",", ":"), (",", ":"), (", ", ": ")]))
    return json.dumps(frame, separators=separators, ensure_ascii=draw(st.booleans())).encode()


def framed(payload: bytes) -> bytes:
    """The frame that holds such data."""
    return b"data: %b\n\n" % payload


def learn(likeness: Likeness, payload: bytes, text: str) -> None:
    likeness.learn(framed(payload).removeprefix(b"data:"), text)


def plain(text: str) -> bytes:
    return json.dumps(
        {**HEADS, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}, separators=(",", ":")
    ).encode()


@given(st.lists(frames(), max_size=12))
@example([plain("a"), plain("b"), plain(""), plain('"'), plain("c")])
@example([plain("a"), plain("b").replace(b'"b"}', b'"b"},"finish_reason":null},{"index":1,"delta":{"content":"c"}')])
def test_a_stream_shows_what_its_frames_show_one_by_one(data: list[bytes]) -> None:
    whole = StreamMeter(withholds_usage=False)
    alone = [StreamMeter(withholds_usage=False) for _ in data]
    for meter, payload in zip(alone, data, strict=True):
        line = framed(payload)
        assert whole.feed(line) == meter.feed(line) == line
    assert whole.shown == sum(meter.shown for meter in alone)
    assert whole.has_failed == any(meter.has_failed for meter in alone)


@given(frames(), frames(), st.text(min_size=1, max_size=4))
def test_what_matches_differs_in_its_text_alone(learnt: bytes, other: bytes, text: str) -> None:
    likeness = Likeness()
    learn(likeness, plain(text), text)
    learn(likeness, learnt, text)
    if likeness.matches(framed(other)):
        first, second = json.loads(learnt), json.loads(other)
        for frame in (first, second):
            choice = frame["choices"][0]
            assert choice.get("text") or choice["delta"]["content"]
            choice.pop("text", None)
            choice.get("delta", {}).pop("content", None)
        assert first == second


def test_a_usual_stream_is_matched() -> None:
    likeness = Likeness()
    assert not likeness.matches(framed(plain("a")))
    learn(likeness, plain("a"), "a")
    alike = [likeness.matches(framed(plain(text))) for text in ("b", "more words", "n\n", "ü", "", 'q"', "\\")]
    assert alike == [True, True, True, True, False, False, False]
    learn(likeness, b'{"choices":[{"text":"a"}]}', "a")
    assert likeness.matches(framed(b'{"choices":[{"text":"b"}]}'))
    learn(likeness, b"{}", "a")
    assert not likeness.matches(framed(b"{}"))


@given(st.binary(max_size=3), st.integers(1, 8))
def test_only_one_whole_frame_is_matched(text: bytes, cut: int) -> None:
    likeness = Likeness()
    learn(likeness, plain("a"), "a")
    frame = framed(plain("a")).replace(b'"content":"a"', b'"content":"%b"' % text)
    assert not likeness.matches(frame[:-cut])
    assert not likeness.matches(frame[cut:])
    assert not likeness.matches(frame + frame)
    if likeness.matches(frame):
        assert frame.count(b"\n") == 2


def test_what_is_no_whole_line_is_not_learnt() -> None:
    likeness = Likeness()
    likeness.learn(plain("a"), "a")
    assert not likeness.matches(b"data:" + plain("a"))
