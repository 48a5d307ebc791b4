"""What pods may hold of the tenants, by all that is known of them.

Decides nothing. Pure.

Invariant: what is not known is taken as the most that it may be, so that nothing which a pod may still hold is given to
another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvquota_api.amounts import Blocks

UNLIMITED: Final = 2**63 - 1  # sequences where nobody set a limit: the largest number that a config can have
ZERO: Final = Blocks(0)


@dataclass(frozen=True, slots=True)
class Holding:
    """The most that one pod may hold of one tenant, by a config that it has or may come back with, and by its work.

    `given_blocks`, `given_sequences`: what its newest config allows, which is no more.
    """

    blocks: Blocks
    sequences: int
    given_blocks: Blocks = ZERO
    given_sequences: int = 0

    def or_more(self, other: Holding) -> Holding:
        """What covers both."""
        return Holding(
            blocks=Blocks(max(self.blocks, other.blocks)),
            sequences=max(self.sequences, other.sequences),
            given_blocks=Blocks(max(self.given_blocks, other.given_blocks)),
            given_sequences=max(self.given_sequences, other.given_sequences),
        )

    def within(self, other: Holding) -> bool:
        """Whether `other` covers it."""
        return self.blocks <= other.blocks and self.sequences <= other.sequences


NOTHING: Final = Holding(ZERO, 0)


@dataclass(frozen=True, slots=True)
class Holdings:
    """What one pod may hold: of each tenant in `known`, by id, and of any tenant at least `any_tenant`."""

    known: Mapping[str, Holding] = field(default_factory=dict)
    any_tenant: Holding = NOTHING

    def of(self, tenant: str) -> Holding:
        known = self.known.get(tenant, NOTHING)
        return known if self.any_tenant is NOTHING else known.or_more(self.any_tenant)


NO_HOLDINGS: Final = Holdings()
