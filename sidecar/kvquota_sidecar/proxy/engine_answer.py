"""Answers out of the engine's bytes.

Decides where an answer's head and body begin and end. Sans-I/O: the connection feeds bytes and takes what they gave.

Invariants:

1. Interim answers (1xx) are passed over; a switch of protocols is a fault: nothing is ever tunnelled.
2. Body bytes come out as the engine sent them, without its framing, in order and once.
3. Bytes after an answer's end are a fault: the engine was not asked for anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import httptools

from kvquota_sidecar.proxy.head import Headers

MAX_HEAD_BYTES: Final = 64 * 1024  # what the engine's own server may send; far above what engines do send
_BODILESS: Final = frozenset({204, 304})


class AnswerError(Exception):
    """The engine sent something that is not an HTTP/1.x answer; the text says what."""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """`length` is the body's bytes, or None where only its end tells (chunks, or the end of the connection)."""

    status: int
    headers: Headers
    length: int | None

    def is_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in self.headers)


class AnswerReader:
    """One answer at a time. Feed it, then look at `head`, `take_body()`, `done` and `keep_alive`."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.reset()

    def reset(self) -> None:
        """Be ready for the next answer on a connection whose last one was `done` and `keep_alive`."""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._pieces: list[bytes] = []
        self._until_close = False
        self.head: AnswerHead | None = None
        self.done = False
        self.keep_alive = False

    def feed(self, data: bytes) -> None:
        """Take more bytes. Raises AnswerError."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise AnswerError(f"{type(error).__name__}: {error}") from error
        if self.head is None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                raise AnswerError(f"the engine's headers are over {MAX_HEAD_BYTES} bytes")

    def end_of_input(self) -> None:
        """The engine closed the connection. Raises AnswerError where that cuts the answer short."""
        if not self._until_close:
            raise AnswerError("the engine closed the connection in the middle of its answer")
        self.done = True

    def take_body(self) -> bytes:
        """Body bytes since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # What the parser calls; an exception raised here ends its feed_data.

    def on_message_begin(self) -> None:
        if self.done:
            raise AnswerError("the engine sent bytes after the end of its answer")
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is None:  # later ones are trailers: nothing here reads them
            self._headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        named = dict(self._headers)
        length = int(named[b"content-length"]) if b"content-length" in named else None
        chunked = b"transfer-encoding" in named
        self.head = AnswerHead(status, tuple(self._headers), 0 if status in _BODILESS else length)
        self.keep_alive = self._parser.should_keep_alive()
        self._until_close = not chunked and self.head.length is None

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        self.done = self.head is not None
