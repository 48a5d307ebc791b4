"""The head of a request: what a client may send before the body.

Decides whether a head is well formed and how its body is framed. Pure.

Invariants:

1. A head that two readers could frame differently is refused: two lengths, a length with a transfer coding, a bare LF
   or CR, a folded line, a space before a colon, a control character (RFC 9112 sections 2.2, 5.1, 5.2, 6.3).
2. The target is a path of our own: no scheme, no authority, no `//`, no backslash, no fragment.
3. HTTP/1.1 names exactly one host.
4. Header names come out in lower case, values without the white space around them; neither holds CR, LF or NUL.
5. A head that differs from the one before only in its length is read as that one was: `HeadReader` gives what
   `read_head` gives.

It does not know which routes exist, nor who the client is.
"""

from __future__ import annotations

import re
from typing import Any, Final

from kvquota_sidecar.records import Value

Headers = tuple[tuple[bytes, bytes], ...]

# Atomic groups, not possessive quantifiers: these match wrongly around a group in Python before 3.11.5 (gh-106052).
_TOKEN: Final = rb"(?>[!#$%&'*+\-.^_`|~0-9A-Za-z]+)"
_FIELD: Final = _TOKEN + rb":(?>[\t\x20-\x7e\x80-\xff]*)\r\n"
_BLOCK: Final = rb"(?>(?:" + _FIELD + rb")*)"
_HEAD: Final = re.compile(
    rb"(?P<method>" + _TOKEN + rb") (?P<target>(?>[!-~]+)) HTTP/1\.(?P<minor>[01])\r\n(?P<fields>" + _BLOCK + rb")"
)
_FIELDS: Final = re.compile(_BLOCK)
_REQUEST_LINE: Final = re.compile(rb"[^\s]+ [!-~]+ HTTP/1\.[01]")
_LINE: Final = re.compile(_TOKEN + rb" ((?>[!-~]+)) HTTP/1\.[01]\r\n")
_TARGET: Final = re.compile(rb"/(?![/\\])[^\\#]*")
_HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")  # 15 digits: below 2^53, so no reader rounds it
_LENGTH_LINE: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,15})\r\n")  # as nearly every client writes it


class Fault(Value, frozen=True):
    """Why a request cannot be read: the status to answer with (400, 408, 413, 415, 417, 431) and a sentence.

    `path`: what was asked for, where that much could be read; "" otherwise. `head`: who asked, where that can be read:
    nothing else of it counts.
    """

    status: int
    sentence: str
    path: str = ""
    head: Head | None = None


class Head(Value, frozen=True):
    """`path` is the target without its query. `length` is the body's bytes, or None for a chunked body; `headers` are
    all but the length. `notes`: what others have found out about it, by what they know it under; a head that differs in
    its length only has the same notes.
    """

    method: str
    target: str
    path: str
    minor: int
    headers: Headers
    length: int | None
    keep_alive: bool
    expects_continue: bool
    notes: dict[Any, Any] = {}  # noqa: RUF012 - msgspec makes a new one for each

    def values(self, name: bytes) -> list[bytes]:
        """All values of a header, named in lower case, in the order received."""
        return [value for each, value in self.headers if each == name]


def path_of(data: bytes) -> str:
    """The path in the first line of a head that is not good or not complete; "" where there is none."""
    line = _LINE.match(data)
    return "" if line is None or _TARGET.fullmatch(line[1]) is None else line[1].partition(b"?")[0].decode()


def read_head(data: bytes) -> Head | Fault:
    """Read a head, from the request line through the last header's CRLF, without the empty line that ends it."""
    match = _HEAD.fullmatch(data)
    if match is None:
        return Fault(400, _what_is_wrong(data))
    target = match["target"]
    if _TARGET.fullmatch(target) is None:
        return Fault(400, "The request target must be a path that starts with one slash.")
    headers = split_fields(match["fields"])
    return _framed(match["method"].decode(), target.decode(), int(match["minor"]), headers)


class HeadReader:
    """Reads the heads of one connection, whose clients mostly send the same one again with another length."""

    __slots__ = ("_head", "_lines", "_rest")

    def __init__(self) -> None:
        self._lines = b""
        self._rest = b""  # the lines without the length: of a good head that had exactly one
        self._head: Head | None = None

    def again(self, lines: bytes) -> Head | None:
        """The head before, where these are its lines, and it was good."""
        return self._head if lines == self._lines else None

    def read(self, lines: bytes) -> Head | Fault:
        """As `read_head`."""
        found = _LENGTH_LINE.search(lines)
        if found is None:
            return read_head(lines)
        rest = lines[: found.start()] + lines[found.end() - 2 :]
        if self._head is not None and rest == self._rest:
            head: Head | Fault = _of_length(self._head, int(found[1]))
        else:
            head = read_head(lines)
        if not isinstance(head, Fault):
            self._lines, self._rest, self._head = lines, rest, head
        return head


