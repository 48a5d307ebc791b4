"""How much of the guarantees that were asked for can be given on one pod.

Decides each tenant's soft on a pod so that all softs together can be kept. Pure.

Invariants:

1. The softs given sum to at most the limit, which is `shed.enterPercent` of U: what is guaranteed never passes what the
   ladder still leaves to everyone.
2. A soft is given as asked, or all are scaled down in the same proportion, each rounded down.
3. Softs that are kept from an earlier config are not scaled with the others, only among themselves and only where they
   alone pass the limit: so deciding again on what was decided changes nothing.

It does not know why a soft is kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvquota_api.amounts import Blocks, Hundredths, minus, percent_of, plus


def guarantee_limit(usable: Blocks, shed_enter_percent: int) -> Blocks:
    """The most that all softs of one pod may sum to."""
    return percent_of(usable, Hundredths(shed_enter_percent * 100))


def given_softs(asked: Mapping[str, Blocks], kept: Mapping[str, Blocks], limit: Blocks) -> dict[str, Blocks]:
    """The soft of every tenant, by id; `asked` and `kept` name different tenants."""
    held = _scaled(kept, limit)
    return {**held, **_scaled(asked, minus(limit, plus(*held.values())))}


def _scaled(softs: Mapping[str, Blocks], limit: Blocks) -> dict[str, Blocks]:
    total = sum(softs.values())
    if total <= limit:
        return dict(softs)
    return {tenant: Blocks(soft * limit // total) for tenant, soft in softs.items()}
