"""One tenant in the books: its share, its live requests in order of admission, and what is protected of them.

Decides the protected prefix, and who has to go when its own growth passes hard. Pure.

Invariants:

1. `charged` is the sum of the charges of its live requests; `sequences` that of all that are not released.
2. Protected is the longest prefix, in order of admission, whose charges sum to at most soft; the rest is over-soft,
   each request as a whole.

It does not know the other tenants.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvquota_api.amounts import Blocks
from kvquota_api.pod_config import Enforcement, TenantShare
from kvquota_sidecar.estimate.outputs import Outputs
from kvquota_sidecar.ledger.drain import Drain
from kvquota_sidecar.ledger.entries import Entry
from kvquota_sidecar.ledger.tally import Tally


class Account:
    """`share` is None for a tenant that the config no longer names. `soft`: in force, in blocks.

    `pressed`: growth has passed hard, and no request has ended by itself since. `shadow`: its own limits are counted,
    not enforced, by its own or by the pool's enforcement.
    """

    __slots__ = (
        "blocks_drain", "charged", "live", "outputs", "pressed", "sequences", "sequences_drain", "shadow", "share",
        "soft", "tally", "tenant",
    )  # fmt: skip

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.share: TenantShare | None = None
        self.soft = Blocks(0)
        self.live: dict[int, Entry] = {}
        self.charged = 0
        self.sequences = 0
        self.pressed = False
        self.shadow = False
        self.outputs = Outputs()
        self.tally = Tally()
        self.blocks_drain = Drain()
        self.sequences_drain = Drain()

    @property
    def idle(self) -> bool:
        """Whether nothing of this tenant is left to release."""
        return self.sequences == 0

    @property
    def hard(self) -> Blocks:
        """The hard of today; nothing for a tenant that has none any more."""
        return Blocks(0 if self.share is None else self.share.hard_blocks)

    @property
    def enforcement(self) -> Enforcement:
        return "Enforce" if self.share is None else self.share.enforcement

    @property
    def unclaimed(self) -> int:
        """What the tenant may still claim of its soft: its part of G."""
        return max(0, self.soft - self.charged)

    def filled(self) -> int:
        """Blocks of the live requests that are in the engine, as far as it was seen."""
        return sum(entry.filled() for entry in self.live.values())

    def over_soft(self) -> Iterator[Entry]:
        """The live requests that are not protected, in order of admission."""
        left = int(self.soft)
        entries = iter(self.live.values())
        for entry in entries:
            left -= entry.charge
            if left < 0:
                yield entry
                yield from entries

    def over_hard(self) -> Entry | None:
        """The youngest unprotected request that is held against a hard which the tenant has passed."""
        found = None
        for entry in self.over_soft():
            if self.charged > max(self.hard, entry.hard):
                found = entry
        return found
