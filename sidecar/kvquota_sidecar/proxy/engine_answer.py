"""Answers out of the engine's bytes.

Decides where an answer's head and body begin and end. Sans-I/O: the connection feeds bytes and takes what they gave.

Invariants:

1. Interim answers (1xx) are passed over; a switch of protocols is a fault: nothing is ever tunnelled.
2. Body bytes come out as the engine sent them, without its framing, in order and once.
3. Bytes after an answer's end are a fault: the engine was not asked for anything.
4. A head that two readers could frame differently is a fault, as with requests (`proxy.head`). One that was read
   before, but for its length, is read as it was then; what is remembered of heads is bounded.
"""

from __future__ import annotations

import re
from typing import Final

from kvquota_sidecar.proxy.answers import encode_fields, passed_on
from kvquota_sidecar.proxy.chunked import Chunks
from kvquota_sidecar.proxy.head import Headers, are_fields, connection_options, split_fields
from kvquota_sidecar.records import LeafValue

MAX_HEAD_BYTES: Final = 64 * 1024  # what the engine's own server may send; far above what engines do send
MAX_KNOWN: Final = 64  # heads remembered: an engine's differ by their kind, and by their Date once a second
_MAX_KNOWN_BYTES: Final = 4096  # of one that is remembered
_EVENTS: Final = b"text/event-stream"
_BODILESS: Final = frozenset({204, 304})
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.(?P<minor>[01]) (?P<status>[1-9][0-9][0-9])(?: [\t\x20-\x7e\x80-\xff]*)?")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_LENGTH_DIGITS: Final = 15
_LENGTH_LINE: Final = b"\r\ncontent-length: "  # as uvicorn writes it
_LENGTH_LINE_OF_OTHERS: Final = b"\r\nContent-Length: "


class AnswerError(Exception):
    """The engine sent something that is not an HTTP/1.x answer; the text says what."""


class AnswerHead(LeafValue, frozen=True):
    """`length` is the body's bytes, or None where only its end tells (chunks, or the end of the connection); `headers`
    are all but the length. `fields`: the header lines that a client is to see. `is_stream`: of server-sent events.
    `keep_alive`: whether another answer may follow on the connection.
    """

    status: int
    headers: Headers
    length: int | None
    fields: bytes = b""
    is_stream: bool = False
    in_chunks: bool = False
    keep_alive: bool = False


class AnswerHeads:
    """Reads the heads of one engine, and remembers them."""

    def __init__(self) -> None:
        self._known: dict[bytes, AnswerHead] = {}  # by their lines without the length
        self._lines = b""  # of the last one
        self._last: AnswerHead | None = None

    def read(self, lines: bytes) -> AnswerHead:
        """The head of these lines, each with its end. Raises AnswerError."""
        if self._last is None or lines != self._lines:
            self._last, self._lines = self._read(lines), lines
        return self._last

    def _read(self, lines: bytes) -> AnswerHead:
        begin, end, length = _length_in(lines)
        rest = lines if length is None else lines[:begin] + lines[end:]
        known = self._known.get(rest)
        if known is None or (length is None) != (known.length is None):
            known = _read_head(lines)
            if (length is None) == (known.length is None):
                self._remember(rest, known)
        return known if length is None or known.status in _BODILESS else _of_length(known, length)

    def _remember(self, rest: bytes, head: AnswerHead) -> None:
        if len(rest) > _MAX_KNOWN_BYTES:
            return
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[rest] = head


