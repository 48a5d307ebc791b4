"""The rung of the ladder that people see: where pressure stands, without flapping.

Decides the next rung. Pure.

Invariants:

1. A rung is entered as soon as pressure reaches its entry, and left only below its exit and after the dwell time.
2. Admission does not depend on it: that follows the thresholds of each tenant.
"""

from __future__ import annotations

from kvquota_api.pod_config import Ladder
from kvquota_api.usage import Rung


def next_rung(rung: Rung, lasted: float, pressure: float, ladder: Ladder) -> Rung:
    """The rung after `rung`, which has lasted `lasted` seconds, at `pressure` percent."""
    if pressure >= ladder.evict.enter_percent:
        return "Evict"
    if rung == "Normal":
        return "Shed" if pressure >= ladder.shed.enter_percent else "Normal"
    if lasted < ladder.min_dwell_seconds:
        return rung
    if rung == "Evict" and pressure >= ladder.evict.exit_percent:
        return "Evict"
    return "Shed" if pressure >= ladder.shed.exit_percent else "Normal"
