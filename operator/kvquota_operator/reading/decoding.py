"""JSON from an API server, however deep it is.

Decides what is taken of an answer in which one object has more levels than Python reads: an API server stores ten
thousand of them in a field whose content is free. Pure. Invariants:

1. One such object never hides the others of its list. It stays deeper than any object may be, so that its own status
   says what is wrong with it.
2. What is no deeper than LEVELS is read as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

LEVELS: Final = 200  # of an answer: more than `kvquota_api.validation` allows an object, and less than Python reads
_PIECES: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]|[^"\[\]{}]+')  # string, bracket, between them


def decode(text: bytes) -> Any:
    """The value in `text`; arrays and objects below LEVELS are empty where it is too deep. Raises DecodeError."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        return msgspec.json.decode(b"".join(_shallow(text)))


def _shallow(text: bytes) -> Iterator[bytes]:
    level = 0
    for match in _PIECES.finditer(text):
        piece = match[0]
        level += piece in (b"{", b"[")
        if level < LEVELS or (level == LEVELS and piece in (b"{", b"[", b"}", b"]")):
            yield piece
        level -= piece in (b"}", b"]")
