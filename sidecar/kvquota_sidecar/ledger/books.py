"""The books of one engine: every request from ask to release, and the sums that decide on the next.

Decides by docs/accounting.md who holds what; asks `admission` who may take more. Pure: no clock, no input or output.
`now` is monotonic seconds, given by the caller, and never goes back.

Invariants (`check_integrity` verifies 1 to 3):

1. C(t) is the sum of the charges of t's live requests, and ΣC the sum over the tenants.
2. G is the sum of what tenants may still claim of their softs.
3. An admitted request is in the books until it is released, exactly once; a request that was ended, or whose engine
   has restarted, is charged nothing from that moment.
4. A request is checked and charged in one step; one that is refused is charged nothing.

It does not know the engine's blocks one by one: each request is charged what its own tokens need.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.memory.worth import Worth
from kvquota_api.pod_config import MAX_TENANTS, PodConfig
from kvquota_api.usage import PoolUsage, Rung, TenantUsage
from kvquota_sidecar.admission.case import Case, Pool
from kvquota_sidecar.admission.rules import decide, grown_past_hard
from kvquota_sidecar.admission.rung import next_rung
from kvquota_sidecar.admission.thresholds import Lines, draw
from kvquota_sidecar.ledger.accounts import Account
from kvquota_sidecar.ledger.asking import Admitted, Answer, Ask, Cause, Ending, EngineSample, LedgerError
from kvquota_sidecar.ledger.drain import Drain
from kvquota_sidecar.ledger.entries import Entry, State
from kvquota_sidecar.ledger.gathering import demand_of, entry_of, holder_of, pool_of
from kvquota_sidecar.ledger.gauge import Gauge, Holding
from kvquota_sidecar.ledger.reporting import pressure_percent, room_of, tenant_usage
from kvquota_sidecar.refusals import Code, Refusal, refuse
from kvquota_sidecar.refusals.refusal import MAX_RETRY_AFTER
from kvquota_sidecar.refusals.room import Room

__all__ = [
    "Admitted", "Answer", "Ask", "Books", "Cause", "Ending", "EngineSample", "LedgerError", "Refusal", "Room",
]  # fmt: skip

SPREAD: Final = 0.25  # of a wait: how far clients that were refused together come back apart
_NO_WORTH: Final = Worth((LayerGroup("Full", 1),), Tokens(1))  # before the first config a block counts as a token
MAX_ACCOUNTS: Final = 2 * MAX_TENANTS  # those of the config, and as many that it named before, for their totals


@dataclass(frozen=True, slots=True)
class _InForce:
    config: PodConfig
    lines: Lines


class Books:
    """One engine's books. Not safe for threads: one owner calls it."""

    def __init__(self, jitter: Callable[[], float], sampling_period: float = 1.0) -> None:
        """`jitter`: a number from 0 to 1, new with every call, that spreads retries. `sampling_period`: seconds
        between two calls of `observe`; after two of them the gauge is stale."""
        self._jitter = jitter
        self._gauge = Gauge(sampling_period)
        self._in_force: _InForce | None = None
        self._accounts: dict[str, Account] = {}
        self._entries: dict[int, Entry] = {}
        self._tickets = itertools.count(1)
        self._worth = _NO_WORTH
        self._charged = 0  # ΣC
        self._claims = 0  # what all tenants together may still claim of their softs
        self._drain = Drain()
        self._rung: Rung = "Normal"
        self._rung_since = 0.0

    # -- what is in force, and what the engine says

    def configure(self, config: PodConfig, now: float) -> None:
        """Swap the config. Running requests stay, and growth is held against the larger of then and now.

        A tenant that the config no longer names keeps what it runs until that ends, and gets nothing new.
        """
        shares = {share.id: share for share in config.tenants}
        for tenant in shares:
            self._accounts.setdefault(tenant, Account(tenant))
        for account in self._accounts.values():
            before, account.share = account.hard, shares.get(account.tenant)
            account.pressed = account.pressed and account.hard <= before
            account.shadow = "Shadow" in {config.enforcement, account.enforcement}
        self._worth = config.kv.worth
        self._draw(config)
        self._forget()
        self._step(now)

    def observe(self, sample: EngineSample, now: float) -> None:
        """Take a reading of the engine. Another start time releases the requests that the old engine ran."""
        if self._gauge.restarted(sample):
            self._bury(self._gauge.heard_at)
        self._note_started(sample)
        measured = self._gauge.measured
        self._gauge.read(sample, self._holding(), now)
        if self._in_force is not None and self._gauge.measured != measured:
            self._draw(self._in_force.config)
        self._step(now)

    # -- one request, from ask to release

    def ask(self, ask: Ask, now: float) -> Answer:
        """Admit and charge a request, or refuse it and charge nothing. The refusal is counted already."""
        law, account = self._in_force, self._accounts.get(ask.tenant)
        if law is None:
            return refuse(Code.NOT_CONFIGURED)
        if account is None or account.share is None:
            return refuse(Code.UNKNOWN_TENANT)
        entry = entry_of(ask, account, account.share, law.config, ticket=next(self._tickets), now=now)
        holder = holder_of(account, account.share, law.lines, now)
        verdict = decide(Case(demand_of(ask, entry), holder, self._pool(law, account, now)))
        if isinstance(verdict, Refusal):
            return self._refused(account, verdict, now)
        if verdict.would_reject is not None:
            account.tally.count("would_reject", now, verdict.would_reject.code)
        self._take(account, entry, now)
        return Admitted(entry.ticket, entry.charge)

    def grow(self, ticket: int, produced: Tokens, now: float) -> tuple[Ending, ...]:
        """`produced` tokens of output were seen so far, over all sequences; who has to be ended for it."""
        entry = self._entry(ticket)
        if not entry.see(produced) or entry.state is not State.LIVE:
            return ()
        return self._recharge(entry, now)

    def settle(self, ticket: int, prompt: Tokens, produced: Tokens, now: float) -> tuple[Ending, ...]:
        """The engine's own count, over all prompts and sequences: an estimate that was too high is given back."""
        entry = self._entry(ticket)
        entry.correct(prompt, produced)
        return self._recharge(entry, now) if entry.state is State.LIVE else ()

    def release(self, ticket: int, cause: Cause, now: float) -> None:
        """The request is over, whatever ended it. Raises LedgerError when it was released before."""
        entry = self._entry(ticket)
        account = self._accounts[entry.tenant]
        if entry.state is State.LIVE:
            self._give_back(account, entry, cause, now)
        if entry.state is not State.DEAD:
            account.sequences -= entry.sequences
            account.sequences_drain.add(entry.sequences, now)
        account.pressed = account.pressed and not account.idle
        _learn(account, entry, cause)
        del self._entries[ticket]

    def count_refusal(self, tenant: str, refusal: Refusal, now: float) -> None:
        """Count a refusal that was decided elsewhere. A name that no config gave is not kept: there are too many."""
        account = self._accounts.get(tenant)
        if account is not None:
            account.tally.refused("rejected", refusal, now)

    # -- what the books say

    def room(self, tenant: str, now: float) -> Room | None:
        """The tenant's room, for the headers of its answers; None: nothing is known of it."""
        account = self._accounts.get(tenant)
        if account is None or self._in_force is None:
            return None
        pressure = self._step(now)
        return room_of(account, self._in_force.lines, self._worth, self._rung, pressure)

    def pool_usage(self, now: float) -> PoolUsage | None:
        """The pool's part of the report; None without a config."""
        if self._in_force is None:
            return None
        pressure = self._step(now)
        return PoolUsage(
            usable=self._in_force.lines.usable,
            free=self._free(self._in_force, now),
            reserved=self._charged,
            used=sum(each.filled() for each in self._entries.values() if each.state is State.LIVE),
            unattributed=self._gauge.unattributed(now),
            pressure_percent=pressure,
            rung=self._rung,
            gauge_is_fresh=self._gauge.fresh(now),
        )

    def tenant_usage(self, now: float, wall: float) -> tuple[TenantUsage, ...]:
        """The tenants of the config, and those that still run something; `wall`: Unix seconds at `now`."""
        told = (each for each in self._accounts.values() if each.share is not None or not each.idle)
        return tuple(tenant_usage(each, now, wall) for each in told)

    def check_integrity(self) -> None:
        """Raise LedgerError where a sum is not what its parts are."""
        for account in self._accounts.values():
            self._check_account(account)
        _require("the sum of all C", self._charged, sum(each.charged for each in self._accounts.values()))
        _require("the sum of all claims", self._claims, sum(each.unclaimed for each in self._accounts.values()))
        for entry in self._entries.values():
            _require(f"ticket {entry.ticket}", entry.charge, entry.cost() if entry.state is State.LIVE else 0)

    # -- inside

    def _pool(self, law: _InForce, account: Account, now: float) -> Pool:
        free = self._free(law, now)
        wait = partial(self._drain.wait, now=now)
        return pool_of(law.config, law.lines, account, free=free, claims=self._claims, wait=wait)

    def _check_account(self, account: Account) -> None:
        held = [each for each in self._entries.values() if each.tenant == account.tenant]
        live = {each.ticket: each for each in held if each.state is State.LIVE}
        sequences = sum(each.sequences for each in held if each.state is not State.DEAD)
        _require(f"the live requests of {account.tenant}", list(account.live), list(live))
        _require(f"C of {account.tenant}", account.charged, sum(each.charge for each in live.values()))
        _require(f"the sequences of {account.tenant}", account.sequences, sequences)

    def _refused(self, account: Account, refusal: Refusal, now: float) -> Refusal:
        if refusal.code is Code.KV_POOL_EXHAUSTED:
            account.tally.count("guarantee_missed", now)
        spread = self._spread(refusal)
        account.tally.refused("rejected", spread, now)
        return spread

    def _spread(self, refusal: Refusal) -> Refusal:
        """The refusal with a wait that differs from client to client, so that they do not come back at once."""
        if refusal.retry_after is None:
            return refusal
        wait = refusal.retry_after * (1 + SPREAD * self._jitter())
        return replace(refusal, retry_after=min(MAX_RETRY_AFTER, wait))

    def _take(self, account: Account, entry: Entry, now: float) -> None:
        self._entries[entry.ticket] = account.live[entry.ticket] = entry
        account.sequences += entry.sequences
        self._move(account, entry.charge)
        self._gauge.promised(entry.charge)
        account.tally.count("admitted", now)

    def _recharge(self, entry: Entry, now: float) -> tuple[Ending, ...]:
        account = self._accounts[entry.tenant]
        more = entry.cost() - entry.charge
        entry.charge = Blocks(entry.charge + more)
        self._move(account, more)
        if more <= 0:
            self._unpromise(entry, -more)
            return ()
        self._gauge.promised(more)
        return self._restrain(account, entry, now)

    def _restrain(self, account: Account, grown: Entry, now: float) -> tuple[Ending, ...]:
        """End the tenant's own youngest unprotected work, one by one, while `grown` has passed its hard."""
        endings: list[Ending] = []
        while account.charged > max(account.hard, grown.hard) and (victim := account.over_hard()) is not None:
            if account.shadow:
                return _count_once(account, grown, now)
            endings.append(self._end(account, victim, now))
        return tuple(endings)

    def _end(self, account: Account, victim: Entry, now: float) -> Ending:
        tokens = self._worth.tokens
        wait = account.blocks_drain.wait(victim.charge, now)
        hard = max(account.hard, victim.hard)
        refusal = self._spread(grown_past_hard(account.tenant, tokens(account.charged), tokens(hard), wait))
        self._close(account, victim, State.ENDED, now)
        account.pressed = True
        account.tally.refused("ended", refusal, now)
        return Ending(victim.ticket, refusal)

    def _give_back(self, account: Account, entry: Entry, cause: Cause, now: float) -> None:
        if cause is Cause.FINISHED and entry.produced:
            self._unpromise(entry, entry.charge - entry.seen())
        account.blocks_drain.add(entry.charge, now)
        self._drain.add(entry.charge, now)
        account.pressed = False
        self._close(account, entry, State.ENDED, now)

    def _unpromise(self, entry: Entry, blocks: int) -> None:
        """`blocks` of it will never be filled. Of what an earlier reading counted, the next one has to say it."""
        if self._gauge.read_at is not None and entry.admitted_at > self._gauge.read_at:
            self._gauge.promised(-blocks)

    def _close(self, account: Account, entry: Entry, state: State, now: float) -> None:
        """Charge nothing for it any more; what it holds is about to be freed."""
        self._gauge.ended(entry.filled(), now)
        del account.live[entry.ticket]
        self._move(account, -entry.charge)
        entry.charge, entry.state = Blocks(0), state

    def _bury(self, last_heard: float) -> None:
        dead = [each for each in self._entries.values() if each.state is State.LIVE and each.admitted_at <= last_heard]
        for entry in dead:
            account = self._accounts[entry.tenant]
            self._close(account, entry, State.DEAD, last_heard)
            account.sequences -= entry.sequences
            account.pressed = False

    def _holding(self) -> Holding:
        live = [each for each in self._entries.values() if each.state is State.LIVE]
        return Holding(self._charged, sum(each.seen() for each in live), sum(each.unseen() for each in live))

    def _note_started(self, sample: EngineSample) -> None:
        """When the engine lets nothing wait, it has taken up all that was admitted before the previous reading."""
        for entry in self._entries.values():
            before = self._gauge.read_at is not None and entry.admitted_at < self._gauge.read_at
            entry.started = entry.started or (sample.waiting == 0 and before)

    def _move(self, account: Account, blocks: int) -> None:
        before = account.unclaimed
        account.charged += blocks
        self._charged += blocks
        self._claims += account.unclaimed - before

    def _draw(self, config: PodConfig) -> None:
        self._in_force = law = _InForce(config, draw(config, self._gauge.measured))
        for account in self._accounts.values():
            account.soft = law.lines.softs.get(account.tenant, Blocks(0))
        self._claims = sum(each.unclaimed for each in self._accounts.values())

    def _forget(self) -> None:
        gone = [each.tenant for each in self._accounts.values() if each.share is None and each.idle]
        for tenant in gone[: max(0, len(self._accounts) - MAX_ACCOUNTS)]:
            del self._accounts[tenant]

    def _step(self, now: float) -> float:
        """Move the rung to where pressure stands; the pressure in percent."""
        if self._in_force is None:
            return 0.0
        pressure = pressure_percent(self._in_force.lines.usable, self._free(self._in_force, now))
        rung = next_rung(self._rung, now - self._rung_since, pressure, self._in_force.config.ladder)
        if rung != self._rung:
            self._rung, self._rung_since = rung, now
        return pressure

    def _free(self, law: _InForce, now: float) -> int:
        return self._gauge.free(law.lines.usable, self._charged, now)

    def _entry(self, ticket: int) -> Entry:
        if ticket not in self._entries:
            raise LedgerError(f"ticket {ticket} is not in the books: it was released before, or never given")
        return self._entries[ticket]


def _learn(account: Account, entry: Entry, cause: Cause) -> None:
    """Remember how long the output became; one of which nothing was seen says nothing."""
    if not entry.produced:
        return
    if cause is Cause.FINISHED:
        account.outputs.finished(entry.produced)
    else:
        account.outputs.ended(entry.produced)


def _count_once(account: Account, entry: Entry, now: float) -> tuple[Ending, ...]:
    if not entry.passed_in_shadow:
        entry.passed_in_shadow = True
        account.tally.count("would_reject", now, Code.TENANT_KV_QUOTA_EXCEEDED)
    return ()


def _require(what: str, booked: object, counted: object) -> None:
    if booked != counted:
        raise LedgerError(f"the books do not add up: {what} is {booked} and should be {counted}")