class AnswerReader:
    """One answer at a time. Feed it, which gives bytes of the body, then look at `head` and `done`."""

    __slots__ = ("_chunks", "_heads", "_missing", "_pending", "done", "head")

    def __init__(self, heads: AnswerHeads) -> None:
        self._heads = heads
        self.reset()

    def reset(self) -> None:
        """Be ready for the next answer on a connection whose last one was `done` and may be followed."""
        self._pending = b""
        self._chunks: Chunks | None = None
        self._missing: int | None = None  # bytes of the body; None: until the end of the connection
        self.head: AnswerHead | None = None
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """Take more bytes. Raises AnswerError."""
        chunks = self._chunks
        if chunks is None or self.done:
            return self._feed_head(data) if self.head is None else self._feed_rest(data)
        body = chunks.feed(data)
        if chunks.done or chunks.fault is not None:
            self._end_chunks(chunks)
        return body

    def end_of_input(self) -> None:
        """The engine closed the connection. Raises AnswerError where that cuts the answer short."""
        if self.head is None or self._chunks is not None or self._missing is not None:
            raise AnswerError("the engine closed the connection in the middle of its answer")
        self.done = True

    # The inside.

    def _feed_head(self, data: bytes) -> bytes:
        self._pending = self._pending + data if self._pending else data
        while self.head is None:
            end = self._pending.find(b"\r\n\r\n")
            if end < 0:
                self._check_part()
                return b""
            lines, self._pending = self._pending[: end + 2], self._pending[end + 4 :]
            self._take(lines)
        body, self._pending = self._pending, b""
        if not body:
            return b""
        return self._feed_rest(body) if self._chunks is None else self.feed(body)

    def _check_part(self) -> None:
        if len(self._pending) > MAX_HEAD_BYTES:
            raise AnswerError(f"the engine's headers are over {MAX_HEAD_BYTES} bytes")
        if not _could_begin(self._pending):
            raise AnswerError("the engine sent something that is not an HTTP/1.x answer")

    def _take(self, lines: bytes) -> None:
        if len(lines) > MAX_HEAD_BYTES:
            raise AnswerError(f"the engine's headers are over {MAX_HEAD_BYTES} bytes")
        head = self._heads.read(lines)
        if head.status < 200:
            return
        self.head = head
        if head.in_chunks:
            self._chunks = Chunks()
        else:
            self._missing = head.length
            self.done = head.length == 0

    def _end_chunks(self, chunks: Chunks) -> None:
        if chunks.fault is not None:
            raise AnswerError("the engine's chunks cannot be read")
        self.done = True
        if chunks.rest:
            raise AnswerError("the engine sent bytes after the end of its answer")

    def _feed_rest(self, data: bytes) -> bytes:
        if self.done:
            raise AnswerError("the engine sent bytes after the end of its answer")
        if self._missing is not None:
            self._missing = missing = self._missing - len(data)
            self.done = missing == 0
            if missing < 0:
                raise AnswerError("the engine sent bytes after the end of its answer")
        return data


def _length_in(lines: bytes) -> tuple[int, int, int | None]:
    """The length that the lines of a head name first, and where its line begins and ends; None: there is none that is
    written as nearly every engine writes it."""
    begin = lines.find(_LENGTH_LINE)
    if begin < 0:
        begin = lines.find(_LENGTH_LINE_OF_OTHERS)
    if begin < 0:
        return 0, 0, None
    end = lines.find(b"\r\n", begin + 2)
    digits = lines[begin + len(_LENGTH_LINE) : end]
    is_length = digits.isdigit() and len(digits) <= _LENGTH_DIGITS
    return begin, end, int(digits) if is_length else None


def _of_length(head: AnswerHead, length: int) -> AnswerHead:
    return AnswerHead(head.status, head.headers, length, head.fields, head.is_stream, head.in_chunks, head.keep_alive)


def _could_begin(data: bytes) -> bool:
    return data.startswith(b"HTTP/1.") or b"HTTP/1.".startswith(data[:7])


def _read_head(lines: bytes) -> AnswerHead:
    line, _, fields = lines.partition(b"\r\n")
    first = _STATUS_LINE.fullmatch(line)
    if first is None or not are_fields(fields):
        raise AnswerError("the engine's head cannot be read")
    status, headers = int(first["status"]), split_fields(fields)
    if status == 101:
        raise AnswerError("the engine wants to switch to another protocol")
    in_chunks = _is_in_chunks(headers)
    length = 0 if status in _BODILESS else _length(headers)
    if in_chunks and _length(headers) is not None:
        raise AnswerError("the engine's answer has a length and chunks")
    ends = in_chunks or length is not None
    return AnswerHead(
        status=status,
        headers=tuple(pair for pair in headers if pair[0] != b"content-length"),
        length=length,
        fields=encode_fields(passed_on(headers)),
        is_stream=any(name == b"content-type" and value.startswith(_EVENTS) for name, value in headers),
        in_chunks=in_chunks and status not in _BODILESS,
        keep_alive=ends and first["minor"] == b"1" and b"close" not in connection_options(headers),
    )


def _length(headers: Headers) -> int | None:
    given = [value for name, value in headers if name == b"content-length"]
    if len(given) > 1 or (given and _LENGTH.fullmatch(given[0]) is None):
        raise AnswerError("the engine's answer has more than one length, or one that is no number")
    return int(given[0]) if given else None


def _is_in_chunks(headers: Headers) -> bool:
    given = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if given and given != [b"chunked"]:
        raise AnswerError("the engine's answer has a transfer coding other than chunks")
    return bool(given)
