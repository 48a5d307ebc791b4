"""Frames of one stream that differ in nothing but a token's text.

Decides whether a frame is such a one. Pure.

Invariants:

1. A frame like the one that was learnt has the same fields, the same values but for one, and there a text that is not
   empty: what was counted of that frame holds for it too. All else is read as JSON.
2. What is learnt was read as JSON before. A key like `"content":"` stands nowhere inside a text, where quotes are
   escaped.
3. Only plain ASCII without escapes is compared: a text of anything else is read.
"""

from __future__ import annotations

from typing import Final

_KEYS: Final = (b'"content":"', b'"text":"')  # of a chat's delta, and of a completion


class Likeness:
    """What the frames of one stream have before and behind their text; nothing yet at first."""

    __slots__ = ("_after", "_before")

    def __init__(self) -> None:
        self._before = b""
        self._after = b""

    def matches(self, payload: bytes) -> bool:
        """Whether the data of a frame is like those that were learnt."""
        before, after = self._before, self._after
        if not before or not payload.startswith(before) or not payload.endswith(after):
            return False
        start, end = len(before), len(payload) - len(after)
        return (
            start < end
            and payload.find(b'"', start) == end
            and payload.find(b"\\", start, end) < 0
            and payload.isascii()
        )

    def learn(self, payload: bytes, text: str) -> None:
        """`payload` was read, and holds one token, `text`, and nothing else that counts."""
        for key in _KEYS:
            start = payload.find(key) + len(key)
            end = start + len(text)
            if start >= len(key) and payload.count(key) == 1 and payload[start:end] == text.encode():
                self._before, self._after = payload[:start], payload[end:]
                return
        self._before = b""
