"""Text to tokens and back, without a vocabulary file.

A token is up to three letters or digits with the space before them, or any other single byte: about three bytes a
token in English, one in dense text. A token's number spells its bytes, so different pieces never share a number.
"""

import re
from collections.abc import Sequence

_PIECE = re.compile(rb" ?[A-Za-z0-9]{1,3}|[\x00-\xff]")
_LONGEST_PIECE_BYTES = 4
VOCABULARY = 1 << (8 * _LONGEST_PIECE_BYTES + 1)

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def encode(text: str) -> list[int]:
    return [int.from_bytes(b"\x01" + piece) for piece in _PIECE.findall(text.encode("utf-8", "surrogatepass"))]


def piece(token: int) -> str:
    """The text of one token; numbers that no text encodes to read as the replacement character."""
    spelled = token.to_bytes(_LONGEST_PIECE_BYTES + 1).lstrip(b"\x00")
    return spelled[1:].decode("utf-8", "replace") if spelled[:1] == b"\x01" else "\ufffd"


def answer_token(position: int) -> int:
    """The token at `position` (from 0) of every answer: a space and the position in three digits of base 36."""
    first, rest = divmod(position % 36**3, 36 * 36)
    second, third = divmod(rest, 36)
    return encode(f" {_DIGITS[first]}{_DIGITS[second]}{_DIGITS[third]}")[0]


def render_chat(messages: Sequence[tuple[str, str]], *, generation_prompt: bool) -> str:
    """Lay (role, content) pairs out as one prompt."""
    turns = "".join(f"<|{role}|>\n{content}<|end|>\n" for role, content in messages)
    return turns + ("<|assistant|>\n" if generation_prompt else "")
