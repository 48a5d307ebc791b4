"""Amounts as a status and a sentence write them.

Decides the two faces of an amount of KV cache: blocks, and the tokens that fit in them; and how a part of a card is
written. Pure.

Invariants:

1. Nothing is larger than a status can carry, however large a card or a claim is.
2. Parts of a card are written rounded down, so what is written never sums to more than the parts do.
3. An amount over pods of several plans has the tokens of all of them, each by its own plan, and is written in blocks of
   the plan in force that take as much memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, overload

from kvquota_api.amounts import Bytes, format_bytes, format_quantity
from kvquota_api.pod_config import KvPlan
from kvquota_api.quota import KvAmount
from kvquota_operator.planning.exchange import blocks_in

KIB: Final = 2**10  # bytes: the grain in which the size of a document is told
MIB: Final = 2**20  # bytes: the grain of what a status says of a card; finer figures differ from start to start
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
    return None if blocks is None else KvAmount(blocks=counted(blocks), tokens=counted(kv.worth.tokens(blocks)))


def amount_over(parts: Iterable[tuple[KvPlan, int | None]], kv: KvPlan) -> KvAmount | None:
    """The sum of blocks of several plans, in blocks of `kv`; None where no part is known."""
    known = [(of, blocks) for of, blocks in parts if blocks is not None]
    if not known:
        return None
    return KvAmount(
        blocks=counted(sum(blocks_in(kv, blocks, of) for of, blocks in known)),
        tokens=counted(sum(of.worth.tokens(blocks) for of, blocks in known)),
    )


def memory_quantity(size: int) -> str:
    """A part of a card of `size` bytes as a quantity of whole MiB ("36Gi", "1177Mi"); below 1 MiB in bytes."""
    return format_quantity(Bytes(size // MIB * MIB or size))


def in_words(blocks: int, kv: KvPlan) -> str:
    """An amount as a sentence says it: "7,372 blocks (117,952 tokens)"."""
    return f"{blocks:,} blocks ({kv.worth.tokens(blocks):,} tokens)"


def pool_in_words(kv: KvPlan) -> str:
    """The KV pool of one engine: "7,372 blocks (117,952 tokens, 14.4 GiB on one GPU)"."""
    size = format_bytes(kv.cap_blocks * kv.bytes_per_block)
    return f"{kv.cap_blocks:,} blocks ({kv.worth.tokens(kv.cap_blocks):,} tokens, {size} on one GPU)"
