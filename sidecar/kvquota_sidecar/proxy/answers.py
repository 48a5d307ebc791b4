"""What is sent back to a client, as bytes.

Decides the heads and the framing of answers. Pure.

Invariants:

1. No header that is written here holds CR, LF or NUL, whoever chose its value: header lines are made by
   `encode_fields`, which looks at each, or of numbers and words of this program's own (`refusals.headers`).
2. An answer is framed in exactly one way: by its length, in chunks, or by the end of the connection (to HTTP/1.0 only).
   An answer to HEAD ends with its head, which says the length that the body would have, where that is known.
3. Headers of one hop, and those that this program writes itself, are never taken over from the engine.
"""

from __future__ import annotations

from email.utils import formatdate
from http import HTTPStatus
from typing import Final, Literal

from kvquota_sidecar.proxy.head import Headers, connection_options
from kvquota_sidecar.records import LeafValue

Framing = Literal["Length", "Chunked", "Close", "Bodiless"]

LAST_CHUNK: Final = b"0\r\n\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
# RFC 9110 section 7.6.1, with the two that only old or HTTP/2 clients send.
HOP_BY_HOP: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te"),
        *(b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"),
    }
)
_WRITTEN_HERE: Final = frozenset({b"content-length", b"ratelimit", b"ratelimit-policy", b"x-request-id"})
OWN_PREFIX: Final = b"x-kvquota-"
_SAFE: Final = bytes([0x09, *range(0x20, 0x7F), *range(0x80, 0x100)])  # all that a header may hold
_STATUS_LINES: Final = {each.value: b"HTTP/1.1 %d %b\r\n" % (each, each.phrase.encode()) for each in HTTPStatus}


class UnsafeHeaderError(ValueError):
    """A header value with a control character in it: a fault of this program, never of a client."""


class Answer(LeafValue, frozen=True):
    """A whole answer of this program's own. `fields`: header lines, see `encode_fields`; `kind`: its Content-Type."""

    status: int
    body: bytes = b""
    fields: bytes = b""
    kind: bytes = b"application/json"


def encode_fields(headers: Headers) -> bytes:
    """Header lines, each with its end. Raises UnsafeHeaderError."""
    lines = [name + b": " + value for name, value in headers]
    if b"".join(lines).translate(None, _SAFE):
        raise UnsafeHeaderError("a header of an answer holds a control character")
    return b"\r\n".join([*lines, b""])


def encode_answer(answer: Answer, date: bytes, *, close: bool, bodiless: bool = False) -> bytes:
    """The bytes of a whole answer; `date`: the line of that header; `bodiless`: to HEAD."""
    fields = b"%bcontent-type: %b\r\n%b" % (date, answer.kind, answer.fields)
    head = encode_head(answer.status, fields, len(answer.body), "Length", close=close)
    return head if bodiless else head + answer.body


def encode_head(status: int, fields: bytes, length: int | None, framing: Framing, *, close: bool) -> bytes:
    """A head in the given framing; `length` is of the body in bytes: needed for Length, told for Bodiless."""
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    end = b"connection: close\r\n\r\n" if close else b"\r\n"
    if framing == "Chunked":
        return b"%b%btransfer-encoding: chunked\r\n%b" % (line, fields, end)
    if framing == "Length" or (framing == "Bodiless" and length is not None):
        return b"".join((line, fields, f"content-length: {length or 0}\r\n".encode(), end))
    return line + fields + end


def passed_on(headers: Headers) -> Headers:
    """Those of the engine's headers that its client is to see, its Date first."""
    dropped = HOP_BY_HOP | _WRITTEN_HERE | connection_options(headers)
    kept = [pair for pair in headers if pair[0] not in dropped and not pair[0].startswith(OWN_PREFIX)]
    return tuple(sorted(kept, key=lambda pair: pair[0] != b"date"))


def with_date(fields: bytes, date: bytes) -> bytes:
    """The header lines with a Date: their own, which comes first, else `date`, which is such a line."""
    return fields if fields.startswith(b"date: ") else date + fields


def http_date(unix_seconds: float) -> bytes:
    """The line of the Date header."""
    return b"date: %b\r\n" % formatdate(unix_seconds, usegmt=True).encode()
