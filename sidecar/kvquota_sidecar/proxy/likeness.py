"""Frames of one stream that differ in nothing but a token's text.

Decides whether a frame is such a one. Pure.

Invariants:

1. A frame like the one that was learnt has the same fields, the same values but for one, and there a text that is not
   empty: what was counted of that frame holds for it too. All else is read as JSON.
2. What is learnt was read as JSON before. A key like `"content":"` stands nowhere inside a text, where quotes are
   escaped.
3. A text holds no quote and no line feed, and does not end with a backslash: so it ends where the learnt one ends.
   What else it holds makes no difference, as it is one token's whatever it says.
"""

from __future__ import annotations

from typing import Final

_KEYS: Final = (b'"content":"', b'"text":"')  # of a chat's delta, and of a completion
_START: Final = b"data:"
_END: Final = b"\n\n"
_QUOTE: Final = 0x22
_LINE_FEED: Final = 0x0A
_BACKSLASH: Final = 0x5C


class Likeness:
    """What the frames of one stream have before and behind their text; nothing yet at first."""

    __slots__ = ("_after", "_before")

    def __init__(self) -> None:
        self._before = b""
        self._after = b""

    def matches(self, frame: bytes) -> bool:
        """Whether a frame, one line and the empty one that ends it, is like those that were learnt."""
        before, after = self._before, self._after
        if not (before and frame.startswith(before) and frame.endswith(after)):
            return False
        text = frame[len(before) : len(frame) - len(after)]
        if not text or text[-1] == _BACKSLASH:
            return False
        return _QUOTE not in text and _LINE_FEED not in text

    def learn(self, payload: bytes, text: str) -> None:
        """`payload`, all of a frame behind `data:`, was read, and holds one token, `text`, and nothing else that
        counts."""
        for key in _KEYS if payload.endswith(_END) else ():
            start = payload.find(key) + len(key)
            end = start + len(text)
            if start >= len(key) and payload.count(key) == 1 and payload[start:end] == text.encode():
                self._before, self._after = _START + payload[:start], payload[end:]
                return
        self._before = b""
