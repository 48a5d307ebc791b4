"""What a JSON text holds, by a look at the text alone: how much, how deep, and whether an object names a key twice.

Decides on text that a JSON parser has accepted already. Pure, and linear in the length of the text.

Invariants:

1. A key that any object names twice is found at every depth, also where one of them is written with escapes: parsers
   differ in which of the two they take, and the engine takes the last.
2. Nesting beyond MAX_DEPTH is refused whatever the depth of the Python stack. (To `scan`, a list of neither strings nor
   brackets is no level of its own.)
3. What is looked at one by one is counted before, in few passes over the text: strings, objects and lists, fields, and
   the values of lists that are no token ids. More than there may be of them is refused.

It does not know what the fields mean.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from kvquota_api.quoting import quoted

MAX_DEPTH: Final = 128  # levels: tool schemas of real clients stay below 40; the engine's own parser ends near 1,000
# Each bounds what one body costs while other tenants' streams wait: 5 ms. In brackets: a chat of 2,000 messages with
# tool calls, and 100 tools; more than agents send.
MAX_TOP_LEVEL: Final = 256  # fields (60 are known to engines)
MAX_FIELDS: Final = 16_384  # of all objects (11,000 and 5,000)
MAX_BRACKETS: Final = 8192  # objects and lists (5,000 and 3,000)
MAX_STRINGS: Final = 32_768  # keys and values (20,000 and 8,000)
MAX_VALUES: Final = 32_768  # commas outside of lists of token ids, each of which parts two values or fields
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
_DIGITS: Final = b"0123456789 \t\r\n"  # and blanks
_FIRST: Final = 64  # bytes, by which nearly every other list is known
_IDS: Final = re.compile(rb"\[,+\]")  # a list of token ids, without its digits
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"{}[]"))
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")


class ScanError(ValueError):
    """The text cannot be taken; says what is wrong with it. `key`: the one that is named twice, "" otherwise."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


def is_token_ids(text: bytes) -> bool:
    """Whether a JSON value is a list of plain numbers, at least one."""
    begins = len(text) > 2 and text[:_FIRST].translate(None, _DIGITS + b",") in (b"[", b"[]")
    return begins and text.translate(None, _DIGITS + b",") == b"[]"


def is_token_lists(text: bytes) -> bool:
    """Whether a JSON value is a list of plain numbers, or of such lists, and of no more lists than are taken."""
    begins = text.startswith(b"[") and not text[:_FIRST].translate(None, _DIGITS + b",[]")
    return begins and not text.translate(None, _DIGITS + b",[]") and text.count(b"[") < MAX_BRACKETS


def occurrences(text: bytes, byte: bytes) -> int:
    """How often a byte stands in a text: what `count` says, which looks at each byte in turn, in a tenth of its time
    where the byte is rare."""
    return len(text) - len(text.replace(byte, b""))


def without_escaped_quotes(text: bytes) -> bytes:
    """The same text, as long, where every quote begins or ends a string."""
    return text.replace(b"\\\\", b"__").replace(b'\\"', b"__") if text.find(b"\\") >= 0 else text


def is_shallow(text: bytes) -> bool:
    """Whether it is nested at most MAX_DEPTH levels deep."""
    if occurrences(text, b"[") + occurrences(text, b"{") <= MAX_DEPTH:
        return True
    brackets = _outside(without_escaped_quotes(text)).translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):  # each takes the innermost level away
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return True
    return False


def require_bounded(text: bytes) -> None:
    """Raises ScanError where it holds more than is looked at."""
    _require_bounded(without_escaped_quotes(text))


def scan(text: bytes) -> None:
    """Look at each key of the object `text`. Raises ScanError at the first fault anywhere."""
    unescaped = without_escaped_quotes(text)
    _require_bounded(unescaped)
    fields = 0
    open_brackets: list[set[str]] = []  # what each has named; a list names nothing
    for token in _TOKEN.finditer(unescaped, 0, text.rindex(b"}") + 1):
        at, past = token.span("key")
        if at >= 0:
            _require_new(_name(text[at:past]), open_brackets[-1])
            fields += len(open_brackets) == 1
            require_few(fields)
        elif token["bracket"] in b"{[":
            open_brackets.append(set())
            if len(open_brackets) > MAX_DEPTH:
                raise too_deep()
        else:
            open_brackets.pop()


def require_few(fields: int) -> None:
    """Raises ScanError where an object has that many fields, and is the outermost."""
    _require_at_most(MAX_TOP_LEVEL, fields, "fields at the top")


def too_deep() -> ScanError:
    return ScanError(f"it is nested more than {MAX_DEPTH} levels deep")


def _outside(unescaped: bytes) -> bytes:
    """What is in none of its strings."""
    return b"".join(unescaped.split(b'"')[::2])


def _require_bounded(unescaped: bytes) -> None:
    _require_at_most(MAX_STRINGS, unescaped.count(b'"') // 2, "strings")
    if len(unescaped) <= min(MAX_FIELDS, MAX_BRACKETS, MAX_VALUES):
        return
    outside = _outside(unescaped)
    _require_at_most(MAX_BRACKETS, outside.count(b"{") + outside.count(b"["), "objects and lists")
    _require_at_most(MAX_FIELDS, outside.count(b":"), "fields in all its objects")
    if outside.count(b",") > MAX_VALUES:
        values = _IDS.sub(b"", outside.translate(None, _DIGITS))
        _require_at_most(MAX_VALUES, values.count(b","), "values beside token ids")


def _require_at_most(most: int, found: int, what: str) -> None:
    if found > most:
        raise ScanError(f"it has {found} {what} and at most {most} are taken, so shorten or split it")


def _require_new(name: str, named: set[str]) -> None:
    if name in named:
        raise ScanError(f"an object names {quoted(name)} twice", name)
    named.add(name)


def _name(quoted: bytes) -> str:
    return msgspec.json.decode(quoted, type=str) if b"\\" in quoted else quoted[1:-1].decode()
