"""Read the text of a JSON object so that nobody can read another object from it.

Decides whether a body can be read in one way only, and gives its top-level fields. Pure, and linear in its length.

Invariants:

1. What is accepted is UTF-8 and JSON, names no key twice at any depth, and is nested at most MAX_DEPTH levels deep.
2. Whether a key is named twice is found without a look at single keys: a parser drops one of the two, so what it has
   read holds fewer strings than the text. Only where that is so, and there are few, `scan` looks at each key, to name
   it.
3. Texts of more than SMALL bytes stay within the bounds of `scan` as well, and of them only what holds an object is
   read: lists of texts and of token ids name no key.

It does not know what the fields mean.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kvquota_sidecar.estimate.scan import (
    MAX_DEPTH,
    MAX_TOP_LEVEL,
    ScanError,
    is_shallow,
    is_token_lists,
    occurrences,
    require_bounded,
    require_few,
    scan,
    too_deep,
    without_escaped_quotes,
)

# Bytes: most bodies are smaller, and so much of nothing but small objects is read in 5 ms. Longer ones are counted
# first.
SMALL: Final = 65_536
FEW: Final = 2048  # quotes and brackets: to look at each key and bracket of a text with so many takes 1 ms
_SHORT: Final = 4096  # bytes: lists of ids of less count for what they are
_RAWS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
_ANY: Final = msgspec.json.Decoder()
_TOO_DEEP: Final = -(2**62)  # strings: so few that with all others they are never as many as in the text


def read_object(text: bytes) -> dict[str, Any]:
    """The fields of a JSON object: as Python objects, or as msgspec.Raw where a long text holds no object in them.

    Raises ScanError, msgspec.MsgspecError, UnicodeDecodeError or RecursionError.
    """
    if not text.isascii():
        text.decode()
    if len(text) <= SMALL:
        fields = _OBJECT.decode(text)
        is_whole = _strings(text) == _strings_of(fields, MAX_DEPTH)
    else:
        fields = _read_long(text)
        is_whole = _strings(text) == _strings_of_long(fields) and is_shallow(text)
    if not is_whole or len(fields) > MAX_TOP_LEVEL:
        _look_closely(text, len(fields))
    return fields


def _read_long(text: bytes) -> dict[str, Any]:
    raws = _RAWS.decode(text)
    values = {name: bytes(raw) for name, raw in raws.items()}
    counted = [each for each in values.values() if len(each) < _SHORT or not is_token_lists(each)]
    require_bounded(b'{"":%b}' % b',"":'.join(counted))
    return {name: _ANY.decode(raw) if b"{" in values[name] else raw for name, raw in raws.items()}


def _strings(text: bytes) -> int:
    """How many strings a JSON text has, keys and values."""
    return occurrences(without_escaped_quotes(text), b'"') // 2


def _strings_of(value: object, levels: int) -> int:
    """How many strings were read, keys and values; less than none where it is nested more than `levels` levels deep."""
    if isinstance(value, str):
        return 1
    if isinstance(value, dict):
        found = len(value) if levels else _TOO_DEEP
        for each in value.values():
            found += 1 if isinstance(each, str) else _strings_of(each, levels - 1)
        return found
    if isinstance(value, list):
        found = 0 if levels else _TOO_DEEP
        for each in value:
            found += 1 if isinstance(each, str) else _strings_of(each, levels - 1)
        return found
    return 0


def _strings_of_long(fields: dict[str, Any]) -> int:
    found = len(fields)
    for each in fields.values():
        found += _strings(bytes(each)) if type(each) is msgspec.Raw else _strings_of(each, MAX_DEPTH)
    return found


def _look_closely(text: bytes, fields: int) -> None:
    """Find out what is wrong, if anything is. Raises ScanError."""
    if text.count(b'"') + text.count(b"[") + text.count(b"{") <= FEW:
        scan(text)
        return
    require_few(fields)
    raise ScanError("an object names a key twice") if is_shallow(text) else too_deep()
