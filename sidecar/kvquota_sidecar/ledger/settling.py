"""Whether the engine has done with what the sidecar before this one had given it.

Decides by docs/accounting.md (restart-sidecar) whether the engine was seen to hold next to nothing. Pure.

Invariant: once it was, it stays so; what it holds later came in the meantime.

It does not know how long a sidecar that has begun waits for that (`settings`).
"""

from __future__ import annotations

from typing import Final

from kvquota_api.amounts import Blocks
from kvquota_sidecar.ledger.ranks import NEVER, Ranks

SETTLED_PART: Final = 0.02  # of U in use


class Settling:
    """`is_calm`: the engine was seen to hold next to nothing."""

    def __init__(self) -> None:
        self.is_calm = False

    def look(self, ranks: Ranks, usable: Blocks) -> None:
        """See what the engine holds of `usable` blocks on all its ranks."""
        used = [rank.gauge.used for rank in ranks.each if rank.gauge.read_at > NEVER]
        self.is_calm = self.is_calm or (len(used) == len(ranks.each) and sum(used) <= SETTLED_PART * usable)
