"""What the books say of themselves: one tenant's usage and room, as operator and clients read them.

Decides the figures of the report. Pure. It changes nothing.
"""

from __future__ import annotations

from kvquota_api import usage
from kvquota_api.amounts import Blocks
from kvquota_api.memory.worth import Worth
from kvquota_api.usage import Rung
from kvquota_sidecar.admission.thresholds import Lines
from kvquota_sidecar.ledger.accounts import Account
from kvquota_sidecar.ledger.tally import LastRefusal
from kvquota_sidecar.refusals.room import Room


def pressure_percent(usable: int, free: int) -> float:
    """Pressure = 1 − F/U in percent, at least 0; a pool of no blocks is full."""
    return 100 * (usable - free) / usable if usable else 100.0


def tenant_usage(account: Account, now: float, wall: float) -> usage.TenantUsage:
    """`wall`: Unix seconds at `now`."""
    last = account.tally.last_refusal
    return usage.TenantUsage(
        id=account.tenant,
        reserved=account.charged,
        used=account.filled(),
        over_soft=sum(entry.charge for entry in account.over_soft()),
        in_flight=account.sequences,
        total=account.tally.total(),
        recent=account.tally.recent(now),
        last_refusal=None if last is None else _last_refusal(last, now, wall),
    )


def _last_refusal(last: LastRefusal, now: float, wall: float) -> usage.Refusal:
    return usage.Refusal(code=last.refusal.code, message=last.refusal.message, at=wall - (now - last.at))


def room_of(account: Account, lines: Lines, worth: Worth, rung: Rung, pressure: float) -> Room:
    share = account.share
    return Room(
        reserved=Blocks(account.charged),
        soft=account.soft,
        hard=min(account.hard, lines.usable),
        worth=worth,
        in_flight=account.sequences,
        max_concurrent=None if share is None else share.max_concurrent_requests,
        rung=rung,
        pressure_percent=pressure,
    )
