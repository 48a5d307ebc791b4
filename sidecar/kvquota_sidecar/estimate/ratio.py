"""Bytes of a prompt to tokens, by what the engine said about earlier prompts.

Decides the estimate. Pure.

Invariants:

1. One token per byte is the most that is ever estimated: a tokenizer of bytes cannot make more.
2. What one tenant sends never changes the estimate for another one that has sent something itself.
3. The memory is bounded: MAX_KNOWN tenants, the one that has been silent longest is forgotten first.

It does not know the prompts, and not the chat template: `shape` counts bytes for it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

from kvquota_api.amounts import Tokens
from kvquota_api.pod_config import MAX_TENANTS

DEFAULT_RATIO: Final = 0.3  # tokens per byte before anything is known: English has 0.22-0.25, source code 0.3
MIN_RATIO: Final = 0.01  # tokens per byte: long runs of spaces come near it; keeps an estimate from falling to nothing
MAX_RATIO: Final = 1.0  # tokens per byte
MEMORY: Final = 0.95  # weight that an observation keeps when the next comes: about the last 20 prompts count
MAX_KNOWN: Final = MAX_TENANTS


class Ratios:
    """The learnt ratio of each tenant; the mean over the model's prompts where a tenant has none yet."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Mean] = OrderedDict()
        self._model = _Mean()

    def estimate(self, tenant: str, size: int) -> Tokens:
        """Tokens of a prompt of `size` bytes of this tenant, at least 1, rounded up."""
        mean = self._known.get(tenant, self._model)
        return Tokens(max(1, math.ceil(size * mean.ratio())))

    def learn(self, tenant: str, size: int, tokens: Tokens) -> None:
        """The engine counted `tokens` in a prompt of `size` bytes. Nothing is learnt from an empty prompt."""
        if size <= 0:
            return
        for mean in (self._known.setdefault(tenant, _Mean()), self._model):
            mean.add(size, tokens)
        self._known.move_to_end(tenant)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)


class _Mean:
    """A mean of tokens per byte, weighted by bytes, that forgets."""

    __slots__ = ("_bytes", "_tokens")

    def __init__(self) -> None:
        self._bytes = 0.0
        self._tokens = 0.0

    def add(self, size: int, tokens: int) -> None:
        bounded = min(size * MAX_RATIO, max(size * MIN_RATIO, tokens))
        self._bytes = self._bytes * MEMORY + size
        self._tokens = self._tokens * MEMORY + bounded

    def ratio(self) -> float:
        return self._tokens / self._bytes if self._bytes else DEFAULT_RATIO
