"""What tenants ask for on a pod, by its report.

Decides which of a report's numbers say that a tenant wants more of a limit over all pods. Pure.

Invariants:

1. Of a pod that is silent nobody knows what is asked for there. A fresh report that does not name a tenant says that it
   asks for nothing.
2. A pod is believed up to what it can hold.
3. A limit that is only counted and not enforced is asked for as if it were.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from kvquota_api.amounts import Blocks
from kvquota_api.usage import TenantUsage
from kvquota_operator.planning.demand import Demand
from kvquota_operator.reconcile.pods import LivePod
from kvquota_operator.reconcile.usage import MAX_SEQUENCES, OWN_HARD

OWN_SEQUENCES: Final = "tenant_concurrency_exceeded"  # what clients are told whose tenant runs as many as it may


def demands_of(live: LivePod, tenants: Collection[str], usable: Blocks) -> Mapping[str, Demand] | None:
    """What these tenants ask for on a pod of `usable` blocks; None where nobody knows."""
    if live.report is None or not live.fresh:
        return None
    return {usage.id: _demand(usage, usable) for usage in live.report.tenants if usage.id in tenants}


def _demand(usage: TenantUsage, usable: Blocks) -> Demand:
    recent, reserved, running = usage.recent, usage.reserved, usage.in_flight
    blocks, sequences = recent.ended, 0
    if refused := recent.rejected:
        blocks += refused.get(OWN_HARD, 0)
        sequences += refused.get(OWN_SEQUENCES, 0)
    if counted := recent.would_reject:
        blocks += counted.get(OWN_HARD, 0)
        sequences += counted.get(OWN_SEQUENCES, 0)
    return Demand(
        Blocks(reserved) if reserved < usable else usable,
        running if running < MAX_SEQUENCES else MAX_SEQUENCES,
        blocks,
        sequences,
        recent.admitted,
    )
