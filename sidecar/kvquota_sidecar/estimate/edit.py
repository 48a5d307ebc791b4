"""Change single top-level fields in the text of a JSON object.

Decides the new text. Pure.

Invariants:

1. A field that is not named keeps its bytes and its place; so does everything between two such fields.
2. A field that is set keeps its place; one that was missing comes last; one that is removed takes its comma with it.
3. The text is looked through only where it holds a field that changes.

It does not know what the fields mean, and does not look into values.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec

_RAWS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
# Up to a value. Atomic groups, not possessive quantifiers: those match wrongly around a group in Python before 3.11.5.
_KEY: Final = re.compile(rb'(?>[ \t\r\n,]*)("(?>(?:[^"\\]|\\.)*)")(?>[ \t\r\n]*):(?>[ \t\r\n]*)', re.DOTALL)


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


def fields_of(body: bytes) -> Fields:
    """Where the top-level fields of an object stand, each of which names its key once. The parser says how long each
    value is, so none is looked into."""
    by_name: dict[str, Field] = {}
    at = body.index(b"{") + 1
    for name, raw in _RAWS.decode(body).items():
        key = next(_KEY.finditer(body, at))
        at = key.end() + len(bytes(raw))
        by_name[name] = Field(key.start(1), key.end(), at)
    return Fields(by_name, body.rindex(b"}"))


def edited(body: bytes, names: Collection[str], changes: dict[str, bytes | None]) -> bytes:
    """`body` with each named field set to a JSON value (its text), or removed (None).

    `body`: an object that `read_object` has accepted. `names`: of its top-level fields.
    """
    added: list[tuple[str, bytes | None]] = []
    for name, value in changes.items():
        if name in names:
            return _rewritten(body, fields_of(body), changes)
        if value is not None:
            added.append((name, value))
    return _with_more(body, body.rindex(b"}"), added, is_first=not names) if added else body


def _rewritten(body: bytes, fields: Fields, changes: Mapping[str, bytes | None]) -> bytes:
    order = list(fields.by_name.values())
    next_keys = {field.key: after.key for field, after in pairwise(order)}
    kept = [(name, field) for name, field in fields.by_name.items() if changes.get(name, b"") is not None]
    pieces = [body[: order[0].key]]
    for place, (name, field) in enumerate(kept):
        pieces.append(_field(body, field, changes.get(name)))
        if place + 1 < len(kept):
            pieces.append(body[field.end : next_keys[field.key]])
    head, tail = b"".join(pieces), body[order[-1].end :]
    added = [(name, value) for name, value in changes.items() if name not in fields.by_name]
    return _with_more(head + tail, len(head), added, is_first=not kept)


def _field(body: bytes, field: Field, value: bytes | None) -> bytes:
    if value is None:
        return body[field.key : field.end]
    return body[field.key : field.value] + value


def _with_more(body: bytes, at: int, added: Iterable[tuple[str, bytes | None]], *, is_first: bool) -> bytes:
    """`body` with fields put in at the offset `at`, behind others or as the first."""
    more = [msgspec.json.encode(name) + b":" + value for name, value in added if value is not None]
    if not more:
        return body
    return b"".join((body[:at], b"" if is_first else b",", b",".join(more), body[at:]))
