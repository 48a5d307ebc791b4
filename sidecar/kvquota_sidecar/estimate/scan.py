"""Where the top-level fields of a JSON object stand in its text, and whether any object names a key twice.

Decides on text that a JSON parser has accepted already. Pure, and linear in the length of the text.

Invariants:

1. A key that any object names twice is found at every depth, also where one of them is written with escapes: parsers
   differ in which of the two they take, and the engine takes the last.
2. Nesting beyond MAX_DEPTH is refused whatever the depth of the Python stack. (A list of neither strings nor brackets
   is no level of its own.)
3. What is looked at one by one is counted before, in few passes over the text: strings, objects and lists, fields, and
   the values of lists that are no token ids. More than there may be of them is refused.

It does not know what the fields mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from kvquota_api.quoting import quoted

MAX_DEPTH: Final = 128  # levels: tool schemas of real clients stay below 40; the engine's own parser ends near 1,000
# Each bounds what one body costs while other tenants' streams wait. In brackets: a chat of 2,000 messages with tool
# calls, and 100 tools; more than agents send.
MAX_TOP_LEVEL: Final = 256  # fields (60 are known to engines)
MAX_FIELDS: Final = 16_384  # of all objects (11,000 and 5,000)
MAX_BRACKETS: Final = 16_384  # objects and lists (5,000 and 3,000)
MAX_STRINGS: Final = 65_536  # keys and values (20,000 and 8,000)
MAX_VALUES: Final = 65_536  # commas outside of lists of token ids, each of which parts two values or fields
# Atomic groups, not possessive quantifiers: these match wrongly around a group in Python before 3.11.5 (gh-106052).
_BLANK: Final = rb"(?>[ \t\r\n]*)"
_STRING: Final = rb'"(?>[^"]*)"'
_PLAIN: Final = rb'[^"{}\[\]]'
# The next key, up to its value, or the next bracket. Everything before it is skipped at once, never looked at again:
# plain text, strings that are no keys, and lists of neither strings nor brackets (long lists of token ids).
_TOKEN: Final = re.compile(
    rb"(?>(?:(?>%(plain)s+)|%(string)s(?!%(blank)s:)|\[(?>%(plain)s*)\])*)"
    rb"(?:(?P<key>%(string)s)%(blank)s:%(blank)s|(?P<bracket>[{}\[\]]))"
    % {b"plain": _PLAIN, b"string": _STRING, b"blank": _BLANK},
    re.DOTALL,
)
TOKEN_IDS: Final = re.compile(rb"\[[0-9 \t\r\n,]+\]")
_WINDOW: Final = 4096  # bytes looked at together when blanks are skipped backwards


class ScanError(ValueError):
    """The text cannot be taken; says what is wrong with it. `key`: the one that is named twice, "" otherwise."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True, slots=True)
class Field:
    """Byte offsets: of the key's first quote, of the value's first byte, and of the byte after the value."""

    key: int
    value: int
    end: int


@dataclass(frozen=True, slots=True)
class Fields:
    """`by_name`: the top-level fields in the order of the text. `close`: offset of the closing brace."""

    by_name: Mapping[str, Field]
    close: int


def scan(text: bytes) -> Fields:
    """The top-level fields of the object `text`, which must be valid JSON. Raises ScanError."""
    unescaped = _without_escaped_quotes(text)
    _require_bounded(unescaped)
    close = text.rindex(b"}")
    keys = _top_level(text, unescaped, close + 1)
    limits = [*(at for _, at, _ in keys[1:]), close]
    by_name = {
        name: Field(at, value, _end(text, limit)) for (name, at, value), limit in zip(keys, limits, strict=False)
    }
    return Fields(by_name, close)


def _without_escaped_quotes(text: bytes) -> bytes:
    """The same text, as long, where every quote begins or ends a string."""
    return text.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in text else text


def _require_bounded(unescaped: bytes) -> None:
    _require_at_most(MAX_STRINGS, unescaped.count(b'"') // 2, "strings")
    if len(unescaped) <= min(MAX_FIELDS, MAX_BRACKETS, MAX_VALUES):
        return
    outside = b"".join(unescaped.split(b'"')[::2])
    _require_at_most(MAX_BRACKETS, outside.count(b"{") + outside.count(b"["), "objects and lists")
    _require_at_most(MAX_FIELDS, outside.count(b":"), "fields in all its objects")
    if len(outside) > MAX_VALUES:
        _require_at_most(MAX_VALUES, TOKEN_IDS.sub(b"", outside).count(b","), "values beside token ids")


def _require_at_most(most: int, found: int, what: str) -> None:
    if found > most:
        raise ScanError(f"it has {found} {what} and at most {most} are taken, so shorten or split it")


def _top_level(text: bytes, unescaped: bytes, end: int) -> list[tuple[str, int, int]]:
    """Name, offset and offset of the value of every key at the top. Raises ScanError at the first fault anywhere."""
    found: list[tuple[str, int, int]] = []
    open_brackets: list[set[str]] = []  # what each has named; a list names nothing
    for token in _TOKEN.finditer(unescaped, 0, end):
        at, past = token.span("key")
        if at >= 0:
            name = _name(text[at:past])
            _require_new(name, open_brackets[-1])
            if len(open_brackets) == 1:
                found.append((name, at, token.end()))
                _require_at_most(MAX_TOP_LEVEL, len(found), "fields at the top")
        elif token["bracket"] in b"{[":
            open_brackets.append(set())
            _require_shallow(len(open_brackets))
        else:
            open_brackets.pop()
    return found


def _require_shallow(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ScanError(f"it is nested more than {MAX_DEPTH} levels deep")


def _require_new(name: str, named: set[str]) -> None:
    if name in named:
        raise ScanError(f"an object names {quoted(name)} twice", name)
    named.add(name)


def _name(quoted: bytes) -> str:
    return msgspec.json.decode(quoted, type=str) if b"\\" in quoted else quoted[1:-1].decode()


def _end(text: bytes, limit: int) -> int:
    """Where the value before `limit` (the next key, or the closing brace) ends."""
    left = b""
    while not left:
        start = max(0, limit - _WINDOW)
        left, limit = text[start:limit].rstrip(b" \t\r\n,"), start
    return limit + len(left)
