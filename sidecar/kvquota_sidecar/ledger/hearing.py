"""One ask before the rules: at which lengths of its prompts it is judged, and what comes of it.

Decides by docs/accounting.md (prompts) whether an estimate is enough. Pure.

Invariants:

1. A request whose tokens are known is judged once, at these.
2. Another one is admitted at its estimate only where it fits with every prompt as long as it can be, and with all
   others of its tenant that are not known either as long as they can be: estimates are never stacked past hard.
3. A longer prompt can take less: several outputs that fill the context share it. So "at its longest" are the blocks of
   the dearest length, and what no length could change is judged by the blocks of the cheapest.
4. It is refused without being counted only where it would be refused with prompts of one token.

It does not take anything: that is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from kvquota_api.amounts import Blocks
from kvquota_api.pod_config import TenantShare
from kvquota_sidecar.admission.case import Case, Demand, Pool
from kvquota_sidecar.admission.rules import GRANTED, PASSED, Grant, Judgement, judge, told
from kvquota_sidecar.ledger.accounts import Account
from kvquota_sidecar.ledger.asking import Ask, Close
from kvquota_sidecar.ledger.entries import Entry
from kvquota_sidecar.ledger.gathering import at_least, at_most, demand_at, demand_of, holder_of, is_exact
from kvquota_sidecar.refusals import Code, Refusal


class Wait(msgspec.Struct, frozen=True, gc=False):
    """The request is guaranteed, and lacks nothing but room."""


Verdict = Grant | Refusal | Close | Wait


@dataclass(slots=True)
class Hearing:
    """`pool`: as it stands now."""

    ask: Ask
    account: Account
    share: TenantShare
    pool: Pool
    now: float

    def verdict(self, entry: Entry) -> Verdict:
        """What is to become of the request. `entry` gets its charge, and is compared with its tenant's others."""
        ask, account = self.ask, self.account
        full = entry.cost_of(entry.limit)
        account.join(entry)
        entry.charge = entry.cost() if entry.shares or entry.promise != entry.limit else full
        if is_exact(ask):
            return _verdict(self._judge(demand_of(ask, entry, full)))
        longest = demand_at(ask, account, entry, at_most(ask))
        entry.doubt = max(0, longest.reserve - entry.charge)
        dearest = longest
        if longest.reserve < entry.charge or longest.full < full:
            dearest = _between(max, longest, demand_of(ask, entry, full))
        top = self._judge(dearest, account.doubt)
        return GRANTED if top is PASSED else self._closer(entry, full, longest, top)

    def _closer(self, entry: Entry, full: Blocks, longest: Demand, top: Judgement) -> Verdict:
        """`top`: what is said of the request at its dearest."""
        plain = self._judge(demand_of(self.ask, entry, full))
        if top.code is None:
            return _verdict(plain)  # limits in Shadow: these are counted by the estimate
        shortest = demand_at(self.ask, self.account, entry, at_least(self.ask))
        low = self._judge(_between(min, shortest, longest))
        if low.code is None or (low.code is Code.KV_POOL_EXHAUSTED and top.code is not low.code):
            return Close()
        return _verdict(plain if plain.code is low.code else low)

    def _judge(self, demand: Demand, doubt: int = 0) -> Judgement:
        return judge(Case(demand, holder_of(self.account, self.share, doubt, self.now), self.pool))


def _verdict(judgement: Judgement) -> Grant | Refusal | Wait:
    return Wait() if judgement.code is Code.KV_POOL_EXHAUSTED else told(judgement)


def _between(choose: Callable[[Blocks, Blocks], Blocks], demand: Demand, other: Demand) -> Demand:
    """The demand with the blocks that are chosen of two lengths of its prompts."""
    full, reserve = choose(demand.full, other.full), choose(demand.reserve, other.reserve)
    return replace(demand, full=full, reserve=reserve)
