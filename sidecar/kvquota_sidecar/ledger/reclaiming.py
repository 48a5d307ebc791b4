"""Who has to give back: for the growth of its own tenant, for guaranteed work that waits, or for growth without room.

Decides by docs/accounting.md (growth, victims) who is ended and what it is told. Pure.

Invariants:

1. For growth past a tenant's own hard nobody but that tenant's is touched: first what waits, then its youngest
   unprotected work.
2. For others only over-soft work is ended, as much as is missing by the ledger on the rank that is short.
3. After that no over-soft work is admitted for `minDwellSeconds`.
4. In Shadow, of the tenant for its own hard and of the pool for others, nobody is ended; it is counted once for each.

It does not know which calls bring it about, nor how an ending is done.
"""

from __future__ import annotations

from kvquota_sidecar.admission.wording import evicted, grown_past_hard, no_room
from kvquota_sidecar.ledger.accounts import Account
from kvquota_sidecar.ledger.asking import Ending
from kvquota_sidecar.ledger.drain import Drain
from kvquota_sidecar.ledger.entries import Entry, State
from kvquota_sidecar.ledger.evicting import choose
from kvquota_sidecar.ledger.law import Law
from kvquota_sidecar.ledger.ranks import NEVER, Rank
from kvquota_sidecar.ledger.roll import Roll
from kvquota_sidecar.ledger.spreading import Spread
from kvquota_sidecar.refusals import Code, Refusal


class Reclaiming:
    """`endings` and `missed`: what was decided and not told yet. `drain`: of the pool, for waits."""

    def __init__(self, roll: Roll, drain: Drain, spread: Spread) -> None:
        self._roll = roll
        self._drain = drain
        self._spread = spread
        self._evicted_at = NEVER
        self.endings: list[Ending] = []
        self.missed: list[Ending] = []

    def told(self) -> tuple[tuple[Ending, ...], tuple[Ending, ...]]:
        """Who missed, and who is to be ended of those that were not released meanwhile; they are told now."""
        missed, endings = tuple(self.missed), tuple(each for each in self.endings if each.ticket in self._roll.entries)
        self.missed.clear()
        self.endings.clear()
        return missed, endings

    def lends_in(self, law: Law, now: float) -> float:
        """Seconds until over-soft work is admitted again; 0 where it is."""
        if self._evicted_at == NEVER:
            return 0.0
        return max(0.0, self._evicted_at + law.config.ladder.min_dwell_seconds - now)

    def restrain(self, account: Account, grown: Entry, law: Law, now: float) -> None:
        """Hold a tenant back whose request has grown, as long as that has passed hard."""
        while account.charged > max(account.hard, grown.hard):
            if account.shadow:
                return _count_once(account, grown, now)
            if account.waiting:
                self._turn_away(account, next(reversed(account.waiting.values())), law, now)
            elif (victim := account.over_hard()) is not None:
                self._end_for_hard(account, victim, law, now)
            else:
                return None
        return None

    def evict(self, rank: Rank, law: Law, now: float) -> None:
        """End what is missing on a rank, where anything over-soft runs."""
        missing = rank.missing(self._roll.ranks.usable, now)
        if missing <= 0 or not self._lent(law):
            return
        for victim in choose(self._roll, rank, missing):
            self._evicted_at = now
            self._end_for_others(victim, law, now)

    def count_in_shadow(self, rank: Rank, law: Law, now: float) -> None:
        """Who would have been ended for others."""
        missing = rank.missing(self._roll.ranks.usable, now)
        for victim in choose(self._roll, rank, missing) if missing > 0 and self._lent(law) else ():
            if not victim.evicted_in_shadow:
                victim.evicted_in_shadow = True
                self._roll.accounts[victim.tenant].tally.count("would_reject", now, Code.KV_EVICTED)

    def miss(self, entry: Entry, free: int, law: Law, now: float) -> None:
        """A request has waited in vain: `free` blocks are there for it."""
        tokens, account = law.worth.tokens, self._roll.accounts[entry.tenant]
        wait = self._drain.wait(entry.charge - free, now)
        asked, left = tokens(entry.charge), tokens(max(0, free))
        refusal = no_room(entry.tenant, asked=asked, free=left, wait=wait, known=entry.known)
        account.tally.count("guarantee_missed", now)
        self._drop(account, entry, refusal, now)

    def count_preempted(self, times: int, law: Law, now: float) -> None:
        """The engine took blocks from running work so many times. Where all of that is protected, each is a guarantee
        missed; engines take from the youngest, so it is counted for that one's tenant."""
        running = [each for each in self._roll.entries.values() if each.state is State.LIVE]
        if times and running and not law.shadow and not self._lent(law):
            self._roll.accounts[running[-1].tenant].tally.count("guarantee_missed", now, times=times)

    def _turn_away(self, account: Account, entry: Entry, law: Law, now: float) -> None:
        """A request waits whose tenant has grown to its hard meanwhile: nothing new starts."""
        self._drop(account, entry, self._past_hard(account, entry, law, now), now)
        account.pressed = True

    def _drop(self, account: Account, entry: Entry, refusal: Refusal, now: float) -> None:
        told = self._spread(refusal)
        self._roll.withdraw(entry)
        account.tally.refused("rejected", told, now)
        self.missed.append(Ending(entry.ticket, told))

    def _end_for_hard(self, account: Account, victim: Entry, law: Law, now: float) -> None:
        refusal = self._spread(self._past_hard(account, victim, law, now))
        self._roll.close(victim, State.ENDED, victim.filled(), now)
        account.pressed = True
        account.tally.refused("ended", refusal, now)
        self.endings.append(Ending(victim.ticket, refusal))

    def _past_hard(self, account: Account, entry: Entry, law: Law, now: float) -> Refusal:
        tokens = law.worth.tokens
        wait = account.blocks_drain.wait(entry.charge, now)
        return grown_past_hard(account.tenant, tokens(account.charged), tokens(max(account.hard, entry.hard)), wait)

    def _end_for_others(self, victim: Entry, law: Law, now: float) -> None:
        tokens, account = law.worth.tokens, self._roll.accounts[victim.tenant]
        wait = max(law.config.ladder.min_dwell_seconds, self._drain.wait(victim.charge, now))
        refusal = self._spread(evicted(victim.tenant, tokens(victim.charge), tokens(account.soft), wait))
        self._roll.close(victim, State.ENDED, victim.filled(), now)
        account.tally.refused("evicted", refusal, now)
        self.endings.append(Ending(victim.ticket, refusal))

    def _lent(self, law: Law) -> int:
        """Blocks that tenants are charged beyond their softs, summed."""
        return self._roll.charged - law.lines.soft_sum + self._roll.claims


def _count_once(account: Account, entry: Entry, now: float) -> None:
    if not entry.passed_in_shadow:
        entry.passed_in_shadow = True
        account.tally.count("would_reject", now, Code.TENANT_KV_QUOTA_EXCEEDED)
