"""Whatever bytes a client sends: no exception, one reading only, and the same one however the bytes are split."""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import httptools
from hypothesis import example, given
from hypothesis import strategies as st

from kvquota_sidecar.proxy.answers import Answer
from kvquota_sidecar.proxy.client_side import ClientConnection
from kvquota_sidecar.proxy.head import Fault, Head, HeadReader, read_head
from kvquota_sidecar.proxy.hub import Hub, Patience
from kvquota_sidecar.proxy.reading import Request, RequestReader
from kvquota_sidecar.proxy.service import Client, Ends
from raw_pieces import cuts, single, split, spoilt

MAX_BODY_BYTES = 64

# What a client may send, and what has been used to make two servers read one request differently.

LINES = [b"GET / HTTP/1.1", b"POST /v1/completions?a=1 HTTP/1.1", b"POST / HTTP/1.0", b"HEAD /health HTTP/1.1"]
HEADERS = [
    *(b"Host: a", b"Host:", b"host: b:80", b"Content-Length: 5", b"content-length:  5 ", b"Content-Length: 0"),
    *(b"Content-Length: 05", b"Content-Length: +5", b"Content-Length: 5, 5", b"Content-Length: 65"),
    *(b"Transfer-Encoding: chunked", b"transfer-encoding: Chunked", b"Transfer-Encoding: gzip, chunked"),
    *(b"Transfer-Encoding : chunked", b" Transfer-Encoding: chunked", b"Transfer-Encoding: \x0bchunked"),
    *(b"Connection: close", b"Connection: keep-alive, X", b"Expect: 100-continue", b"Content-Encoding: gzip"),
    *(b"X: \xff\xfe", b"X: a\tb", b"X: a\x00b", b"X", b": x", b"Upgrade: h2c"),
]
BODIES = [
    b"",
    b"hello",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"5;a=b\r\nhello\r\n0\r\nT: x\r\n\r\n",
    b"5\r\nhello\r\n0\r\nT x\r\n\r\n",
]
PIECES = [
    *LINES,
    *HEADERS,
    *BODIES,
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"\n\n",
    b"\x00",
    b" ",
    b"0\r\n\r\n",
    b"ffffffffffff\r\n",
]


@st.composite
def good(draw: st.DrawFn) -> bytes:
    """A request that is to be taken."""
    body = draw(st.sampled_from([b"", b"a", b"hello\r\n", b"0123456789abcdef\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"]))
    lines = [draw(st.sampled_from([line for line in LINES if line.endswith(b".1")])), b"Host: a"]
    lines += draw(st.lists(st.sampled_from([b"X: a\tb", b"Y:", b"Connection: keep-alive", b"Z: \xff"]), max_size=2))
    if draw(st.booleans()):
        lines.append(draw(st.sampled_from([b"Transfer-Encoding: chunked", b"transfer-encoding:CHUNKED"])))
        body = chunked(body, draw(st.integers(1, 20)), draw(st.sampled_from([b"", b";a=b"])))
        body += draw(st.sampled_from([b"\r\n", b"T: x\r\n\r\n"]))
    elif body or draw(st.booleans()):
        lines.append(
            draw(st.sampled_from([b"Content-Length: %d", b"content-length:%d ", b"CONTENT-LENGTH:\t%d"])) % len(body)
        )
    return b"\r\n".join([*lines, b"", b""]) + body


def chunked(body: bytes, size: int, extension: bytes) -> bytes:
    """Its chunks, without what ends their trailers."""
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts) + b"0\r\n"


@st.composite
def odd(draw: st.DrawFn) -> bytes:
    """A request of parts that need not fit."""
    lines = [draw(st.sampled_from(LINES)), b"Host: a", *draw(st.lists(st.sampled_from(HEADERS), max_size=4))]
    return b"\r\n".join([*lines, b"", b""]) + draw(st.sampled_from(BODIES))


MUTATED = spoilt(st.lists(st.one_of(good(), good(), odd()), min_size=1, max_size=3).map(b"".join), PIECES)
WIRE = st.one_of(
    st.lists(good(), min_size=1, max_size=3).map(b"".join),
    MUTATED,
    MUTATED,
    st.lists(st.sampled_from(PIECES), max_size=20).map(b"".join),
    st.binary(max_size=200),
)
METHODS = frozenset({"GET", "POST", "HEAD"})  # others the second parser may not know
CUTS = cuts(400)


# The reader


def events(pieces: Iterable[bytes]) -> Iterator[object]:
    """What a connection would see; a fault, which may be either of two, is only that."""
    reader = RequestReader(MAX_BODY_BYTES)
    for piece in pieces:
        reader.feed(piece)
        while (event := reader.next_event()) is not None:
            if isinstance(event, Fault):
                assert event.status in (400, 413, 415, 417, 431)
                assert reader.stage == "failed"
                yield "fault"
                return
            yield event
        assert reader.unread <= sum(map(len, pieces if isinstance(pieces, list) else ()))


