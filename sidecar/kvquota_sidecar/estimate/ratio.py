"""Bytes of a prompt to tokens: a cautious line over what the engine counted in the tenant's earlier prompts.

Decides the estimate: tokens = what templates add + bytes × ratio. Pure.

Invariants:

1. The ratio is never below MIN_RATIO, whatever was sent: nobody trains it low. It is never above MAX_RATIO: a tokenizer
   of bytes cannot make more.
2. Of the last WINDOW long and the last WINDOW short prompts, the worst counts: one dense prompt is enough to raise the
   estimate, and each of them would be estimated at what it was, or more, as far as MAX_ADDED and MAX_RATIO allow.
3. What one tenant sends never changes the estimate for another.
4. The memory is bounded: MAX_KNOWN tenants, the one that has been silent longest is forgotten first.

It does not know the prompts, and not the chat template: `prompts` counts bytes for it.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from typing import Final

from kvquota_api.amounts import Tokens
from kvquota_api.pod_config import MAX_TENANTS

MIN_RATIO: Final = 0.3  # tokens per byte: English has 0.22-0.25, source code 0.3
MAX_RATIO: Final = 1.0  # tokens per byte
LONG: Final = 512  # bytes: from here on a prompt tells of its text, below it rather of what the template adds
MAX_ADDED: Final = 512  # tokens: the longest system prompt that a known chat template adds by itself has 430
WINDOW: Final = 64  # prompts: with two windows 2 KiB for each of up to 10,000 tenants
MAX_KNOWN: Final = MAX_TENANTS


class Ratios:
    """What is learnt of each tenant."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Line] = OrderedDict()

    def estimate(self, tenant: str, size: int) -> Tokens:
        """Tokens of a prompt of `size` bytes of this tenant, at least 1, rounded up."""
        line = self._known.get(tenant)
        added, ratio = (0, MIN_RATIO) if line is None else line.added_and_ratio()
        return Tokens(max(1, added + math.ceil(size * ratio)))

    def learn(self, tenant: str, size: int, tokens: Tokens) -> None:
        """The engine counted `tokens` in a prompt of `size` bytes. Nothing is learnt from an empty prompt."""
        if size <= 0:
            return
        self._known.setdefault(tenant, _Line()).see(size, tokens)
        self._known.move_to_end(tenant)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)


class _Line:
    """The last prompts of one tenant, and the line over them."""

    __slots__ = ("_added", "_long", "_ratio", "_short")

    def __init__(self) -> None:
        self._long = _Window()
        self._short = _Window()
        self._added = 0
        self._ratio: float | None = MIN_RATIO  # None: not of these windows

    def see(self, size: int, tokens: int) -> None:
        (self._long if size >= LONG else self._short).keep(size, min(tokens, size + MAX_ADDED))
        self._ratio = None

    def added_and_ratio(self) -> tuple[int, float]:
        """Tokens that are added to every prompt, and tokens per byte."""
        if self._ratio is None:
            beyond = max((tokens - size * MIN_RATIO for size, tokens in self._short.pairs()), default=0.0)
            self._added = math.ceil(min(MAX_ADDED, max(0.0, beyond)))
            steepest = max(((tokens - self._added) / size for size, tokens in self._long.pairs()), default=0.0)
            self._ratio = min(MAX_RATIO, max(MIN_RATIO, steepest))
        return self._added, self._ratio


class _Window:
    """The bytes and the tokens of the last WINDOW prompts."""

    __slots__ = ("_next", "_sizes", "_tokens")

    def __init__(self) -> None:
        self._sizes = array("q")
        self._tokens = array("q")
        self._next = 0

    def keep(self, size: int, tokens: int) -> None:
        if len(self._sizes) < WINDOW:
            self._sizes.append(size)
            self._tokens.append(tokens)
            return
        self._sizes[self._next], self._tokens[self._next] = size, tokens
        self._next = (self._next + 1) % WINDOW

    def pairs(self) -> zip[tuple[int, int]]:
        return zip(self._sizes, self._tokens, strict=True)
