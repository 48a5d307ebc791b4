"""The chunked framing of a request body, taken off.

Decides where the body ends and what its bytes are. Pure.

Invariants:

1. The same bytes give the same body however they are split over calls.
2. Lines end in CRLF, sizes are plain hexadecimal digits, extensions and trailers hold no control character; anything
   else is a fault (RFC 9112 section 7.1). Extensions and trailers are read and dropped.
3. It holds no more than one line besides the body, and says so as a fault when that line, the body or the number of
   chunks is too large.
"""

from __future__ import annotations

import re
from typing import Final

from kvquota_sidecar.proxy.head import Fault, are_fields

_SIZE: Final = re.compile(rb"(?P<size>[0-9A-Fa-f]{1,12})[\t ]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
MAX_LINE_BYTES: Final = 8 * 1024  # a size with its extensions, or all trailers together; no client sends that much
MAX_CHUNKS: Final = 16 * 1024  # 512 bytes each in a body of 8 MiB; clients send 4 KiB or more, each chunk costs 1 us
_NOT_CHUNKED: Final = Fault(400, "The chunked body is malformed: a chunk's size, its end or a trailer cannot be read.")
_TOO_MANY: Final = Fault(413, f"The request body comes in more than {MAX_CHUNKS} chunks: send larger ones.")


class ChunkedBody:
    """Feed it bytes; `done` turns True at the body's end, and `rest` is then what follows the body."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._body = bytearray()
        self._chunks = 0
        self._missing = 0  # bytes of the current chunk's data that are still to come
        self._after_data = False
        self._in_trailers = False
        self._trailer_bytes = 0
        self._pending = b""
        self._at = 0  # in `_pending`: where the next line or data begins
        self.done = False

    @property
    def rest(self) -> bytes:
        return self._pending

    def body(self) -> bytes:
        """All data of the body so far."""
        return bytes(self._body)

    def feed(self, data: bytes) -> Fault | None:
        """Take more bytes. A fault is final."""
        self._pending += data
        fault: Fault | None = None
        while fault is None and not self.done and self._at < len(self._pending):
            before = self._at
            fault = self._step()
            if self._at == before:
                break
        self._pending, self._at = self._pending[self._at :], 0
        return fault

    def _step(self) -> Fault | None:
        if self._missing:
            self._take_data()
            return None
        end = self._pending.find(b"\r\n", self._at)
        if end < 0:
            return self._wait_for_line(self._pending[self._at :])
        line = self._pending[self._at : end]
        self._at = end + 2
        if self._after_data:
            self._after_data = False
            return _NOT_CHUNKED if line else None
        return self._take_trailer(line) if self._in_trailers else self._take_size(line)

    def _take_data(self) -> None:
        piece = self._pending[self._at : self._at + self._missing]
        self._body += piece
        self._at += len(piece)
        self._missing -= len(piece)
        self._after_data = self._missing == 0

    def _wait_for_line(self, part: bytes) -> Fault | None:
        bare = b"\n" in part or b"\r" in part[:-1]
        junk = self._after_data and part != b"\r"
        return _NOT_CHUNKED if bare or junk or len(part) > MAX_LINE_BYTES else None

    def _take_size(self, line: bytes) -> Fault | None:
        match = _SIZE.fullmatch(line)
        if match is None or len(line) > MAX_LINE_BYTES:
            return _NOT_CHUNKED
        self._missing = int(match["size"], 16)
        self._in_trailers = self._missing == 0
        self._chunks += 1
        if len(self._body) + self._missing > self._max_bytes:
            return body_too_large(self._max_bytes)
        return _TOO_MANY if self._chunks > MAX_CHUNKS else None

    def _take_trailer(self, line: bytes) -> Fault | None:
        if not line:
            self.done = True
            return None
        self._trailer_bytes += len(line) + 2
        return None if are_fields(line + b"\r\n") and self._trailer_bytes <= MAX_LINE_BYTES else _NOT_CHUNKED


def body_too_large(max_bytes: int) -> Fault:
    """The fault of a body over the limit."""
    return Fault(413, f"The request body is over the limit of {max_bytes} bytes: send a smaller one.")
