"""Read the text of a JSON object so that nobody can read another object from it.

Decides whether a body can be read in one way only, and gives its top-level fields. Pure, and linear in its length.

Invariants:

1. What is accepted is UTF-8 and JSON, names no key twice at any depth, and is nested at most MAX_DEPTH levels deep.
2. Whether a key is named twice is found without a look at single keys: a parser drops one of the two, so what it has
   read has fewer quotes, written again, than the text. Only where that is so, and there are few, `scan` looks at each
   key, to name it.
3. Texts of more than SMALL bytes stay within the bounds of `scan` as well, and of them only what holds an object is
   read: lists of texts and of token ids name no key.

It does not know what the fields mean.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kvquota_sidecar.estimate.scan import (
    MAX_TOP_LEVEL,
    ScanError,
    is_shallow,
    is_token_lists,
    pairs,
    require_bounded,
    require_few,
    scan,
    too_deep,
)

# Bytes: most bodies are smaller, and so much of nothing but small objects is read in 5 ms. Longer ones are counted
# first.
SMALL: Final = 65_536
FEW: Final = 2048  # quotes and brackets: to look at each key and bracket of a text with so many takes 1 ms
_SHORT: Final = 4096  # bytes: lists of ids of less count for what they are
_RAWS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
_ANY: Final = msgspec.json.Decoder()
_ENCODER: Final = msgspec.json.Encoder()


def read_object(text: bytes) -> dict[str, Any]:
    """The fields of a JSON object: as Python objects, or as msgspec.Raw where a long text holds no object in them.

    Raises ScanError, msgspec.MsgspecError, UnicodeDecodeError or RecursionError.
    """
    text.decode()
    fields = _OBJECT.decode(text) if len(text) <= SMALL else _read_long(text)
    again = _ENCODER.encode(fields)
    is_whole = text == again or _has_all_quotes(text, again)
    if not (is_whole and len(fields) <= MAX_TOP_LEVEL and is_shallow(text)):
        _look_closely(text, again, len(fields))
    return fields


def _read_long(text: bytes) -> dict[str, Any]:
    raws = _RAWS.decode(text)
    values = {name: bytes(raw) for name, raw in raws.items()}
    counted = [each for each in values.values() if len(each) < _SHORT or not is_token_lists(each)]
    require_bounded(b'{"":%b}' % b',"":'.join(counted))
    return {name: _ANY.decode(raw) if b"{" in values[name] else raw for name, raw in raws.items()}


def _has_all_quotes(text: bytes, again: bytes) -> bool:
    """Whether nothing of `text` is missing in what was read from it, which is written `again`."""
    # A quote in a string is written \" again, so one that was written \u0022 would stand in for one that is missing.
    return text.count(b'"') == again.count(b'"') and not (b"\\" in text and b"\\u0022" in text)


def _look_closely(text: bytes, again: bytes, fields: int) -> None:
    """Find out what is wrong, if anything is. `again`: what was read, written again. Raises ScanError."""
    if text.count(b'"') + text.count(b"[") + text.count(b"{") <= FEW:
        scan(text)
        return
    if pairs(text) != pairs(again):
        raise ScanError("an object names a key twice")
    require_few(fields)
    if not is_shallow(text):
        raise too_deep()
