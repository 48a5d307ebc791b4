"""Requests out of a client's bytes, one after the other.

Decides where each request begins and ends. Sans-I/O: the connection feeds bytes and asks for the next event.

Invariants:

1. The same bytes give the same events however they are split over calls (of two faults in one head, either).
2. Between two events nothing is read ahead: what follows a request stays unread until the next event is asked for, so
   pipelined requests are taken in order.
3. It holds at most one head of MAX_HEAD_BYTES, one body of `max_body_bytes`, and what was fed beyond the request in
   hand; the connection bounds the latter by pausing its reading.
4. After a fault it reads no more: a connection whose framing is in doubt can only be closed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from kvquota_sidecar.proxy.chunked import ChunkedBody, body_too_large
from kvquota_sidecar.proxy.head import Fault, Head, read_head

# Four times what nginx takes by default for all headers of one request; engines themselves stop at 64 KiB.
MAX_HEAD_BYTES: Final = 32 * 1024
MAX_HEADERS: Final = 128
_EMPTY_LINES: Final = re.compile(rb"\A(?>(?:\r\n)+)")  # before a request they are ignored (RFC 9112 section 2.2)
# What no good head holds: looked for while a head is not complete, since one of bare LFs never is.
_BARE: Final = re.compile(rb"(?<!\r)\n|\r(?=[^\n])|\x00")
_BARE_FAULT: Final = Fault(400, "The request's head holds a bare CR, a bare LF or a NUL: end every line with CR LF.")


@dataclass(frozen=True, slots=True)
class Request:
    """A head with its whole body."""

    head: Head
    body: bytes


Event = Head | Request | Fault
Stage = Literal["idle", "head", "body", "ready", "failed"]


class RequestReader:
    """Events of one connection: for every request first its Head, then the Request; or a Fault, which is the last."""

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._pending = b""
        self._scanned = 0
        self._head: Head | None = None
        self._pieces: list[bytes] = []
        self._missing = 0
        self._chunked: ChunkedBody | None = None
        self._fault: Fault | None = None

    @property
    def stage(self) -> Stage:
        """What it is in the middle of: nothing, a head, or a body; `ready` is a body that is all here."""
        if self._fault is not None:
            return "failed"
        if self._head is None:
            return "head" if self._pending else "idle"
        return "ready" if self._body_is_complete() else "body"

    @property
    def unread(self) -> int:
        """Bytes held that belong to no event yet."""
        return len(self._pending)

    def feed(self, data: bytes) -> None:
        """Take more bytes; nothing is decided until `next_event`."""
        if self._head is None or self._fault is not None:
            self._pending = self._pending + data if self._pending else data
        elif self._chunked is not None:
            self._fault = self._chunked.feed(data)
        else:
            self._pieces.append(data)
            self._missing -= len(data)

    def next_event(self) -> Event | None:
        """The next event that the bytes so far allow, or None: feed more."""
        if self._fault is not None:
            fault, self._pending = self._fault, b""
            return fault
        event = self._next_head() if self._head is None else self._next_request(self._head)
        if isinstance(event, Fault):
            self._fault = event
        return event

    def _next_head(self) -> Head | Fault | None:
        if self._pending.startswith(b"\r\n"):
            self._pending, self._scanned = _EMPTY_LINES.sub(b"", self._pending, count=1), 0
        end = self._pending.find(b"\r\n\r\n", max(0, self._scanned - 3))
        fault = self._head_fault(end)
        if fault is not None or end < 0:
            self._scanned = len(self._pending)
            return fault
        lines, rest = self._pending[: end + 2], self._pending[end + 4 :]
        self._pending, self._scanned = b"", 0
        head = read_head(lines)
        if isinstance(head, Fault):
            return _BARE_FAULT if _BARE.search(lines) is not None else head
        return self._begin_body(head, rest)

    def _head_fault(self, end: int) -> Fault | None:
        size = len(self._pending) if end < 0 else end
        if size > MAX_HEAD_BYTES or self._pending.count(b"\r\n", 0, size) > MAX_HEADERS:
            return Fault(431, f"The headers are over {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} lines: send less.")
        if end < 0 and _BARE.search(self._pending, max(0, self._scanned - 1)) is not None:
            return _BARE_FAULT
        return None

    def _begin_body(self, head: Head, rest: bytes) -> Head | Fault:
        if head.length is not None and head.length > self._max_body_bytes:
            return body_too_large(self._max_body_bytes)
        self._head = head
        self._pieces, self._missing = [], head.length or 0
        self._chunked = ChunkedBody(self._max_body_bytes) if head.length is None else None
        self.feed(rest)
        return head

    def _body_is_complete(self) -> bool:
        return self._chunked.done if self._chunked is not None else self._missing <= 0

    def _next_request(self, head: Head) -> Request | None:
        if not self._body_is_complete():
            return None
        body = self._take_body()
        self._head = self._chunked = None
        self._pieces = []
        return Request(head, body)

    def _take_body(self) -> bytes:
        if self._chunked is not None:
            self._pending = self._chunked.rest
            return self._chunked.body()
        held = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        end = len(held) + self._missing
        self._pending = held[end:]
        return held[:end]
