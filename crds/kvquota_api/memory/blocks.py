"""How many KV blocks a sequence of a given length holds.

Decides the cost of a request from its length and the layer groups of the plan. Pure.

Invariants:

1. The cost grows with the length, never falls.
2. Every group draws its blocks from the same pool, so the costs of the groups add up (docs/memory.md R5.4).

It does not know how the groups were found: that is the planner of each engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from kvquota_api.amounts import Blocks, Tokens

GroupKind = Literal["Full", "Sliding", "Chunked", "State"]


class LayerGroup(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One group of layers that share block tables.

    `block_tokens`: tokens of one sequence in one block of this group, at least 1.
    `window_tokens`: for Sliding and Chunked, what of the past stays in the cache with the tokens in flight; at least 1.
    `fixed_blocks`: for State, blocks that one running sequence holds whatever its length.
    """

    kind: GroupKind
    block_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    window_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    fixed_blocks: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0


def blocks_for(groups: Iterable[LayerGroup], length: Tokens) -> Blocks:
    """Blocks that one sequence of `length` tokens holds over all groups; 0 for an empty sequence."""
    if length <= 0:
        return Blocks(0)
    return Blocks(sum(_group_blocks(group, length) for group in groups))


def _group_blocks(group: LayerGroup, length: int) -> int:
    if group.kind == "State":
        return group.fixed_blocks
    if group.kind == "Sliding":
        return -(-min(group.window_tokens, length) // group.block_tokens) + 1
    if group.kind == "Chunked":
        return -(-min(group.window_tokens, length) // group.block_tokens)
    return -(-length // group.block_tokens)
