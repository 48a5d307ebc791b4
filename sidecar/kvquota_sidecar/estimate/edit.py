"""Change single top-level fields in the text of a JSON object.

Decides the new text. Pure.

Invariants:

1. A field that is not named keeps its bytes and its place; so does everything between two such fields.
2. A field that is set keeps its place; one that was missing comes last; one that is removed takes its comma with it.

It does not know what the fields mean, and does not look into values.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import msgspec

from kvquota_sidecar.estimate.scan import Field, Fields


def edited(body: bytes, fields: Fields, changes: Mapping[str, bytes | None]) -> bytes:
    """`body` with each named field set to a JSON value (its text), or removed (None). `fields`: `scan` of `body`."""
    order = list(fields.by_name.values())
    next_keys = {field.key: after.key for field, after in pairwise(order)}
    kept = [(name, field) for name, field in fields.by_name.items() if changes.get(name, b"") is not None]
    pieces = [body[: order[0].key if order else fields.close]]
    for place, (name, field) in enumerate(kept):
        pieces.append(_field(body, field, changes.get(name)))
        if place + 1 < len(kept):
            pieces.append(body[field.end : next_keys[field.key]])
    added = [(name, value) for name, value in changes.items() if value is not None and name not in fields.by_name]
    for place, (name, value) in enumerate(added):
        comma = b"," if kept or place else b""
        pieces.append(comma + msgspec.json.encode(name) + b":" + value)
    pieces.append(body[order[-1].end if order else fields.close :])
    return b"".join(pieces)


def _field(body: bytes, field: Field, value: bytes | None) -> bytes:
    if value is None:
        return body[field.key : field.end]
    return body[field.key : field.value] + value
