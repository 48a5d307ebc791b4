"""Names for full blocks of tokens, so that equal beginnings are found again.

Invariants:
1. Two blocks have the same name exactly when all tokens up to their end, and the salt of their sequences, are equal.
2. A block that is not full has no name.

It does not know pools, requests or tenants.
"""

import hashlib
from array import array
from collections.abc import Sequence

BlockName = bytes

# 16 bytes: a collision among 2^40 blocks has a chance of about 1 in 2^49.
_DIGEST_BYTES = 16


def extend_chain(
    names: list[BlockName], tokens: Sequence[int], *, block_tokens: int, salt: str | None, upto: int
) -> None:
    """Append the names of all blocks that the first `upto` tokens fill and that `names` does not have yet."""
    for index in range(len(names), upto // block_tokens):
        parent = names[index - 1] if index else _root(salt)
        block = tokens[index * block_tokens : (index + 1) * block_tokens]
        names.append(_digest(parent + array("Q", block).tobytes()))


def _root(salt: str | None) -> bytes:
    return b"" if salt is None else _digest(b"salt:" + salt.encode())


def _digest(content: bytes) -> BlockName:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
