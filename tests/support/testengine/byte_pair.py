"""Train a byte-level byte-pair tokenizer on a text: which pairs are merged, in which order.

Invariants:
1. The same text and size give the same merges on every machine: ties go to the smaller pair.
2. Every byte is a symbol of its own, so any text can be encoded.

It does not know files, models or the format that a tokenizer is stored in.
"""

import re
from collections import Counter
from itertools import pairwise

Pair = tuple[str, str]

# One word with the space before it, a run of other signs, or white space: near enough to the splitting of the
# byte-level pre-tokenizer that merges learnt here are found again there.
_PIECES = re.compile(r" ?\w+| ?[^\w\s]+|\s+")


def byte_symbols() -> dict[int, str]:
    """Each byte's printable stand-in, as byte-level tokenizers write it: itself, or a character from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    symbols = {byte: chr(byte) for byte in printable}
    for shifted, byte in enumerate(byte for byte in range(256) if byte not in symbols):
        symbols[byte] = chr(0x100 + shifted)
    return symbols


def learn_merges(text: str, count: int) -> list[Pair]:
    """At most `count` merges in the order learnt, the most frequent pair first."""
    symbols = byte_symbols()
    words = Counter(tuple(symbols[byte] for byte in piece.encode()) for piece in _PIECES.findall(text))
    merges: list[Pair] = []
    while len(merges) < count and (best := _most_frequent_pair(words)) is not None:
        merges.append(best)
        words = _merged(words, best)
    return merges


def _most_frequent_pair(words: Counter[tuple[str, ...]]) -> Pair | None:
    pairs: Counter[Pair] = Counter()
    for word, occurrences in words.items():
        for pair in pairwise(word):
            pairs[pair] += occurrences
    return min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)


def _merged(words: Counter[tuple[str, ...]], pair: Pair) -> Counter[tuple[str, ...]]:
    merged: Counter[tuple[str, ...]] = Counter()
    for word, occurrences in words.items():
        merged[_merge_word(word, pair)] += occurrences
    return merged


def _merge_word(word: tuple[str, ...], pair: Pair) -> tuple[str, ...]:
    result: list[str] = []
    position = 0
    while position < len(word):
        if word[position : position + 2] == pair:
            result.append(pair[0] + pair[1])
            position += 2
        else:
            result.append(word[position])
            position += 1
    return tuple(result)
