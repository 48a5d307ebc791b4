"""What an engine makes of the bytes that it is given for its KV cache. Pure values, the same for all engines.

Invariants:

1. Sizes are of one GPU, of the pipeline stage that decides; `blocks` is what the engine logs, `null_blocks` of them are
   never handed out.
2. `blocks` x `bytes_per_block` = `kv_bytes`, at most the bytes given, where blocks are all that an engine keeps.
   Engines with a spare page, pools of their own for sliding or state layers, or blocks that are rounded up say in
   their module what `kv_bytes` counts.
3. Too few bytes give a plan that says so: `concurrency` below 1 and `min_bytes` above the bytes given.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvquota_api.memory.blocks import LayerGroup


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share block tables: `layers` that really keep something, `page_bytes` of one block of all of them on
    one GPU; `cost`: blocks of a sequence as a function of its length."""

    kind: str
    layers: int
    page_bytes: int
    cost: LayerGroup


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The KV cache of one engine.

    `block_tokens`: tokens of a sequence in one block of the smallest group; `bytes_per_token`: what one more token
    takes in the layers that keep every token, on one GPU, and inside the window where no layer does; `tokens`: that the
    pool holds of requests of `max_model_len`; `logged_tokens`: the size that this version prints, None where it prints
    none; `concurrency`: what it prints for requests of `max_model_len`, exact; `min_bytes`: the least with which the
    engine starts at `max_model_len`; `assumptions`: one sentence for each input that was not given; `warnings`: what
    the engine would refuse or change by itself.
    """

    blocks: int
    null_blocks: int
    block_tokens: int
    bytes_per_token: int
    bytes_per_block: int
    kv_bytes: int
    tokens: int
    logged_tokens: int | None
    concurrency: Fraction
    max_model_len: int
    min_bytes: int
    groups: tuple[CacheGroup, ...]
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
