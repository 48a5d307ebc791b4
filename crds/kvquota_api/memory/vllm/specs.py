"""One layer's cache as vLLM's planner sees it: its block, its page, and the blocks that a sequence holds of it.

Decides page sizes and blocks per sequence. Pure.

Invariants:

1. A page is the bytes of one block of one layer on one GPU. Only `State` has a page that does not grow with its block.
2. Two specs are equal only where vLLM's are: `identity` holds what tells caches of the same size apart.
3. `padded` is never less than what the layer really needs.

Source: vllm/v1/kv_cache_interface.py of 0.32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from kvquota_api.memory.blocks import LayerGroup

SpecKind = Literal["Full", "Latent", "Sliding", "SlidingLatent", "Chunked", "Cross", "State", "Ring"]


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """The cache of one layer on one GPU.

    `block_tokens`: tokens of one block. `row_bytes`: bytes of one stored row over all heads, `tokens_per_row` the
    tokens that it stands for; for State `row_bytes` is the whole state. `identity`: what else vLLM compares. `window`:
    tokens of a sliding window, `chunk` of a chunk; also kept by layers promoted to Full. `retained`: tokens kept below
    the window. `fixed_blocks`: of State and Ring. `padded`: page in bytes where it is larger than needed.
    `row_align`: bytes that a page is rounded up to. `stride_rows`, `stride_block`: the distance of two blocks is a
    multiple of so many rows, or of a page of that many tokens. `sharded`: decode context parallelism divides tokens.
    """

    kind: SpecKind
    block_tokens: int
    row_bytes: int
    identity: tuple[object, ...]
    tokens_per_row: int = 1
    window: int | None = None
    chunk: int | None = None
    retained: int = 0
    fixed_blocks: int = 0
    padded: int | None = None
    row_align: int = 1
    stride_rows: int | None = None
    stride_block: int | None = None
    sharded: bool = True

    @property
    def needed_bytes(self) -> int:
        """Page without padding, in bytes."""
        if self.kind == "State":
            return self.row_bytes
        return _round_up(self.block_tokens // self.tokens_per_row * self.row_bytes, self.row_align)

    @property
    def page_bytes(self) -> int:
        return self.needed_bytes if self.padded is None else self.padded

    @property
    def stride_bytes(self) -> int:
        """What the distance of two blocks has to be a multiple of, in bytes."""
        if self.stride_rows is not None:
            return self.stride_rows * self.row_bytes
        if self.stride_block is None:
            return 1
        kernel = math.gcd(self.stride_block, self.block_tokens)
        return 1 if kernel == self.block_tokens else replace(self, block_tokens=kernel, padded=None).page_bytes


@dataclass(frozen=True, slots=True)
class Demand:
    """What the cost of a sequence depends on besides its length.

    `in_flight`: tokens scheduled but not settled; `encoder_tokens`: budget of an encoder; `decode_context`: GPUs that
    share the tokens of a sequence.
    """

    in_flight: int
    encoder_tokens: int = 0
    decode_context: int = 1


def cost_of(spec: LayerSpec, demand: Demand) -> LayerGroup:
    """Blocks of a sequence in a group of layers like `spec`, as a function of its length (max_memory_usage_bytes)."""
    if spec.kind in ("Sliding", "SlidingLatent"):
        window = (spec.window or 0) - 1 + spec.retained + demand.in_flight
        return LayerGroup(kind="Sliding", block_tokens=spec.block_tokens, window_tokens=window)
    if spec.kind == "Chunked":
        window = (spec.chunk or 0) + demand.in_flight
        return LayerGroup(kind="Chunked", block_tokens=spec.block_tokens, window_tokens=window)
    if spec.kind == "Cross":
        fixed = -(-demand.encoder_tokens // spec.block_tokens)
        return LayerGroup(kind="State", block_tokens=spec.block_tokens, fixed_blocks=fixed)
    if spec.kind in ("State", "Ring"):
        return LayerGroup(kind="State", block_tokens=spec.block_tokens, fixed_blocks=spec.fixed_blocks)
    shards = demand.decode_context if spec.sharded else 1
    return LayerGroup(kind="Full", block_tokens=spec.block_tokens * shards)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
