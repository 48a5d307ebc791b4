"""What is sent back to a client, as bytes.

Decides the heads and the framing of answers. Pure.

Invariants:

1. No header that is written here holds CR, LF or NUL, whoever chose its value.
2. An answer is framed in exactly one way: by its length, in chunks, or by the end of the connection (to HTTP/1.0 only).
   An answer to HEAD ends with its head, which says the length that the body would have, where that is known.
3. Headers of one hop, and those that this program writes itself, are never taken over from the engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, Literal

from kvquota_sidecar.proxy.head import Headers, connection_options

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
_WRITTEN_HERE: Final = frozenset({b"content-length", b"ratelimit", b"ratelimit-policy"})
OWN_PREFIX: Final = b"x-kvquota-"
_UNSAFE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


class UnsafeHeaderError(ValueError):
    """A header value with a control character in it: a fault of this program, never of a client."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer of this program's own. `kind` is its Content-Type."""

    status: int
    body: bytes = b""
    headers: Headers = ()
    kind: bytes = b"application/json"


def encode_answer(answer: Answer, date: bytes, *, close: bool, bodiless: bool = False) -> bytes:
    """The bytes of a whole answer; `bodiless`: to HEAD."""
    headers = ((b"date", date), (b"content-type", answer.kind), *answer.headers)
    head = encode_head(answer.status, headers, len(answer.body), "Length", close=close)
    return head if bodiless else head + answer.body


def encode_head(status: int, headers: Headers, length: int | None, framing: Framing, *, close: bool) -> bytes:
    """A head in the given framing; `length` is of the body in bytes: needed for Length, told for Bodiless."""
    lines = [b"HTTP/1.1 %d %b" % (status, _REASONS.get(status, b""))]
    lines += [name + b": " + value for name, value in headers]
    if framing == "Length" or (framing == "Bodiless" and length is not None):
        lines.append(b"content-length: %d" % (length or 0))
    if framing == "Chunked":
        lines.append(b"transfer-encoding: chunked")
    if close:
        lines.append(b"connection: close")
    if any(map(_UNSAFE.search, lines)):
        raise UnsafeHeaderError("a header of an answer holds a control character")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk. `data` must not be empty: an empty chunk would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def passed_on(headers: Headers) -> Headers:
    """Those of the engine's headers that its client is to see."""
    dropped = HOP_BY_HOP | _WRITTEN_HERE | connection_options(headers)
    return tuple(pair for pair in headers if pair[0] not in dropped and not pair[0].startswith(OWN_PREFIX))


def with_date(headers: Headers, date: bytes) -> Headers:
    """The headers with a Date: their own, else `date`."""
    return headers if any(name == b"date" for name, _ in headers) else ((b"date", date), *headers)


def http_date(unix_seconds: float) -> bytes:
    """A time as the Date header writes it."""
    return formatdate(unix_seconds, usegmt=True).encode()
