"""Whatever an engine streams: out goes what came in, but for the frames that were asked for here, however it is cut."""

import json
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvquota_sidecar.proxy import metering
from kvquota_sidecar.proxy.metering import StreamMeter, Usage, read_plain
from raw_pieces import cuts, single, split

CUTS = cuts(600)
COUNTS = st.one_of(st.integers(-2, 2**70), st.floats(), st.booleans(), st.none(), st.text(max_size=3))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
NAMES = ["prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "cache_read_input_tokens"]
USAGES = st.one_of(
    st.dictionaries(st.sampled_from([*NAMES, "prompt_tokens_details"]), COUNTS | ANYTHING, max_size=4), ANYTHING
)
CHOICES = st.lists(
    st.fixed_dictionaries(
        {}, optional={"index": st.integers(0, 3), "text": ANYTHING, "delta": ANYTHING | st.just({"content": "a"})}
    ),
    max_size=3,
)
EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["content_block_delta", "message_delta", "response.output_text.delta"]) | ANYTHING,
        "choices": CHOICES | ANYTHING,
        "usage": USAGES,
        "message": st.fixed_dictionaries({}, optional={"usage": USAGES}) | ANYTHING,
        "response": st.fixed_dictionaries({}, optional={"usage": USAGES}) | ANYTHING,
    },
)
ENDS = st.sampled_from([b"\n\n", b"\r\n\r\n"])
GARBAGE = st.lists(
    st.sampled_from(
        [b"data:", b"data: ", b"{", b"}", b"[", b"[DONE]", b"\n", b"\r", b"\r\n", b": ping", b"event: x", b"\xff"]
    ),
    max_size=12,
).map(b"".join)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """One event as an engine might write it."""
    data = json.dumps(draw(EVENTS)).encode("utf-8", "replace")
    opening = draw(st.sampled_from([b"data: ", b"data:", b"event: x\ndata: ", b": ping\ndata: "]))
    return opening + data + draw(ENDS)


def own_usage(prompt: int, output: int) -> bytes:
    """The frame that `include_usage` adds."""
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return b"data: " + json.dumps({"id": "a", "choices": [], "usage": usage}).encode() + b"\n\n"


STREAMS = st.lists(st.one_of(frames(), GARBAGE, st.binary(max_size=20)), max_size=12).map(b"".join)


def metered(pieces: Iterable[bytes], *, withholds: bool) -> tuple[bytes, int, Usage | None]:
    """What goes out in all, the tokens, and the usage; the count never falls on the way."""
    meter = StreamMeter(withholds_usage=withholds)
    out, produced = b"", 0
    for piece in pieces:
        out += meter.feed(piece)
        assert meter.produced >= produced
        produced = meter.produced
    return out + meter.rest(), produced, meter.usage


@given(STREAMS, CUTS)
@example(b"data: x\n\n\n", [])
@example(b"\n\r\n\r\n\n", [3])
def test_a_stream_passes_byte_for_byte_and_counts_alike_however_it_is_cut(data: bytes, places: list[int]) -> None:
    whole = metered([data], withholds=False)
    assert whole[0] == data
    assert metered(split(data, places), withholds=False) == whole
    assert metered(single(data), withholds=False) == whole


@given(STREAMS, CUTS)
@example(b"data: x\n\n\n", [])
@example(b"\n\r\n\r\n\n", [3])
def test_a_stream_that_may_hold_a_frame_of_ours_is_cut_down_alike_however_it_comes(
    data: bytes, places: list[int]
) -> None:
    whole = metered([data], withholds=True)
    assert metered(split(data, places), withholds=True) == whole
    assert metered(single(data), withholds=True) == whole
    if b"usage" not in data:
        assert whole[0] == data


WITHOUT_USAGE = st.one_of(
    frames().filter(lambda frame: b'"usage"' not in frame),
    GARBAGE.filter(lambda data: b"\n" not in data and b"\r" not in data).map(lambda data: data + b"\n\n"),
    st.just(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":null}\n\n'),
    st.sampled_from(
        [
            b"data: [DONE]\n\n",
            b'data: {"type":"message_delta","usage":{"output_tokens":4}}\n\n',
            b'data: {"choices":[{"index":0,"text":"a"}],"usage":{"completion_tokens":4}}\n\n',
            b'data: {"choices":[],"usage":{"total_tokens":4}}\n\n',
            b'data: {"choices":[],"usage":null}\n\n',
        ]
    ),
)


@given(
    st.lists(st.one_of(WITHOUT_USAGE, st.builds(own_usage, st.integers(0, 99), st.integers(0, 99))), max_size=10), CUTS
)
def test_only_the_frames_that_were_asked_for_here_are_left_out(stream: list[bytes], places: list[int]) -> None:
    out, _, _ = metered(split(b"".join(stream), places), withholds=True)
    assert out == b"".join(frame for frame in stream if b'"choices": [], "usage": {' not in frame)


@given(st.one_of(st.binary(max_size=200), EVENTS.map(lambda event: json.dumps(event).encode("utf-8", "replace"))))
def test_an_answer_of_any_bytes_has_a_usage_or_none(body: bytes) -> None:
    usage = read_plain(body).usage
    assert usage is None or {type(usage.prompt), type(usage.output), type(usage.cached)} <= {int, type(None)}


DEEP = b"[" * 100_000
ENDLESS = b"9" * 5000


@pytest.mark.parametrize(
    "body",
    [b'{"usage":' + DEEP, b'{"x":' + DEEP, b'{"usage":{"prompt_tokens":' + ENDLESS + b"}}", b'{"usage":' + ENDLESS],
    ids=["deep usage", "deep", "an endless count", "an endless usage"],
)
def test_what_is_deeper_or_longer_than_can_be_read_passes_and_counts_nothing(body: bytes) -> None:
    frame = b"data: " + body + b"\n\n"
    assert metered([frame], withholds=True) == (frame, 0, None)
    assert read_plain(body).usage is None


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), CUTS)
def test_frames_beyond_the_bound_pass_too(sizes: list[int], places: list[int]) -> None:
    data = b"".join(b"data: " + b"x" * size + b"\n\n" for size in sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metering, "MAX_FRAME_BYTES", 24)  # a bound that examples reach
        for withholds in (False, True):
            assert metered(split(data, places), withholds=withholds)[0] == data
            assert metered(single(data), withholds=withholds)[0] == data
