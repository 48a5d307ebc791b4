"""What the books say of themselves: one tenant's usage and room, as operator and clients read them.

Decides the figures of the report. Pure. It changes nothing.
"""

from __future__ import annotations

from typing import Final

from kvquota_api import usage
from kvquota_api.amounts import Blocks
from kvquota_api.usage import Rung
from kvquota_sidecar.ledger.accounts import Account
from kvquota_sidecar.ledger.entries import State
from kvquota_sidecar.ledger.law import Law
from kvquota_sidecar.ledger.roll import Roll
from kvquota_sidecar.ledger.tally import LastRefusal
from kvquota_sidecar.refusals.room import Room

_LONGEST: Final = 1024  # characters of a message, as `usage.Refusal` says: with a longer one no report is read at all


def pool_usage(roll: Roll, law: Law, rung: Rung, pressure: float, now: float) -> usage.PoolUsage:
    """`pressure` in percent. Of several ranks the sums, and whether every gauge is fresh."""
    ranks = roll.ranks
    return usage.PoolUsage(
        usable=law.lines.usable,
        free=ranks.free(now),
        reserved=roll.charged,
        used=sum(each.filled() for each in roll.entries.values() if each.state is State.LIVE),
        unattributed=sum(rank.gauge.unattributed(now) for rank in ranks.each),
        pressure_percent=pressure,
        rung=rung,
        gauge_is_fresh=all(rank.gauge.fresh(now) for rank in ranks.each),
        waiting=len(roll.queue),
    )


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
    message = last.refusal.message[:_LONGEST]
    return usage.Refusal(code=last.refusal.code, message=message, at=wall - (now - last.at))


def room_of(account: Account, law: Law, rung: Rung, pressure: float) -> Room:
    """`pressure` in percent."""
    allowance = account.allowance(law.lines.usable, law.worth)
    return Room(allowance, Blocks(account.charged), account.sequences, rung, pressure)
