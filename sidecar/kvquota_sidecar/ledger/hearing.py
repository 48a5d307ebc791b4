"""One ask before the rules: at which lengths of its prompts it is judged, and what comes of it.

Decides by docs/accounting.md (prompts) whether an estimate is enough. Pure.

Invariants:

1. A request whose tokens are known is judged at these. Where all would be well if the others of its tenant were no
   larger than they are charged, and too much for hard if they are as large as they can be, it is to be asked again when
   these are known, and refused only then.
2. Another one is admitted at its estimate only where it fits with every prompt as long as it can be, and with all
   others of its tenant that are not known either as long as they can be: estimates are never stacked past hard.
3. A longer prompt can take less: several outputs that fill the context share it. So "at its longest" are the blocks of
   the dearest length, and what no length could change is judged by the blocks of the cheapest.
4. It is refused without being counted only where it would be refused with prompts of one token.

It does not take anything: that is the caller's.
"""

from __future__ import annotations

from kvquota_api.amounts import Blocks
from kvquota_api.pod_config import TenantShare
from kvquota_sidecar.admission.case import Case, Demand, Holder, Known, Pool
from kvquota_sidecar.admission.rules import GRANTED, PASSED, Grant, Judgement, judge, told
from kvquota_sidecar.ledger.accounts import Account
from kvquota_sidecar.ledger.asking import Ask, Close
from kvquota_sidecar.ledger.entries import Entry, doubt_of
from kvquota_sidecar.ledger.gathering import at_least, demand_at, demand_at_most, demand_of, holder_of
from kvquota_sidecar.records import LeafValue, MutableLeaf
from kvquota_sidecar.refusals import Code, Refusal


class Wait(LeafValue, frozen=True):
    """The request is guaranteed, and lacks nothing but room."""


Verdict = Grant | Refusal | Close | Wait


class Hearing(MutableLeaf):
    """`pool`: as it stands at `now`, in monotonic seconds. `holder`: the tenant, as the rules have seen it last."""

    ask: Ask
    account: Account
    share: TenantShare
    pool: Pool
    now: float
    holder: Holder | None = None

    def verdict(self, entry: Entry) -> Verdict:
        """What is to become of the request. `entry` gets its charge, and is compared with its tenant's others."""
        ask, account = self.ask, self.account
        full = entry.cost_of(entry.limit)
        account.join(entry)
        entry.charge = charge = entry.cost() if entry.shares or entry.promise != entry.limit else full
        if not entry.estimated:
            entry.doubt = doubt_of(entry)
            return self._exactly(entry, demand_of(ask, entry, full))
        ceiling = entry.ceiling()
        entry.doubt = max(0, ceiling - charge)
        longest = dearest = demand_at_most(ask, entry, ceiling)
        if ceiling < charge or longest.full < full:
            plain = demand_of(ask, entry, full)
            most = max(longest.full, plain.full), max(longest.reserve, plain.reserve)
            dearest = _demand(longest, *most, longest.known)
        top = self._judge(dearest, account.doubt)
        return GRANTED if top is PASSED else self._closer(entry, full, longest, top)

    def _exactly(self, entry: Entry, demand: Demand) -> Verdict:
        """The verdict on what is known exactly."""
        account, plain = self.account, self._judge(demand)
        doubt = account.doubt + entry.doubt
        fits = account.charged + doubt + entry.charge <= self.share.hard_blocks
        if fits or account.shadow or plain.code not in {None, Code.KV_POOL_EXHAUSTED}:
            return _verdict(plain)
        return told(self._judge(demand, doubt)) if self.ask.final else Close()

    def _closer(self, entry: Entry, full: Blocks, longest: Demand, top: Judgement) -> Verdict:
        """`top`: what is said of the request at its dearest."""
        plain = self._judge(demand_of(self.ask, entry, full))
        if top.code is None:
            return _verdict(plain)  # limits in Shadow: these are counted by the estimate
        shortest = demand_at(self.ask, self.account, entry, at_least(self.ask))
        least = min(shortest.full, longest.full), min(shortest.reserve, longest.reserve)
        low = self._judge(_demand(shortest, *least, "AtLeast"))
        if low.code is None or (low.code is Code.KV_POOL_EXHAUSTED and top.code is not low.code):
            return Close()
        return _verdict(plain if plain.code is low.code else low)

    def _judge(self, demand: Demand, doubt: int = 0) -> Judgement:
        holder = self.holder
        if holder is None or holder.doubt != doubt:
            holder = self.holder = holder_of(self.account, self.share, doubt, self.now)
        return judge(Case(demand, holder, self.pool))


def _verdict(judgement: Judgement) -> Grant | Refusal | Wait:
    return Wait() if judgement.code is Code.KV_POOL_EXHAUSTED else told(judgement)


def _demand(like: Demand, full: Blocks, reserve: Blocks, known: Known) -> Demand:
    """A demand with other blocks, and what is known of them."""
    return Demand(like.prompt, like.output_limit, like.sequences, full, reserve, like.kind, known)