@given(WIRE, CUTS)
@example(b"GET / HTTP/1.1\rHost: a", [15])
@example(
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET / HTTP/1.1\r\n", [70]
)
def test_the_same_bytes_are_the_same_events_however_they_are_split(data: bytes, places: list[int]) -> None:
    whole = list(events([data]))
    assert list(events(split(data, places))) == whole
    assert list(events(single(data))) == whole


@given(WIRE)
def test_an_event_is_a_head_and_then_its_request_or_the_last(data: bytes) -> None:
    head: Head | None = None
    for event in events([data]):
        if isinstance(event, Head):
            assert head is None
            head = event
        elif isinstance(event, Request):
            assert event.head is head
            assert len(event.body) == (head.length if head.length is not None else len(event.body)) <= MAX_BODY_BYTES
            head = None


# No second reading


class Second:
    """What another server's parser makes of the same bytes: targets and bodies of whole requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, bytes]] = []
        self._target = self._body = b""

    def on_message_begin(self) -> None:
        self._target = self._body = b""

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.requests.append((self._target.decode("latin-1"), self._body))


def second_reading(data: bytes) -> list[tuple[str, bytes]]:
    """As far as it goes."""
    second = Second()
    parser = httptools.HttpRequestParser(second)
    with suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
        parser.feed_data(data)
    return second.requests


def own_reading(data: bytes) -> Iterator[Request]:
    """Up to the first request after which the connection ends, or after which the other parser takes it to be another
    protocol's."""
    for event in events([data]):
        if isinstance(event, Request):
            yield event
            if not event.head.keep_alive or event.head.values(b"upgrade"):
                break


@given(WIRE)
@example(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n")
def test_another_parser_finds_the_same_requests_in_what_is_taken(data: bytes) -> None:
    own, second = list(own_reading(data)), second_reading(data)
    known = [each for each in own if each.head.method in METHODS]
    if known == own:
        assert second[: len(own)] == [(each.head.target, each.body) for each in own]


# Heads that follow each other


@given(st.lists(st.one_of(MUTATED, good()).map(lambda data: data.partition(b"\r\n\r\n")[0] + b"\r\n"), max_size=6))
def test_a_head_is_read_as_if_none_had_been_before_it(heads: list[bytes]) -> None:
    reader = HeadReader()
    for lines in heads:
        assert reader.read(lines) == read_head(lines)


# The connection


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def write_eof(self) -> None: ...

    def get_extra_info(self, name: str) -> None: ...


class Digests:
    """A service that answers every request with what it read, at once or when it is told to. It turns none away at its
    head: how much of the body is there then decides whether the connection goes on.
    """

    is_leaving = False

    def __init__(self, *, at_once: bool) -> None:
        self._at_once = at_once
        self._waiting: list[tuple[Client, Answer]] = []

    def examine(self, head: Head, ends: Ends) -> str:
        return head.target

    def owner(self, context: str) -> None: ...

    def serve(self, request: Request, context: str, client: Client) -> None:
        said = f"{request.head.method} {context} {len(request.body)} {zlib.crc32(request.body)}"
        self._waiting.append((client, Answer(200, said.encode())))
        if self._at_once:
            self.answer()

    def answer(self) -> None:
        while self._waiting:
            client, answer = self._waiting.pop(0)
            client.answer(answer)

    def answer_fault(self, fault: Fault, head: Head | None, context: object) -> Answer:
        return Answer(400)


def answers(pieces: Sequence[bytes], *, at_once: bool) -> bytes:
    """All that a client is sent for these pieces, but the interim answers, which depend on how it sends."""
    service = Digests(at_once=at_once)
    hub: Hub[Any] = Hub(service, Patience(max_body_bytes=MAX_BODY_BYTES), lambda: 0.0, lambda: 0.0)
    wire, connection = Wire(), ClientConnection(hub)
    connection.connection_made(wire)  # type: ignore[arg-type]  # a fake of what is used
    for piece in pieces:
        if piece and not wire.closed:
            connection.data_received(piece)
            service.answer()
            if connection._reader.stage == "idle":
                assert hub.buffers.total_bytes == 0
    connection.connection_lost(None)
    assert (hub.buffers.total_bytes, len(hub.connections)) == (0, 0)
    return wire.written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")


@given(WIRE, CUTS)
@example(b"\r\n\r\n\r\n", [2])
def test_a_client_gets_the_same_answers_however_its_bytes_arrive(data: bytes, places: list[int]) -> None:
    whole = answers([data], at_once=True)
    assert answers(split(data, places), at_once=True) == whole
    assert answers(single(data), at_once=False) == whole
    assert whole.count(b"HTTP/1.1 200 ") <= data.count(b" HTTP/1.")
