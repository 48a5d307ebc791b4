"""How many blocks a share is.

Decides the worth of a share in blocks of a pool of known size. Pure.

Invariants:

1. A percent and an amount of bytes are rounded down: parts that sum to the whole never sum to more than it.
2. Tokens are rounded up to whole blocks: a share of T tokens holds one request of T tokens.

It does not know whose share it is, nor over how many pods it holds.
"""

from __future__ import annotations

from kvquota_api.amounts import Blocks, Tokens, minus, percent_of
from kvquota_api.pod_config import KvPlan
from kvquota_api.quota import Share


def usable_blocks(kv: KvPlan, measured: int | None) -> Blocks:
    """U of one pod: of each rank the smaller of the cap and what the engine came up with, without the null blocks.

    `measured`: blocks of one rank with the null block, as the engine counts them; None while it has not said so.
    """
    size = kv.cap_blocks if measured is None else min(kv.cap_blocks, measured)
    return Blocks(kv.ranks * minus(Blocks(size), Blocks(kv.null_blocks)))


def blocks_of(share: Share, whole: Blocks, kv: KvPlan) -> Blocks:
    """`share` in blocks, where a percent is of `whole`; bytes are of one GPU's share of the KV cache."""
    if share.hundredths is not None:
        return percent_of(whole, share.hundredths)
    if share.byte_count is not None:
        return Blocks(share.byte_count // kv.bytes_per_block)
    return kv.worth.blocks(Tokens(share.token_count or 0))
