"""Where the top-level fields of a JSON object stand in its text, and whether any object names a key twice.

Decides on text that a JSON parser has accepted already. Pure, and linear in the length of the text.

Invariants:

1. A key that any object names twice is found at every depth, also where one of them is written with escapes: parsers
   differ in which of the two they take, and the engine takes the last.
2. Nesting beyond MAX_DEPTH is refused whatever the depth of the Python stack. (A list of neither strings nor brackets
   is no level of its own.)

It does not know what the fields mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

MAX_DEPTH: Final = 128  # levels: tool schemas of real clients stay below 40; the engine's own parser ends near 1,000
_BLANK: Final = rb"[ \t\r\n]*+"
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_PLAIN: Final = rb'[^"{}\[\]]'
# The next key, up to its value, or the next bracket. Everything before it is skipped at once, never looked at again:
# plain text, strings that are no keys, and lists of neither strings nor brackets (long lists of token ids).
_TOKEN: Final = re.compile(
    rb"(?:%(plain)s++|%(string)s(?!%(blank)s:)|\[%(plain)s*+\])*+"
    rb"(?:(?P<key>%(string)s)%(blank)s:%(blank)s|(?P<bracket>[{}\[\]]))"
    % {b"plain": _PLAIN, b"string": _STRING, b"blank": _BLANK},
    re.DOTALL,
)
_WINDOW: Final = 4096  # bytes looked at together when blanks are skipped backwards


class ScanError(ValueError):
    """The text cannot be taken; says what is wrong with it. `key`: the one that is named twice, "" for depth."""

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
    close = text.rindex(b"}")
    keys = [(name, at, value) for depth, name, at, value in _keys(text, close + 1) if depth == 1]
    limits = [*(at for _, at, _ in keys[1:]), close]
    by_name = {
        name: Field(at, value, _end(text, limit)) for (name, at, value), limit in zip(keys, limits, strict=False)
    }
    return Fields(by_name, close)


def _keys(text: bytes, end: int) -> Iterator[tuple[int, str, int, int]]:
    """Depth, name, offset and offset of the value of every key. Raises ScanError at the first fault."""
    open_brackets: list[set[str]] = []  # what each has named; a list names nothing
    for token in _TOKEN.finditer(text, 0, end):
        if token["key"]:
            name = _name(token["key"])
            _require_new(name, open_brackets[-1])
            yield len(open_brackets), name, token.start("key"), token.end()
        elif token["bracket"] in b"{[":
            open_brackets.append(set())
            _require_shallow(len(open_brackets))
        else:
            open_brackets.pop()


def _require_shallow(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ScanError(f"it is nested more than {MAX_DEPTH} levels deep")


def _require_new(name: str, named: set[str]) -> None:
    if name in named:
        raise ScanError(f"an object names {name[:100]!r} twice", name)
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
