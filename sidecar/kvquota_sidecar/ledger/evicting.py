"""Who is ended for others: what of the roll `victims` chooses from, when a rank is short of blocks.

Decides what ending a request frees, and which tenants come into question. Pure.

Invariants:

1. Only running work is offered, all of a tenant's together: what is over-soft is judged on all ranks.
2. On a rank that is short only the work of that rank is chosen: ending any other frees nothing there.

It does not know why the rank is short, nor whether it may be helped (`books`).
"""

from __future__ import annotations

from typing import Final

from kvquota_sidecar.admission.victims import Candidate, Holding, victims
from kvquota_sidecar.ledger.accounts import Account
from kvquota_sidecar.ledger.entries import Entry
from kvquota_sidecar.ledger.ranks import Rank
from kvquota_sidecar.ledger.roll import Roll

_ELSEWHERE: Final = 1001  # a priority above all that a quota can have (1000): chosen only when nothing here is left


def choose(roll: Roll, rank: Rank, missing: int) -> tuple[Entry, ...]:
    """Requests to end so that `missing` blocks come free on `rank`; all over-soft ones there where that is less."""

    def freed(gone: frozenset[int], ticket: int) -> int:
        entry = roll.entries[ticket]
        return roll.accounts[entry.tenant].freed(entry, gone) if entry.rank == rank.place else 0

    holdings = [_holding(each, rank) for each in roll.accounts.values() if each.charged > each.soft and each.live]
    chosen = [roll.entries[ticket] for ticket in victims(holdings, missing, freed)]
    return tuple(entry for entry in chosen if entry.rank == rank.place)


def _holding(account: Account, rank: Rank) -> Holding:
    priority = 0 if account.share is None else account.share.priority
    work = tuple(_candidate(entry, rank, priority) for entry in account.live.values())
    return Holding(account.tenant, account.soft, work)


def _candidate(entry: Entry, rank: Rank, priority: int) -> Candidate:
    reached = priority if entry.rank == rank.place else _ELSEWHERE
    return Candidate(entry.ticket, entry.tenant, reached, entry.charge, entry.sent)
