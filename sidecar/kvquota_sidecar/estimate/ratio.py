"""Bytes of a prompt to tokens: what the engine counted in earlier prompts like it.

Decides the estimate, an upper bound, and how wrong the estimates are. Pure.

Three figures, for three questions of the ledger (docs/accounting.md):

* `estimate`, the usual one: the median of tokens per byte of this tenant's prompts of the same density and about the
  same length. It is honest, not careful: half of the prompts have more. It needs no floor, since it admits alone only
  where `most` would fit as well; in doubt the engine's tokenizer is asked.
* `most`: one token for each byte, and what the template adds. A tokenizer of bytes cannot make more.
* `worst`: the most tokens per byte that this model has ever shown, for when the tokenizer does not answer in time.

Invariants:

1. estimate ≤ most and worst ≤ most. Where the client sent token ids all three are their number.
2. What one tenant sends never changes the estimate for another. (What the template adds and the worst ratio belong to
   the model, and only ever rise.)
3. Nothing is learnt where bytes say nothing: from token ids, from prompts with images, audio or videos.
4. The memory is bounded: MAX_KNOWN tenants, the one that has been silent longest is forgotten first.

It does not know the prompts, and not the chat template: `prompts` counts bytes for it. A tokenizer that rewrites its
text first (NFKC makes 33 bytes of one sign of three) can pass `most`.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvquota_api.amounts import Tokens
from kvquota_api.pod_config import MAX_TENANTS
from kvquota_sidecar.estimate.density import CLASSES
from kvquota_sidecar.estimate.prompts import PromptSize

FIRST_RATIO: Final = 0.3  # tokens per byte before anything is learnt: English has 0.22-0.25, source code 0.25-0.3
WORST_FIRST: Final = 0.5  # tokens per byte: JSON has 0.35-0.45; denser texts (base64, digits) have to be seen once
LONG: Final = 512  # bytes: from here on a prompt tells of its text, below it rather of what the template adds
MAX_ADDED: Final = 512  # tokens: the longest system prompt that a known chat template adds by itself has 430
MAX_KNOWN: Final = MAX_TENANTS
WINDOW: Final = 64  # errors of one tenant that are kept: 256 bytes for each of up to 10,000 tenants
WINDOW_OF_ALL: Final = 512  # of all tenants together
# Bytes up to which a prompt is of one length: the shorter, the more of its tokens are the template's.
_LENGTHS: Final[tuple[int, ...]] = (192, 384, 1024, 4096)
_FIRST_STEP: Final = 0.5  # how far one prompt moves a median that it has founded with one other, as a factor
_LAST_STEP: Final = 0.03  # and one that many have told of: smaller than the errors, so that the median stands still
_MANY: Final = 255
_HIGHEST: Final = float(MAX_ADDED)  # tokens per byte: what a template adds to a prompt of one byte


@dataclass(frozen=True, slots=True)
class EstimateError:
    """|estimate − true| / true over the last `count` prompts: the median and the 90th percentile."""

    p50: float
    p90: float
    count: int


class Ratios:
    """What is learnt of one model and of each tenant."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Tenant] = OrderedDict()
        self._errors = _Errors(WINDOW_OF_ALL)
        self._worst = WORST_FIRST
        self._added = 0

    def estimate(self, tenant: str, prompt: PromptSize) -> Tokens:
        """Tokens of a prompt of this tenant, at least 1."""
        if prompt.tokens is not None:
            return prompt.tokens
        known = self._known.get(tenant)
        ratio = FIRST_RATIO if known is None else known.ratio(_place(prompt))
        return self._bounded(prompt, int(prompt.size * ratio + 0.5))

    def most(self, prompt: PromptSize) -> Tokens:
        """Tokens that a prompt has at most."""
        if prompt.tokens is not None:
            return prompt.tokens
        return Tokens((prompt.size + self._added or 1) + prompt.media)

    def worst(self, prompt: PromptSize) -> Tokens:
        """Tokens of a prompt if its text is as dense as the densest that this model has ever read."""
        if prompt.tokens is not None:
            return prompt.tokens
        return self._bounded(prompt, self._added + math.ceil(prompt.size * self._worst))

    def learn(self, tenant: str, prompts: Sequence[PromptSize], tokens: Tokens) -> None:
        """The engine counted `tokens` in all `prompts` of a request together."""
        for each in prompts:
            if each.tokens is not None or each.media or each.sure <= 0:
                return
        if len(prompts) == 1:
            self._learn(tenant, prompts[0], tokens)
        elif prompts:
            self._learn(tenant, _mean(prompts), tokens // len(prompts))

    def _learn(self, tenant: str, prompt: PromptSize, tokens: int) -> None:
        known = self._known.get(tenant)
        if known is None:
            known = self._known[tenant] = _Tenant()
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(tenant)
        size, sure, place = prompt.size, prompt.sure, _place(prompt)
        error = abs(self._bounded(prompt, int(size * known.ratio(place) + 0.5)) - tokens) / (tokens or 1)
        found = tokens / sure
        known.learn(place, min(found, _HIGHEST))
        known.errors.keep(error)
        self._errors.keep(error)
        if tokens > size + self._added:
            self._added = min(tokens - size, MAX_ADDED)
        if sure >= LONG and tokens > sure * self._worst:
            self._worst = min(1.0, found)

    def error(self, tenant: str | None = None) -> EstimateError | None:
        """How wrong the estimates for a tenant were, or for all (None). None where nothing was learnt of it yet."""
        if tenant is None:
            return self._errors.summary()
        known = self._known.get(tenant)
        return None if known is None else known.errors.summary()

    def _bounded(self, prompt: PromptSize, tokens: int) -> Tokens:
        return Tokens(min(tokens or 1, prompt.size + self._added or 1) + prompt.media)


class _Tenant:
    """The medians of one tenant, one for each density and length, and the errors of its estimates."""

    __slots__ = ("_medians", "_seen", "errors")

    def __init__(self) -> None:
        self._medians = array("f", bytes(4 * CLASSES * (len(_LENGTHS) + 1)))
        self._seen = bytearray(CLASSES * (len(_LENGTHS) + 1))
        self.errors = _Errors(WINDOW)

    def ratio(self, place: int) -> float:
        """Tokens per byte of prompts of that place: of the nearest density and length that is known."""
        if self._seen[place]:
            return self._medians[place]
        return self._nearest(*divmod(place, CLASSES))

    def _nearest(self, length: int, density: int) -> float:
        def distance(place: int) -> tuple[int, int, int]:
            other_length, other_density = divmod(place, CLASSES)
            return abs(other_density - density) + 2 * abs(other_length - length), -other_length, other_density

        known = [place for place in range(len(self._seen)) if self._seen[place]]
        return self._medians[min(known, key=distance)] if known else FIRST_RATIO

    def learn(self, place: int, found: float) -> None:
        """`found`: tokens per byte of a prompt of that place."""
        seen, median = self._seen[place], self._medians[place]
        if not seen:
            self._medians[place] = found
        else:
            step = 1 + max(_LAST_STEP, _FIRST_STEP / seen)
            self._medians[place] = min(found, median * step) if found > median else max(found, median / step)
        if seen < _MANY:
            self._seen[place] = seen + 1


def _place(prompt: PromptSize) -> int:
    """Which median is that of prompts like it: by length, and within that by density."""
    size, length = prompt.size, 0
    while length < len(_LENGTHS) and size > _LENGTHS[length]:
        length += 1
    return length * CLASSES + prompt.density


class _Errors:
    """The last errors, as fractions."""

    __slots__ = ("_kept", "_next", "_size")

    def __init__(self, size: int) -> None:
        self._kept = array("f")
        self._next = 0
        self._size = size

    def keep(self, error: float) -> None:
        if len(self._kept) < self._size:
            self._kept.append(error)
            return
        self._kept[self._next] = error
        self._next = (self._next + 1) % self._size

    def summary(self) -> EstimateError | None:
        if not self._kept:
            return None
        ordered = sorted(self._kept)
        return EstimateError(ordered[len(ordered) // 2], ordered[len(ordered) * 9 // 10], len(ordered))


def _mean(prompts: Sequence[PromptSize]) -> PromptSize:
    """One prompt for all of a list."""
    size, sure = (
        sum(sizes) // len(prompts) for sizes in zip(*((each.size, each.sure) for each in prompts), strict=True)
    )
    return PromptSize(size, max(1, sure), density=max(prompts, key=lambda each: each.size).density)
