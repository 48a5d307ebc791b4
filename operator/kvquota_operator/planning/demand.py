"""What a tenant asks for on one pod.

Decides how much of a limit over all pods is asked for there, by what the pod reports of the tenant. Pure.

Invariants:

1. More than is held is asked for only where requests were refused for want of it: what finds room asks for nothing.
2. A request that was refused counts as the mean of those that run, and as the tenant's longest where none does: how
   large it was, nobody said.

It does not know how old a report is, nor whether it is true.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kvquota_api.amounts import Blocks

ZERO: Final = Blocks(0)


class Demand(msgspec.Struct, frozen=True, gc=False):
    """One tenant on one pod. `blocks`, `sequences`: held now.

    In the last ten minutes: `refused_blocks`, `refused_sequences`: requests that its part had too few of them for;
    `admitted`: requests that were let in.
    """

    blocks: Blocks = ZERO
    sequences: int = 0
    refused_blocks: int = 0
    refused_sequences: int = 0
    admitted: int = 0

    @property
    def is_refused(self) -> bool:
        return bool(self.refused_blocks or self.refused_sequences)

    @property
    def is_idle(self) -> bool:
        """Whether nobody has asked for anything in ten minutes, and nothing runs."""
        return not (self.blocks or self.sequences or self.admitted or self.is_refused)

    def asks_blocks(self, longest: Blocks) -> int:
        """Blocks asked for, 0 where none were refused; `longest`: of the tenant's longest request."""
        each = -(-self.blocks // self.sequences) if self.sequences else 0
        return self.blocks + self.refused_blocks * (each or longest) if self.refused_blocks else 0

    def asks_sequences(self) -> int:
        """Sequences asked for, 0 where none were refused."""
        return self.sequences + self.refused_sequences if self.refused_sequences else 0


NO_DEMAND: Final = Demand()
