"""What two prompts have in common: one hash for each chunk of a prompt, over everything before it as well.

Decides the hashes. Pure: the same bytes give the same hashes within one process, and other ones in the next.

Invariants:

1. Where two chains agree in their first k hashes, the prompts agree in `seed` and in their first k × CHUNK_BYTES bytes.
   Python hashes bytes under a secret of the process, so nobody can search for two texts with one hash (unless the
   process is started with PYTHONHASHSEED, which is for tests).
2. What does not fill a chunk has no hash, and beyond MAX_CHUNKS nothing has: less is found to be shared, never more.

It does not know tokens. A template that writes an earlier message in another way because of a later one (some leave old
reasoning out) breaks the tokens' beginning where the bytes still agree: then less is shared in the engine than here.
"""

from __future__ import annotations

from typing import Final

CHUNK_BYTES: Final = 512  # about 128 tokens of English, 8 blocks of 16: what is found is less than that short
MAX_CHUNKS: Final = 4096  # 2 MiB of one prompt, 500,000 tokens: 1.5 ms, and 160 KiB while it runs


def chain(seed: bytes, text: bytes) -> tuple[int, ...]:
    """A 64-bit hash for each whole chunk of `text`; `seed`: what shapes the prompt beside `text`."""
    last, hashes = hash(seed), []
    for start in range(0, min(len(text) - CHUNK_BYTES + 1, MAX_CHUNKS * CHUNK_BYTES), CHUNK_BYTES):
        last = hash((last, text[start : start + CHUNK_BYTES]))
        hashes.append(last)
    return tuple(hashes)
