"""The books of one engine: every request from ask to release, and who has to give back.

Decides by docs/accounting.md who holds what; asks `admission` who may take more. Pure: no clock, no input or output.
`now` is monotonic seconds, given by the caller, and never goes back.

Invariants (`check_integrity` verifies the sums, see `roll`):

1. A request is checked and charged in one step; one that is refused, or is to be asked again, is charged nothing.
2. Of guaranteed requests that find no room the first is the first to get it; none waits longer than the config says.
3. Nobody is ended while nothing is missing by the ledger: what has been ended already is on its way.
4. What a call brings about for other requests comes out of `turn`, once.

It does not know the engine's blocks one by one: each request is charged what its own tokens need.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.pod_config import PodConfig
from kvquota_api.usage import MAX_ACCOUNTS, PoolUsage, Rung, TenantUsage
from kvquota_sidecar.admission.rules import Grant
from kvquota_sidecar.admission.rung import next_rung
from kvquota_sidecar.ledger.accounts import Account
from kvquota_sidecar.ledger.asking import (
    Admitted,
    Answer,
    Ask,
    AskedPrompt,
    Cause,
    Close,
    Ending,
    EngineSample,
    LedgerError,
    Turn,
    Waiting,
)
from kvquota_sidecar.ledger.drain import Drain
from kvquota_sidecar.ledger.entries import Entry, State
from kvquota_sidecar.ledger.gathering import entry_of, pool_of
from kvquota_sidecar.ledger.hearing import Hearing, Wait
from kvquota_sidecar.ledger.law import Law, law_of, pools_of
from kvquota_sidecar.ledger.ranks import Ranks
from kvquota_sidecar.ledger.reclaiming import Reclaiming
from kvquota_sidecar.ledger.reporting import pool_usage, room_of, tenant_usage
from kvquota_sidecar.ledger.roll import Roll
from kvquota_sidecar.ledger.settling import Settling
from kvquota_sidecar.ledger.spreading import spread
from kvquota_sidecar.refusals import Code, Refusal, refuse
from kvquota_sidecar.refusals.room import Room

__all__ = [
    "Admitted", "Answer", "Ask", "AskedPrompt", "Books", "Cause", "Close", "Ending", "EngineSample", "LedgerError",
    "Refusal", "Room", "Turn", "Waiting",
]  # fmt: skip

_NOTHING: Final = Turn()
_CUTS: Final = (Cause.CLIENT_GONE, Cause.ENDED, Cause.DRAINED)


class Books:
    """One engine's books. Not safe for threads: one owner calls it."""

    def __init__(self, jitter: Callable[[], float], sampling_period: float = 1.0) -> None:
        """`jitter`: a number from 0 to 1, new with every call, that spreads retries. `sampling_period`: seconds
        between two calls of `observe`; after two of them the gauge is stale."""
        self._spread = partial(spread, jitter=jitter)
        self._drain = Drain()
        self._ranks = Ranks(sampling_period)
        self._roll = Roll(self._ranks)
        self._reclaiming = Reclaiming(self._roll, self._drain, self._spread)
        self._tickets = itertools.count(1)
        self._law: Law | None = None
        self._stirred = False  # something has changed that those who wait have waited for
        self._over = self._cut = 0
        self._settling = Settling()
        self._rung: Rung = "Normal"
        self._rung_since = 0.0

    # -- what is in force, and what the engine says

    def configure(self, config: PodConfig, now: float) -> None:
        """Swap the config. Running requests stay, and growth is held against the larger of then and now.

        A tenant that the config no longer names keeps what it runs until that ends, and gets nothing new. The number of
        ranks is that of the first config: an engine does not change it while it runs.
        """
        if self._law is None:
            self._ranks.part(pools_of(config))
        shares = {share.id: share for share in config.tenants}
        for tenant in shares:
            self._roll.accounts.setdefault(tenant, Account(tenant))
        for account in self._roll.accounts.values():
            before, account.share = account.hard, shares.get(account.tenant)
            account.pressed = account.pressed and account.hard <= before
            account.shadow = "Shadow" in {config.enforcement, account.enforcement}
        self._draw(config)
        for entry in self._roll.queue.values():
            entry.deadline = entry.admitted_at + config.ladder.eviction_wait_seconds
        self._forget()
        self._changed(now)

    def observe(self, sample: EngineSample, now: float) -> None:
        """Take a reading of the engine. Another start time releases the requests that the old engine ran."""
        ranks, measured = self._ranks, self._ranks.measured
        if ranks.restarted(sample):
            self._bury(ranks.heard_at)
            ranks.restart()
        preempted = ranks.preempted(sample)
        if self._law is not None:
            self._reclaiming.count_preempted(preempted, self._law, now)
        ranks.note(sample, now)
        for rank, said in zip(ranks.each, ranks.split(sample), strict=True):
            if said.waiting == 0:
                self._roll.note_started(rank)
            if said.used_blocks is not None:
                rank.gauge.read(said.used_blocks, self._roll.holding(rank), now)
        if self._law is not None and ranks.measured != measured:
            self._draw(self._law.config)
        self._changed(now)

    @property
    def is_calm(self) -> bool:
        """Whether the engine was ever seen to hold next to nothing: what ran before this program has left it."""
        return self._settling.is_calm

    # -- one request, from ask to release

    def ask(self, ask: Ask, now: float) -> Answer:
        """Admit and charge a request, let it wait, or refuse it and charge nothing. A refusal is counted already."""
        law, account = self._law, self._roll.accounts.get(ask.tenant)
        if law is None:
            return refuse(Code.NOT_CONFIGURED)
        if account is None or account.share is None:
            return refuse(Code.UNKNOWN_TENANT)
        rank, free = self._ranks.roomiest(now)
        entry = entry_of(ask, account, account.share, law, ticket=next(self._tickets), rank=rank.place, now=now)
        lends_in = self._reclaiming.lends_in(law, now)
        pool = pool_of(law, account, self._roll, free, lends_in=lends_in, drain=self._drain, now=now)
        verdict = Hearing(ask, account, account.share, pool, now).verdict(entry)
        if isinstance(verdict, Grant):
            return self._admit(account, entry, verdict, now)
        if isinstance(verdict, Wait):
            return self._let_wait(account, entry, law, now)
        account.part(entry)
        return verdict if isinstance(verdict, Close) else self._refused(account, verdict, now)

    def grow(self, ticket: int, produced: Tokens, now: float) -> None:
        """`produced` tokens of output were seen so far, over all sequences."""
        entry = self._roll.entry(ticket)
        if entry.see(produced) and entry.state is State.LIVE:
            self._recharge(entry, now)

    def unseen(self, ticket: int, now: float) -> None:
        """Nobody sees its output any more, and the engine goes on: from now on it reserves its whole limit."""
        entry = self._roll.entry(ticket)
        if entry.state is State.LIVE and entry.promise < entry.limit:
            entry.promise = entry.limit
            self._recharge(entry, now)

    def settle(self, ticket: int, prompt: Tokens, produced: Tokens, now: float, cached: Tokens | None = None) -> None:
        """The engine's own count, over all prompts and sequences: an estimate that was too high is given back.

        `cached`: tokens of the prompts that it found in its prefix cache; None: it did not say.
        """
        entry = self._roll.entry(ticket)
        entry.correct(prompt, produced)
        if cached is not None:
            entry.find(cached)
            entry.looked_up = prompt, Tokens(min(cached, prompt))
        if entry.state is State.LIVE:
            self._recharge(entry, now)

    def count(self, ticket: int, prompts: Sequence[Tokens], now: float, *, guessed: bool = False) -> None:
        """Its prompts were counted while it runs or waits, or `guessed`, as nobody counted them in time. What the
        engine has said itself stays."""
        entry = self._roll.entry(ticket)
        if entry.estimated and entry.state in (State.LIVE, State.WAITING):
            entry.count(prompts, guessed=guessed)
            self._recharge(entry, now)

    def sent(self, ticket: int) -> None:
        """The first byte of its answer goes out."""
        self._roll.entry(ticket).sent = True

    def release(self, ticket: int, cause: Cause, now: float) -> None:
        """The request is over, whatever ended it, or its client waits no longer.

        Raises LedgerError when it was released before.
        """
        entry = self._roll.entry(ticket)
        self._stirred = self._stirred or bool(self._roll.queue)
        if entry.state is State.WAITING:
            self._roll.withdraw(entry)
            return
        account = self._roll.accounts[entry.tenant]
        self._over += entry.sequences
        self._cut += entry.sequences if cause in _CUTS else 0
        if entry.state is State.LIVE:
            self._give_back(account, entry, cause, now)
        if entry.state is not State.DEAD:
            account.sequences_drain.add(entry.sequences, now)
        self._roll.forget(entry)
        if entry.looked_up is not None:
            account.tally.count("prompt_tokens", now, times=entry.looked_up[0])
            account.tally.count("cached_tokens", now, times=entry.looked_up[1])
        account.pressed = account.pressed and not account.idle
        account.learn(entry, cause)

    def count_refusal(self, tenant: str, refusal: Refusal, now: float) -> None:
        """Count a refusal that was decided elsewhere. A name that no config gave is not kept: there are too many."""
        account = self._roll.accounts.get(tenant)
        if account is not None:
            account.tally.refused("rejected", refusal, now)

    @property
    def sequences(self) -> int:
        """How many sequences were sent to the engine and not released: it runs no more of ours."""
        return self._roll.sequences()

    @property
    def begun(self) -> int:
        """How many sequences were ever sent to the engine."""
        return self._over + self._roll.sequences()

    @property
    def cut(self) -> int:
        """How many sequences were ever broken off while the engine had them."""
        return self._cut

    # -- what is to be done

    @property
    def restless(self) -> bool:
        """Whether `turn` may have something to say without time passing."""
        return self._stirred or bool(self._reclaiming.endings or self._reclaiming.missed)

    @property
    def someone_waits(self) -> bool:
        """Whether a guaranteed request waits for room, so that the gauge is to be read every 100 ms."""
        return bool(self._roll.queue)

    def turn(self, now: float) -> Turn:
        """What is to be done now: who of those that wait runs, who waited in vain, and who is to be ended."""
        law = self._law
        if law is None or not (self.restless or self._roll.queue):
            return _NOTHING
        self._stirred = False
        served = self._serve(law, now) if self._roll.queue else ()
        for rank in self._ranks.each:
            if (rank.waiting or rank.outgrown) and not law.shadow:
                self._reclaiming.evict(rank, law, now)
            rank.outgrown = False
        admitted = tuple([self._admit_at_last(entry, now) for entry in served])
        missed, endings = self._reclaiming.told()
        return Turn(admitted, missed, endings)

    # -- what the books say

    def room(self, tenant: str, now: float) -> Room | None:
        """The tenant's room, for the headers of its answers; None: nothing is known of it."""
        account = self._roll.accounts.get(tenant)
        if account is None or self._law is None:
            return None
        return room_of(account, self._law, self._rung, self._step(now))

    def pool_usage(self, now: float) -> PoolUsage | None:
        """The pool's part of the report; None without a config."""
        if self._law is None:
            return None
        return pool_usage(self._roll, self._law, self._rung, self._step(now), now)

    def tenant_usage(self, now: float, wall: float) -> tuple[TenantUsage, ...]:
        """The tenants of the config, and those that still run something; `wall`: Unix seconds at `now`."""
        told = (each for each in self._roll.accounts.values() if each.share is not None or not each.idle)
        return tuple(tenant_usage(each, now, wall) for each in told)

    def usage_of(self, tenant: str, now: float, wall: float) -> TenantUsage:
        """Of one tenant that `room` knows. Costs the same however many others there are."""
        return tenant_usage(self._roll.accounts[tenant], now, wall)

    def check_integrity(self) -> None:
        """Raise LedgerError where a sum is not what its parts are."""
        self._roll.check_integrity()

    # -- inside

    def _admit(self, account: Account, entry: Entry, grant: Grant, now: float) -> Admitted:
        if grant.would_reject is not None:
            account.tally.count("would_reject", now, grant.would_reject.code)
        protected = account.charged + entry.charge <= account.soft
        self._roll.take(account, entry)
        account.tally.count("admitted", now)
        number, is_doubtful = self._ranks.number(entry.rank), entry.estimated and entry.doubt > 0
        count = is_doubtful and account.is_doubtful
        return Admitted(entry.ticket, entry.charge, number, protected, is_doubtful, count, entry.told)

    def _let_wait(self, account: Account, entry: Entry, law: Law, now: float) -> Waiting:
        entry.deadline = now + law.config.ladder.eviction_wait_seconds
        self._roll.enqueue(account, entry)
        self._stirred = True
        if not (entry.estimated and entry.doubt):
            return Waiting(entry.ticket)
        return Waiting(entry.ticket, is_doubtful=True, count=account.is_doubtful)

    def _refused(self, account: Account, refusal: Refusal, now: float) -> Refusal:
        told = self._spread(refusal)
        account.tally.refused("rejected", told, now)
        return told

    def _serve(self, law: Law, now: float) -> tuple[Entry, ...]:
        """Who of those that wait finds room, in order of arrival, each with what those before it leave."""
        left = [rank.free(self._ranks.usable, now) + rank.waiting for rank in self._ranks.each]
        served = []
        for entry in tuple(self._roll.queue.values()):
            if max(left) < 1 and now < entry.deadline and not law.shadow:
                break  # nothing is left for anybody, and those behind came later
            if law.shadow or entry.charge <= left[entry.rank]:
                served.append(entry)
            elif now >= entry.deadline:
                self._reclaiming.miss(entry, left[entry.rank], law, now)
                continue
            left[entry.rank] -= entry.charge
        return tuple(served)

    def _admit_at_last(self, entry: Entry, now: float) -> Admitted:
        account, number = self._roll.accounts[entry.tenant], self._ranks.number(entry.rank)
        self._roll.admit(entry, now)
        account.tally.count("admitted", now)
        protected = all(each is not entry for each in account.over_soft())  # its soft may be lower by now
        return Admitted(entry.ticket, entry.charge, number, protected, limit=entry.told)

    def _recharge(self, entry: Entry, now: float) -> None:
        more, law = self._roll.recharge(entry), self._law
        if more < 0:
            if entry.state is State.LIVE:
                self._roll.unpromise(entry, -more)
            self._stirred = self._stirred or bool(self._roll.queue)
        elif more > 0 and law is not None:
            self._reclaiming.restrain(self._roll.accounts[entry.tenant], entry, law, now)
            rank = self._ranks.each[entry.rank]
            if rank.free(self._ranks.usable, now) < 1:
                self._stirred = rank.outgrown = True

    def _give_back(self, account: Account, entry: Entry, cause: Cause, now: float) -> None:
        filled = entry.filled()
        if cause is Cause.FINISHED and entry.produced:
            self._roll.unpromise(entry, entry.charge - filled)
        account.pressed = False
        freed = self._roll.close(entry, State.ENDED, filled, now)
        account.blocks_drain.add(freed, now)
        self._drain.add(freed, now)

    def _bury(self, last_heard: float) -> None:
        """The engine that was heard last is gone, and with it what it ran."""
        entries = self._roll.entries.values()
        for entry in [each for each in entries if each.state is State.LIVE and each.admitted_at <= last_heard]:
            account = self._roll.accounts[entry.tenant]
            self._roll.close(entry, State.DEAD, entry.filled(), last_heard)
            account.sequences -= entry.sequences
            account.pressed = False

    def _draw(self, config: PodConfig) -> None:
        self._law = law = law_of(config, self._ranks.measured)
        self._ranks.usable = Blocks(law.lines.usable // len(self._ranks.each))
        for account in self._roll.accounts.values():
            account.draw(law.lines, Tokens(config.kv.max_model_len))
        self._roll.claims = sum(each.unclaimed for each in self._roll.accounts.values())

    def _forget(self) -> None:
        accounts = self._roll.accounts
        gone = [each.tenant for each in accounts.values() if each.share is None and each.idle]
        for tenant in gone[: max(0, len(accounts) - MAX_ACCOUNTS)]:
            del accounts[tenant]

    def _changed(self, now: float) -> None:
        """A config or a reading has come."""
        self._stirred = self._stirred or bool(self._roll.queue)
        self._step(now)
        law, ranks = self._law, self._ranks
        if law is None:
            return
        self._settling.look(ranks, law.lines.usable)
        for rank in ranks.each if law.shadow else ():
            self._reclaiming.count_in_shadow(rank, law, now)

    def _step(self, now: float) -> float:
        """Move the rung to where pressure stands; the pressure in percent."""
        if self._law is None:
            return 0.0
        pressure = self._ranks.pressure_percent(now)
        rung = next_rung(self._rung, now - self._rung_since, pressure, self._law.config.ladder)
        if rung != self._rung:
            self._rung, self._rung_since = rung, now
        return pressure
