"""Whatever bytes an engine answers with: an answer or an AnswerError, one reading only, however the bytes are split."""

from collections.abc import Iterable
from contextlib import suppress

import httptools
from hypothesis import example, given
from hypothesis import strategies as st

from kvquota_sidecar.proxy.engine_answer import AnswerError, AnswerHeads, AnswerReader
from raw_pieces import cuts, single, split, spoilt

STATUS_LINES = [
    b"HTTP/1.1 200 OK",
    b"HTTP/1.1 200",
    b"HTTP/1.0 200 OK",
    b"HTTP/1.1 204 No Content",
    b"HTTP/1.1 500 \xff",
]
INTERIM = [
    b"",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
    b"HTTP/1.1 101 X\r\n\r\n",
]
PLAIN = [
    b"Content-Type: application/json",
    b"Content-Type: text/event-stream",
    b"Connection: close",
    b"X:",
    b"Date: now",
]
ODD = [
    *(
        b"Content-Length: 5",
        b"content-length: 5",
        b"Content-Length: 05",
        b"Content-Length: -1",
        b"Content-Length: 5, 5",
    ),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b" folded", b"X : y", b"X: a\x00b", b": x"),
]
PIECES = [
    *STATUS_LINES,
    *PLAIN,
    *ODD,
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"hello",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"0\r\n\r\n",
]


@st.composite
def good(draw: st.DrawFn) -> bytes:
    """A whole answer that is to be taken."""
    body = draw(st.sampled_from([b"", b"{}", b"data: x\n\n" * 3, b"HTTP/1.1 200 OK\r\n\r\n"]))
    lines = [
        draw(st.sampled_from([b"HTTP/1.1 200 OK", b"HTTP/1.1 404 X"])),
        *draw(st.lists(st.sampled_from(PLAIN), max_size=2)),
    ]
    if draw(st.booleans()):
        lines.append(b"Transfer-Encoding: chunked")
        size = draw(st.integers(1, 20))
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    else:
        lines.append(b"Content-Length: %d" % len(body))
    return draw(st.sampled_from(INTERIM[:3])) + b"\r\n".join([*lines, b"", b""]) + body


@st.composite
def odd(draw: st.DrawFn) -> bytes:
    """An answer of parts that need not fit."""
    lines = [draw(st.sampled_from(STATUS_LINES)), *draw(st.lists(st.sampled_from([*PLAIN, *ODD]), max_size=3))]
    rest = draw(st.sampled_from([b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhel"]))
    return draw(st.sampled_from(INTERIM)) + b"\r\n".join([*lines, b"", b""]) + rest


MUTATED = spoilt(st.one_of(good(), odd()), PIECES)
WIRE = st.one_of(
    good(), MUTATED, MUTATED, st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join), st.binary(max_size=99)
)
CUTS = cuts(400)


def answer(pieces: Iterable[bytes], heads: AnswerHeads | None = None) -> object:
    """Head and body of what a connection brought that is closed after these bytes; `fault` where it is no answer."""
    reader, body = AnswerReader(heads or AnswerHeads()), b""
    try:
        for piece in pieces:
            body += reader.feed(piece)
        if not reader.done:
            reader.end_of_input()
    except AnswerError:
        return "fault"
    assert reader.head is not None
    assert reader.head.length in (None, len(body))
    return reader.head, body


@given(WIRE, CUTS)
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello!", [50])
def test_the_same_bytes_are_the_same_answer_however_they_are_split(data: bytes, places: list[int]) -> None:
    whole = answer([data])
    assert answer(split(data, places)) == whole
    assert answer(single(data)) == whole


@given(st.lists(WIRE, max_size=5))
def test_an_answer_is_read_as_if_none_had_been_before_it(answers: list[bytes]) -> None:
    heads = AnswerHeads()
    for data in answers:
        assert answer([data], heads) == answer([data])


class Second:
    """What another parser makes of the same bytes."""

    def __init__(self) -> None:
        self.body, self.messages = b"", 0

    def on_message_begin(self) -> None:
        self.body = b""
        self.messages += 1

    def on_body(self, body: bytes) -> None:
        self.body += body


@given(WIRE)
def test_another_parser_finds_the_same_body_in_what_is_taken(data: bytes) -> None:
    own = answer([data])
    if isinstance(own, tuple):
        second = Second()
        parser = httptools.HttpResponseParser(second)
        # Of an answer that never has a body it may refuse a length that nobody needs.
        bodiless = own[0].status in (204, 304)
        with suppress(httptools.HttpParserUpgrade, *[httptools.HttpParserError] * bodiless):
            parser.feed_data(data)
        assert second.body == own[1]
        assert parser.get_status_code() == own[0].status