def split_fields(fields: bytes) -> Headers:
    """Headers of lines that are already known to be well formed, each ended by CRLF."""
    pairs = []
    for line in fields.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        pairs.append((name.lower(), value.strip(b" \t")))
    return tuple(pairs)


def _of_length(head: Head, length: int) -> Head:
    return Head(
        head.method, head.target, head.path, head.minor, head.headers, length, head.keep_alive, head.expects_continue,
        head.notes,
    )  # fmt: skip


def are_fields(data: bytes) -> bool:
    """Whether the bytes are header lines that `split_fields` may read (also the trailers of a chunked body)."""
    return _FIELDS.fullmatch(data) is not None


def _framed(method: str, target: str, minor: int, headers: Headers) -> Head | Fault:
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        if name in _WATCHED:
            found.setdefault(name, []).append(value)
    fault, coding, length = _host_fault(found, minor), _coding_fault(found), _body_length(found, minor)
    if fault is not None:
        return fault
    if isinstance(length, Fault):
        return coding or length
    options = connection_options(headers)
    head = Head(
        method=method,
        target=target,
        path=target.partition("?")[0],
        minor=minor,
        headers=tuple(pair for pair in headers if pair[0] != b"content-length"),
        length=length,
        keep_alive=minor == 1 and b"close" not in options,
        expects_continue=minor == 1 and b"expect" in found,
    )
    return head if coding is None else Fault(coding.status, coding.sentence, head.path, head)


_WATCHED: Final = frozenset({b"host", b"content-length", b"transfer-encoding", b"content-encoding", b"expect"})


def _host_fault(found: dict[bytes, list[bytes]], minor: int) -> Fault | None:
    hosts = found.get(b"host", [])
    if len(hosts) > 1 or (minor == 1 and not hosts):
        return Fault(400, f"An HTTP/1.1 request names exactly one Host; this one names {len(hosts)}.")
    if hosts and _HOST.fullmatch(hosts[0]) is None:
        return Fault(400, "The Host header is not a host name with an optional port.")
    return None


def _coding_fault(found: dict[bytes, list[bytes]]) -> Fault | None:
    if any(value.lower() != b"identity" for value in found.get(b"content-encoding", [])):
        return Fault(415, "The request body must not be compressed: send it without Content-Encoding.")
    if any(value.lower() != b"100-continue" for value in found.get(b"expect", [])):
        return Fault(417, "The only expectation that is met here is 100-continue.")
    return None


def _body_length(found: dict[bytes, list[bytes]], minor: int) -> int | Fault | None:
    lengths, codings = found.get(b"content-length", []), found.get(b"transfer-encoding", [])
    if codings:
        if lengths or minor == 0 or len(codings) > 1 or codings[0].lower() != b"chunked":
            return Fault(400, "The body's framing is ambiguous: send one Content-Length, or chunks.")
        return None
    if len(lengths) > 1 or (lengths and _LENGTH.fullmatch(lengths[0]) is None):
        return Fault(400, "Send one Content-Length, in plain decimal digits.")
    return int(lengths[0]) if lengths else 0


def connection_options(headers: Headers) -> frozenset[bytes]:
    """What the Connection headers list, in lower case: `close`, `keep-alive`, and headers meant for one hop only."""
    values = [value for name, value in headers if name == b"connection"]
    if not values:
        return frozenset()
    return frozenset(option.strip(b" \t").lower() for value in values for option in value.split(b",")) - {b""}


def _what_is_wrong(data: bytes) -> str:
    line, _, fields = data.partition(b"\r\n")
    if _REQUEST_LINE.fullmatch(line) is None:
        return "The request line is not of the form: METHOD /path HTTP/1.1."
    for field in fields.split(b"\r\n"):
        if field.startswith((b" ", b"\t")):
            return "A header is folded over two lines: send it on one line."
        name, colon, value = field.partition(b":")
        if name != name.rstrip(b" \t") and colon:
            return "There is white space before a header's colon: remove it."
        if any((byte < 0x20 and byte != 0x09) or byte == 0x7F for byte in value):
            return "A header's value has a control character in it: remove it."
    return "A header line is not of the form: Name: value."
