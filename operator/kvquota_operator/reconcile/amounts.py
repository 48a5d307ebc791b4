"""Amounts as a status and a sentence write them.

Decides the two faces of an amount of KV cache: blocks, and the tokens that fit in them. Pure.

Invariant: nothing is larger than a status can carry, however large a card or a claim is.
"""

from __future__ import annotations

from typing import Final, overload

from kvquota_api.pod_config import KvPlan
from kvquota_api.quota import KvAmount

MAX_COUNT: Final = 2**53  # of anything in a status: what JSON carries exactly in every client


def counted(number: int) -> int:
    """`number` as a status carries it: between 0 and MAX_COUNT."""
    return max(0, min(MAX_COUNT, number))


@overload
def amount(blocks: int, kv: KvPlan) -> KvAmount: ...
@overload
def amount(blocks: int | None, kv: KvPlan) -> KvAmount | None: ...
def amount(blocks: int | None, kv: KvPlan) -> KvAmount | None:
    """`blocks` and the tokens that they hold; None stays None."""
    return None if blocks is None else KvAmount(blocks=counted(blocks), tokens=counted(blocks * kv.block_tokens))


def in_words(blocks: int, kv: KvPlan) -> str:
    """An amount as a sentence says it: "7,372 blocks (117,952 tokens)"."""
    return f"{blocks:,} blocks ({blocks * kv.block_tokens:,} tokens)"
