"""How hard a secret is to find by trying. Pure."""

from __future__ import annotations

import math
import string
from typing import Final

MINIMUM_BITS: Final = 128  # of a key, so that nobody finds one by trying
MINIMUM_VARIETY: Final = 8  # different characters: 32 random hexadecimal digits have fewer once in 20 million keys
KEY_PREFIX: Final = "kvq-"  # says what the key is for, and adds nothing to its strength


def strength_bits(key: str) -> float:
    """Bits of randomness that a key of this length and alphabet can have at most; 0 where it hardly varies."""
    body = key.removeprefix(KEY_PREFIX)
    if len(set(body)) < MINIMUM_VARIETY:
        return 0.0
    return len(body) * math.log2(_alphabet(body))


def _alphabet(body: str) -> int:
    """How many characters the key could have been made of: the smallest alphabets that its characters are from."""
    kinds = (
        (string.digits,),
        (string.hexdigits[10:16], string.ascii_lowercase),
        (string.hexdigits[16:], string.ascii_uppercase),
        (string.punctuation,),
    )
    return sum(_smallest(kind, body) for kind in kinds)


def _smallest(alphabets: tuple[str, ...], body: str) -> int:
    found = set(body).intersection(alphabets[-1])
    return next(len(each) for each in alphabets if found.issubset(each)) if found else 0
