"""How many requests of which length a cache holds at the same time.

Decides the capacity by length of context. Pure.

Invariants:

1. Longer requests are never more of them.
2. Blocks that the engine never hands out hold nothing; a request longer than the engine allows does not fit at all.

It does not know how many sequences the engine runs in one step: requests beyond that wait, whatever the memory holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.memory.blocks import blocks_for
from kvquota_api.memory.cache_plan import CachePlan


@dataclass(frozen=True, slots=True)
class Capacity:
    """`requests` of `context` tokens of prompt and output that fit at the same time in one engine, `blocks` each."""

    context: Tokens
    blocks: Blocks
    requests: int


def capacity_of(cache: CachePlan, contexts: Iterable[Tokens]) -> tuple[Capacity, ...]:
    """The capacity for each length (at least 1 token), in the order given."""
    return tuple(_of(cache, context) for context in contexts)


def _of(cache: CachePlan, context: Tokens) -> Capacity:
    each = blocks_for((group.cost for group in cache.groups), context)
    allowed = context <= cache.max_model_len
    usable = max(0, cache.blocks - cache.null_blocks)
    return Capacity(context, each, usable // max(1, each) if allowed else 0)
