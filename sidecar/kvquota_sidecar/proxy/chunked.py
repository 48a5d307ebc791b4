"""The chunked framing of a body, taken off.

Decides where the body ends and what its bytes are. Pure.

Invariants:

1. The same bytes give the same body however they are split over calls.
2. Lines end in CRLF, sizes are plain hexadecimal digits, extensions and trailers hold no control character; anything
   else is a fault (RFC 9112 section 7.1). Extensions and trailers are read and dropped.
3. It holds no more than one line, and says so as a fault when that line, the body or the number of chunks is too large.
"""

from __future__ import annotations

import re
import sys
from typing import Final

from kvquota_sidecar.proxy.head import Fault, are_fields

_SIZE: Final = re.compile(rb"(?P<size>[0-9A-Fa-f]{1,12})(?:[\t ]*;[\t\x20-\x7e\x80-\xff]*)?")
# Bytes around the data of one chunk that comes by itself, as a token does: its size line, and two ends of lines.
_OF_TWO_DIGITS: Final = 2 + 4
_OF_THREE_DIGITS: Final = 3 + 4
_MOST_OF_TWO_DIGITS: Final = 0xFF + _OF_TWO_DIGITS
MAX_LINE_BYTES: Final = 8 * 1024  # a size with its extensions, or all trailers together; no client sends that much
MAX_CHUNKS: Final = 16 * 1024  # 512 bytes each in a body of 8 MiB; clients send 4 KiB or more, each chunk costs 1 us
_NOT_CHUNKED: Final = Fault(400, "The chunked body is malformed: a chunk's size, its end or a trailer cannot be read.")
_TOO_MANY: Final = Fault(413, f"The request body comes in more than {MAX_CHUNKS} chunks: send larger ones.")


class Chunks:
    """Feed it bytes, and it gives those of the body. `done` turns True at the body's end, and `rest` is then what
    follows it; a `fault` is final. `max_bytes`, `max_chunks`: of a body.
    """

    __slots__ = (
        "_after_data", "_chunks", "_in_trailers", "_is_unbounded", "_max_bytes", "_max_chunks", "_may_be_whole",
        "_missing", "_size", "_trailer_bytes", "done", "fault", "rest",
    )  # fmt: skip

    def __init__(self, max_bytes: int = sys.maxsize, max_chunks: int = sys.maxsize) -> None:
        self._max_bytes = max_bytes
        self._max_chunks = max_chunks
        self._size = 0  # of the body so far
        self._chunks = 0
        self._missing = 0  # bytes of the current chunk's data that are still to come
        self._after_data = False
        self._in_trailers = False
        self._is_unbounded = max_bytes == max_chunks == sys.maxsize
        self._may_be_whole = self._is_unbounded  # the next bytes: one chunk, and none is to be counted
        self._trailer_bytes = 0
        self.rest = b""
        self.done = False
        self.fault: Fault | None = None

    def feed(self, data: bytes) -> bytes:
        """Take more bytes."""
        if self._may_be_whole:
            length = len(data)
            around = _OF_TWO_DIGITS if length <= _MOST_OF_TWO_DIGITS else _OF_THREE_DIGITS
            line = b"%x\r\n" % (length - around)
            if len(line) == around - 2 and data.startswith(line) and data.endswith(b"\r\n") and length > around:
                return data[around - 2 : -2]
        return self._walk(self.rest + data if self.rest else data)

    def _walk(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        at = 0
        while self.fault is None and not self.done and at < len(data):
            if self._missing:
                piece = data[at : at + self._missing]
                pieces.append(piece)
                at += len(piece)
                self._missing -= len(piece)
                self._after_data = self._missing == 0
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self.fault = self._wait_for_line(data[at:])
                break
            self.fault = self._take_line(data[at:end])
            at = end + 2
        self.rest = data[at:]
        is_within = self._missing or self.rest or self._after_data or self._in_trailers
        self._may_be_whole = self._is_unbounded and not is_within
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take_line(self, line: bytes) -> Fault | None:
        if self._after_data:
            self._after_data = False
            return _NOT_CHUNKED if line else None
        return self._take_trailer(line) if self._in_trailers else self._take_size(line)

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
        return self._count(self._missing)

    def _count(self, size: int) -> Fault | None:
        self._chunks += 1
        self._size += size
        if self._size > self._max_bytes:
            return body_too_large(self._max_bytes)
        return _TOO_MANY if self._chunks > self._max_chunks else None

    def _take_trailer(self, line: bytes) -> Fault | None:
        if not line:
            self.done = True
            return None
        self._trailer_bytes += len(line) + 2
        return None if are_fields(line + b"\r\n") and self._trailer_bytes <= MAX_LINE_BYTES else _NOT_CHUNKED


def body_too_large(max_bytes: int) -> Fault:
    """The fault of a body over the limit."""
    return Fault(413, f"The request body is over the limit of {max_bytes} bytes: send a smaller one.")
