"""Whether the engine has done with what the sidecar before this one had given it.

Decides from when on a sidecar that has begun may take traffic, by docs/accounting.md (restart). Pure.

Invariants:

1. It is settled once the engine was seen to hold next to nothing, and in any case SETTLE_SECONDS after it began.
2. What is settled stays so.

It does not know who asks, nor what is answered until then.
"""

from __future__ import annotations

from typing import Final

from kvquota_api.amounts import Blocks
from kvquota_sidecar.ledger.ranks import NEVER, Ranks

SETTLE_SECONDS: Final = 5.0  # an engine ends what clients have left within a step or two; a busy one takes longer
SETTLED_PART: Final = 0.02  # of U in use


class Settling:
    """From the first thing that is heard, of a config or of the engine."""

    def __init__(self) -> None:
        self._begun_at: float | None = None
        self._calm = False

    def hear(self, now: float) -> None:
        """A config or a reading has come."""
        self._begun_at = now if self._begun_at is None else self._begun_at

    def look(self, ranks: Ranks, usable: Blocks) -> None:
        """See what the engine holds of `usable` blocks on all its ranks."""
        used = [rank.gauge.used for rank in ranks.each if rank.gauge.read_at > NEVER]
        self._calm = self._calm or (len(used) == len(ranks.each) and sum(used) <= SETTLED_PART * usable)

    def settled(self, now: float) -> bool:
        return self._calm or (self._begun_at is not None and now - self._begun_at >= SETTLE_SECONDS)
