"""How many blocks the groups get from given bytes, and what that holds.

Decides blocks, concurrency, the least bytes to start with and the longest length that fits. Pure.

Invariants:

1. Every stage divides the same bytes by its own bytes per block; the fewest blocks count for all.
2. One block is never handed out: a length fits if its blocks and this one do.

Source: vllm/v1/core/kv_cache_utils.py `get_kv_cache_configs`, `_get_kv_cache_bytes_per_block`,
`_auto_fit_max_model_len` of 0.32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvquota_api.amounts import Tokens
from kvquota_api.memory.blocks import LayerGroup, blocks_for
from kvquota_api.memory.vllm.grouping import Group, Layout
from kvquota_api.memory.vllm.specs import Demand, LayerSpec, cost_of

NULL_BLOCKS = 1  # BlockPool takes one at start and never hands it out


@dataclass(frozen=True, slots=True)
class Pool:
    """The groups on all stages. `costs`: of the groups in order; `stage_bytes`: bytes per block of each stage."""

    costs: tuple[LayerGroup, ...]
    stage_bytes: tuple[int, ...]

    @property
    def widest(self) -> int:
        """Bytes per block of the stage that gets the fewest blocks."""
        return max(self.stage_bytes)

    def blocks(self, kv_bytes: int) -> int:
        return kv_bytes // self.widest

    def blocks_of(self, length: int) -> int:
        """Blocks of one sequence of `length` tokens."""
        return int(blocks_for(self.costs, Tokens(length)))

    def min_bytes(self, length: int) -> int:
        """The least bytes with which one sequence of `length` fits."""
        return (self.blocks_of(length) + NULL_BLOCKS) * self.widest

    def longest(self, kv_bytes: int, most: int) -> int:
        """The longest length up to `most` that fits in `kv_bytes`, 0 where not even one token does."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.min_bytes(middle) <= kv_bytes:
                low = middle
            else:
                high = middle - 1
        return low


def pool_of(groups: Sequence[Group], stages: int, demand: Demand, layout: Layout) -> Pool:
    return Pool(
        costs=tuple(cost_of(group.leader, demand) for group in groups),
        stage_bytes=tuple(_stage_bytes(groups, stage, layout) for stage in range(stages)),
    )


def stage_layers(group: Group, stage: int) -> tuple[LayerSpec, ...]:
    """The layers of a group that are on that stage."""
    return tuple(member.spec for member in group.members if member.stage == stage)


def _stage_bytes(groups: Sequence[Group], stage: int, layout: Layout) -> int:
    """Bytes of one block on a stage: those of its widest group (_get_kv_cache_bytes_per_block)."""
    on_stage = [stage_layers(group, stage) for group in groups]
    if layout == "layer-outermost":
        return max(sum(_round_up(spec.page_bytes, spec.stride_bytes) for spec in layers) for layers in on_stage)
    widest = max(sum(spec.page_bytes for spec in layers) for layers in on_stage)
    return _round_up(widest, math.lcm(*(spec.stride_bytes for layers in on_stage for spec in layers)))


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
