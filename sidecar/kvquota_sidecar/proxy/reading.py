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
from typing import Final, Literal

from kvquota_sidecar.proxy.chunked import MAX_CHUNKS, Chunks, body_too_large
from kvquota_sidecar.proxy.head import Fault, Head, HeadReader, path_of, read_head
from kvquota_sidecar.records import LeafValue

# Four times what nginx takes by default for all headers of one request; engines themselves stop at 64 KiB.
MAX_HEAD_BYTES: Final = 32 * 1024
MAX_HEADERS: Final = 128
_CR: Final = 0x0D
_EMPTY_LINES: Final = re.compile(rb"\A(?>(?:\r\n)+)")  # before a request they are ignored (RFC 9112 section 2.2)
# What no good head holds: looked for while a head is not complete, since one of bare LFs never is.
_BARE: Final = re.compile(rb"(?<!\r)\n|\r(?=[^\n])|\x00")
_TOO_LARGE: Final = Fault(431, f"The headers are over {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} lines: send less.")
_BARE_FAULT: Final = Fault(400, "The request's head holds a bare CR, a bare LF or a NUL: end every line with CR LF.")


class Request(LeafValue, frozen=True):
    """A head with its whole body."""

    head: Head
    body: bytes


Event = Head | Request | Fault
Stage = Literal["idle", "head", "body", "ready", "failed"]


class RequestReader:
    """Events of one connection: for every request first its Head, then the Request; or a Fault, which is the last."""

    __slots__ = (
        "_chunks", "_fault", "_head", "_heads", "_max_body_bytes", "_missing", "_pending", "_pieces", "_scanned",
    )  # fmt: skip

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._heads = HeadReader()
        self._pending = b""
        self._scanned = 0
        self._head: Head | None = None
        self._pieces: list[bytes] = []
        self._missing = 0
        self._chunks: Chunks | None = None
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

    @property
    def path(self) -> str:
        """What the request in hand asks for, as far as that can be read."""
        return path_of(self._pending) if self._head is None else self._head.path

    def feed(self, data: bytes) -> None:
        """Take more bytes; nothing is decided until `next_event`."""
        if self._head is None or self._fault is not None:
            self._pending = self._pending + data if self._pending else data
        elif self._chunks is None:
            self._pieces.append(data)
            self._missing -= len(data)
        else:
            self._pieces.append(self._chunks.feed(data))
            self._fault = self._chunks.fault

    def next_event(self) -> Event | None:
        """The next event that the bytes so far allow, or None: feed more."""
        if self._fault is not None:
            fault, self._pending = self._fault, b""
            return fault
        if self._head is not None:
            return self._next_request(self._head)
        return self._next_head() if self._pending else None

    def _next_head(self) -> Head | Fault | None:
        pending = self._pending
        if pending[0] == _CR:
            pending = self._pending = _EMPTY_LINES.sub(b"", pending, count=1)
            self._scanned = 0
        end = pending.find(b"\r\n\r\n", max(0, self._scanned - 3))
        if end < 0:
            return self._fail(self._fault_of_part(), pending)
        lines, rest = pending[: end + 2], pending[end + 4 :]
        self._pending, self._scanned = b"", 0
        head = self._heads.again(lines) or (_TOO_LARGE if _is_too_large(lines) else self._heads.read(lines))
        if isinstance(head, Fault):
            bare = head.status == 400 and _BARE.search(lines) is not None
            return self._fail(_BARE_FAULT if bare else head, lines, head.head)
        length = head.length
        if length is None:
            self._chunks = Chunks(self._max_body_bytes, MAX_CHUNKS)
        elif length > self._max_body_bytes:
            return self._fail(body_too_large(self._max_body_bytes), lines, head)
        self._head, self._missing = head, length or 0
        if rest:
            self.feed(rest)
        return head

    def _fault_of_part(self) -> Fault | None:
        """What is wrong with a head that is not complete."""
        if _is_too_large(self._pending):
            return _TOO_LARGE
        looked_at, self._scanned = self._scanned, len(self._pending)
        return _BARE_FAULT if _BARE.search(self._pending, max(0, looked_at - 1)) is not None else None

    def _fail(self, fault: Fault | None, lines: bytes, head: Head | None = None) -> Fault | None:
        if fault is _TOO_LARGE:
            head = _beginning(lines)
        self._fault = None if fault is None else Fault(fault.status, fault.sentence, path_of(lines), head)
        return self._fault

    def _body_is_complete(self) -> bool:
        return self._missing <= 0 if self._chunks is None else self._chunks.done

    def _next_request(self, head: Head) -> Request | None:
        if not self._body_is_complete():
            return None
        held = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        if self._chunks is not None:
            self._pending = self._chunks.rest
        elif self._missing:  # less than nothing is missing: more came than the body
            held, self._pending = held[: self._missing], held[self._missing :]
        self._head = self._chunks = None
        self._pieces = []
        return Request(head, held)


def _is_too_large(head: bytes) -> bool:
    return len(head) > MAX_HEAD_BYTES or head.count(b"\r\n") > MAX_HEADERS


def _beginning(head: bytes) -> Head | None:
    """What a head that is too large begins with: its whole lines, as many as are taken."""
    lines = head[:MAX_HEAD_BYTES].split(b"\r\n")[:MAX_HEADERS]
    if len(lines) < MAX_HEADERS:
        lines.pop()  # it is cut
    read = read_head(b"\r\n".join([*lines, b""]))
    return None if isinstance(read, Fault) else read
