"""The chunked framing of a body, taken off and put on.

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
_PLAIN_DIGITS: Final = 6
MAX_LINE_BYTES: Final = 8 * 1024  # a size with its extensions, or all trailers together; no client sends that much
MAX_CHUNKS: Final = 16 * 1024  # 512 bytes each in a body of 8 MiB; clients send 4 KiB or more, each chunk costs 1 us
_NOT_CHUNKED: Final = Fault(400, "The chunked body is malformed: a chunk's size, its end or a trailer cannot be read.")
# Around the data of one chunk: its size line, and two ends of lines. A token's comes by itself, most with three digits.
_OF_TWO_DIGITS: Final = 2 + 4
_OF_THREE_DIGITS: Final = 3 + 4
_MOST_OF_TWO_DIGITS: Final = 0xFF + _OF_TWO_DIGITS
# Made beforehand: to make one takes 700 instructions, and every token needs two. Frames are below 1 KiB; 50 KB in all.
_SIZE_LINES: Final[tuple[bytes, ...]] = tuple(b"%x\r\n" % size for size in range(1024))
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
            around = _OF_TWO_DIGITS if len(data) <= _MOST_OF_TWO_DIGITS else _OF_THREE_DIGITS
            line = _size_line(len(data) - around) if len(data) > around else b""
            if len(line) == around - 2 and data.startswith(line) and data.endswith(b"\r\n"):
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
                if self._after_data and data[at : at + 2] == b"\r\n":
                    self._after_data = False
                    at += 2
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
        size = _plain_size(line)
        if size is None:
            match = _SIZE.fullmatch(line)
            if match is None or len(line) > MAX_LINE_BYTES:
                return _NOT_CHUNKED
            size = int(match["size"], 16)
        self._missing = size
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


def chunk(data: bytes) -> bytes:
    """One chunk of `data`, which must not be empty: that would end the body."""
    return _size_line(len(data)) + data + b"\r\n"


def _plain_size(line: bytes) -> int | None:
    """The size in a line of a few lower-case digits, as nearly all are; None where it is another line."""
    if not line or len(line) > _PLAIN_DIGITS:
        return None
    size = 0
    for digit in line:
        if 0x30 <= digit <= 0x39:
            size = size * 16 + digit - 0x30
        elif 0x61 <= digit <= 0x66:
            size = size * 16 + digit - 0x61 + 10
        else:
            return None
    return size


def _size_line(size: int) -> bytes:
    return _SIZE_LINES[size] if size < len(_SIZE_LINES) else b"%x\r\n" % size


def body_too_large(max_bytes: int) -> Fault:
    """The fault of a body over the limit."""
    return Fault(413, f"The request body is over the limit of {max_bytes} bytes: send a smaller one.")
