"""Read the text of a JSON object so that nobody can read another object from it.

Decides whether a body can be read in one way only, and gives its top-level fields. Pure, and linear in its length.

Invariants:

1. What is accepted is UTF-8 and JSON, names no key twice at any depth, and is nested at most MAX_DEPTH levels deep.
2. Whether a key is named twice is found without a look at single keys: a parser drops one of the two, so what it has
   read has fewer quotes, written again, than the text. Only where that is so `scan` looks for the key, to name it.
3. Texts of more than SMALL bytes stay within the bounds of `scan` as well, and of them only what holds an object is
   read: lists of texts and of token ids name no key.

It does not know what the fields mean.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kvquota_sidecar.estimate.scan import MAX_DEPTH, MAX_FIELDS, MAX_TOP_LEVEL, scan

# Bytes: most bodies are smaller, and so much of nothing but empty lists is read in 5 ms. Longer ones are counted first.
SMALL: Final = 131_072
_SHORT: Final = 4096  # bytes: up to here brackets are counted faster than the objects are walked through
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
    if not (is_whole and len(fields) <= MAX_TOP_LEVEL and _is_shallow(text, fields)):
        scan(text)
    return fields


def _read_long(text: bytes) -> dict[str, Any]:
    raws = _RAWS.decode(text)
    plain = {name for name, raw in raws.items() if b"{" not in bytes(raw)}
    values = text.count(b",") + text.count(b"[") + text.count(b"{")  # at most: each follows one of them
    if values > MAX_FIELDS or any(bytes(raws[name]).count(b"[") > MAX_DEPTH for name in plain):
        scan(text)
    return {name: raw if name in plain else _ANY.decode(raw) for name, raw in raws.items()}


def _has_all_quotes(text: bytes, again: bytes) -> bool:
    """Whether nothing of `text` is missing in what was read from it, which is written `again`."""
    # A quote in a string is written \" again, so one that was written \u0022 would stand in for one that is missing.
    return text.count(b'"') == again.count(b'"') and not (b"\\" in text and b"\\u0022" in text)


def _is_shallow(text: bytes, fields: dict[str, Any]) -> bool:
    """Whether `fields`, read from `text`, are nested at most MAX_DEPTH levels deep."""
    if len(text) <= _SHORT and len(text) - len(text.translate(None, b"[{")) <= MAX_DEPTH:
        return True
    level: list[Any] = [fields]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return True
    return False
