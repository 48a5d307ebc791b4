"""What a block of one plan is worth beside a block of another.

Decides how many blocks of one plan take the memory of so many of another, and in which unit a limit over all pods is
counted where their plans differ: while a pool rolls from one model to the next, its pods do. Pure.

Invariants:

1. Where all pods have one plan, the unit is a block of it.
2. A limit in tokens is so many tokens on pods of any plan, one in bytes so many bytes. A percent is of the memory of
   all pods together, and no limit is the whole of it: neither depends on how large a block is.
3. Nothing is given by rounding: parts of the total, each turned into whole blocks of its pod's plan, never sum to more.

It does not know which pods there are, nor who has which part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Final, NamedTuple

from kvquota_api.amounts import UNLIMITED, Blocks, Tokens
from kvquota_api.pod_config import KvPlan
from kvquota_api.quota import Share
from kvquota_operator.planning.blocks import blocks_of

MOST_UNITS: Final = 2**53  # of one limit: fine enough for every block, and small enough to count with


class Measure(NamedTuple):
    """A limit as the pods of one plan see it: `whole` in their blocks, no more than there are; `rate`: the units of one
    block; `total`: of the limit, in units."""

    whole: Blocks
    rate: int
    total: int

    def units(self, blocks: int) -> int:
        """More than the limit is as much as any other amount that is more."""
        units = blocks * self.rate
        return units if units <= self.total else self.total + 1

    def blocks(self, units: int) -> Blocks:
        """Whole blocks, rounded down."""
        return Blocks(units // self.rate)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A limit over all pods: `total` in units, and how each plan measures it."""

    total: int
    measures: Mapping[KvPlan, Measure]


def exchange_of(hard: Share | None, counted: Iterable[tuple[KvPlan, Blocks]], plans: Iterable[KvPlan]) -> Exchange:
    """`hard` over the pods that are counted, each with its plan and its U. `plans`: of these and of all other pods."""
    memory = sum(usable * kv.bytes_per_block for kv, usable in counted)
    together = {kv: _stated(memory // kv.bytes_per_block) for kv in plans}
    asked = {kv: most if hard is None else blocks_of(hard, most, kv) for kv, most in together.items()}
    total = _total([blocks for blocks in asked.values() if blocks])
    return Exchange(
        total,
        {
            kv: Measure(whole=Blocks(min(blocks, together[kv])), rate=_rate(total, blocks), total=total)
            for kv, blocks in asked.items()
        },
    )


def _total(wholes: Sequence[int]) -> int:
    """So that one block of each plan is a whole number of units, as far as that can be."""
    return min(lcm(*wholes), max(MOST_UNITS, *wholes)) if wholes else 0


def _rate(total: int, blocks: int) -> int:
    """Rounded up. Where the limit is less than a block of a plan, one of its blocks is more than the limit."""
    return -(-total // blocks) if blocks else total + 1


def most_blocks_in(kv: KvPlan, blocks: int, of: KvPlan) -> Blocks:
    """How many blocks of `kv` so many of another plan are at most, by the memory that they take or the tokens."""
    by_memory = -(-blocks * of.bytes_per_block // kv.bytes_per_block)
    return _stated(max(by_memory, kv.worth.blocks(of.worth.tokens(blocks))))


def least_blocks_in(kv: KvPlan, blocks: int, of: KvPlan) -> Blocks:
    """How many blocks of `kv` so many of another plan are at least, by the memory that they take or the tokens."""
    by_tokens = kv.worth.blocks(Tokens(of.worth.tokens(blocks) + 1)) - 1
    return _stated(min(blocks_in(kv, blocks, of), by_tokens))


def _stated(blocks: int) -> Blocks:
    """As a config can state it, however small the blocks of one plan are beside those of another."""
    return Blocks(min(blocks, UNLIMITED))


def blocks_in(kv: KvPlan, blocks: int, of: KvPlan) -> Blocks:
    """How many blocks of `kv` take the memory of `blocks` of another plan, rounded down."""
    return Blocks(blocks * of.bytes_per_block // kv.bytes_per_block)
