"""Who calls the books in tests: it does what their callers have to do, and checks all that the books say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from bookkeeping import BLOCK, PERIOD
from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.pod_config import PodConfig, TenantShare
from kvquota_sidecar.ledger.accounts import Account
from kvquota_sidecar.ledger.asking import RankSample
from kvquota_sidecar.ledger.books import (
    Admitted,
    Answer,
    Books,
    Cause,
    Close,
    Ending,
    EngineSample,
    LedgerError,
    Refusal,
    Waiting,
)
from kvquota_sidecar.refusals import Code
from ledger_clients import Client, Told, Wanted, is_exact
from ledger_engine import ModelEngine, Running


def new_books() -> Books:
    return Books(jitter=lambda: 0.5, sampling_period=PERIOD)


Work = tuple[tuple[int, int], ...]  # ticket and charge of what one tenant runs, in order of admission
Order = Mapping[str, Work]  # by tenant


@dataclass(eq=False)
class Desk:
    """`clients` run, `waiting` wait, in order of arrival. `log`: all calls but reads, to be played again.
    `met`: what came of them."""

    engine: ModelEngine
    context: int
    now: float = 100.0
    books: Books = field(default_factory=new_books)
    config: PodConfig | None = None
    shares: dict[str, TenantShare] = field(default_factory=dict)
    clients: dict[int, Client] = field(default_factory=dict)
    waiting: dict[int, Client] = field(default_factory=dict)
    missed: int = 0
    met: Counter[str] = field(default_factory=Counter)
    log: list[tuple[str, tuple[Any, ...], object]] = field(default_factory=list)
    grown: bool = False  # since the last turn

    # -- calls

    def call(self, method: str, *arguments: Any) -> Any:
        result = getattr(self.books, method)(*arguments)
        self.log.append((method, arguments, result))
        return result

    def configure(self, config: PodConfig) -> None:
        before = +Counter(self.charges())
        self.call("configure", config, self.now)
        assert +Counter(self.charges()) == before, "a config ends nothing and charges nothing"
        self.config, self.shares = config, {each.quota: each for each in config.tenants}
        for client in (*self.clients.values(), *self.waiting.values()):
            if client.wanted.name in self.shares:
                client.hard = max(client.hard, self.shares[client.wanted.name].hard_blocks)
        self.take_turn()

    def observe(self, *, used: bool = True, waiting: bool = True, apart: bool = True, foreign: int = 0) -> None:
        """`foreign`: blocks on the first rank that are of nobody here. `apart`: the engine tells its ranks apart."""
        engine = self.engine
        ranks = [
            RankSample(
                rank,
                Blocks(engine.used(rank, self.now) + (0 if rank else foreign)) if used else None,
                waiting=engine.waiting(rank) if waiting else None,
            )
            for rank in range(engine.ranks)
        ]
        seen, queue = [each.used_blocks for each in ranks], [each.waiting for each in ranks]
        sample = EngineSample(
            block_tokens=Tokens(BLOCK),
            used_blocks=Blocks(sum(each for each in seen if each is not None)) if used else None,
            running=0,
            waiting=sum(each for each in queue if each is not None) if waiting else None,
            started_at=engine.started,
            ranks=tuple(ranks) if apart and engine.ranks > 1 else (),
        )
        self.call("observe", sample, self.now)
        if used and (apart or engine.ranks == 1):
            assert [each.gauge.used for each in self.books._ranks.each] == seen, "each rank by its own gauge"
        self.take_turn()

    def ask(self, wanted: Wanted, *, exact: bool = False, counted_in_time: bool = True) -> Answer:
        """Ask by the estimate, and where that is too close by what the tokenizer counts, else by the worst; at last
        when the others of the tenant were counted too."""
        told = wanted.real if exact else wanted.guess
        answer = self._ask(wanted, told)
        if isinstance(answer, Close) and not is_exact(told):
            told = wanted.real if counted_in_time else wanted.worst
            answer = self._ask(wanted, told)
        if isinstance(answer, Close):
            self.met["asked again when others were known"] += 1
            self.count_all(wanted.name, in_time=counted_in_time)
            answer = self._ask(wanted, told, final=True)
            assert not isinstance(answer, Close), "what is known exactly is decided"
        if isinstance(answer, Admitted | Waiting):
            self._accept(answer, wanted, told)
        self.take_turn()
        return answer

    def grow(self, ticket: int) -> None:
        """Tell what was produced so far."""
        client, request = self.clients[ticket], self.engine.running.get(ticket)
        if request is None or not request.produced:
            return
        before = self.work_of(client)
        self.call("grow", ticket, Tokens(request.written), self.now)
        client.shown, self.grown = request.produced, True
        self.take_turn(before, ticket)

    def count_all(self, name: str, *, in_time: bool) -> None:
        """Have the prompts counted that one tenant runs or waits with, and that are known by estimate."""
        for ticket, client in (*self.clients.items(), *self.waiting.items()):
            if client.wanted.name == name and not is_exact(client.told) and not client.settled:
                told = client.wanted.real if in_time else tuple((most, most) for _, most in client.told)
                before = self.work_of(client)
                self.call("count", ticket, tuple(Tokens(tokens) for tokens, _ in told), self.now)
                client.told, self.grown = told, True
                self.take_turn(before, ticket)

    def lose_sight(self, ticket: int) -> None:
        client = self.clients[ticket]
        before = self.work_of(client)
        self.call("unseen", ticket, self.now)
        client.unseen, self.grown = True, True
        self.take_turn(before, ticket)

    def settle(self, ticket: int) -> None:
        client, request = self.clients[ticket], self.engine.running.get(ticket)
        if request is None:
            return
        before = self.work_of(client)
        cached = Tokens(0) if client.wanted.cold else None
        self.call("settle", ticket, Tokens(request.tokens), Tokens(request.written), self.now, cached)
        client.settle()
        client.shown, self.grown = request.produced, True
        self.take_turn(before, ticket)

    def release(self, ticket: int, cause: Cause, late: float = 0.0) -> None:
        self.call("release", ticket, cause, self.now)
        self.engine.drop(ticket, self.now + late)
        self.clients.pop(ticket, None)
        self.waiting.pop(ticket, None)
        with pytest.raises(LedgerError):
            self.books.release(ticket, cause, self.now)
        self.take_turn()

    # -- what comes of it

    def take_turn(self, before: Work = (), grown: int | None = None) -> None:
        """As the callers do it: after each call that leaves the books restless, and then and now. `before`: the work of
        the tenant of `grown`, before that grew."""
        if not self.restless():
            return
        order, queue = self.order(), tuple(self.waiting.items())
        waited, was_grown, self.grown = bool(queue), self.grown, False
        turn = self.call("turn", self.now)
        assert not self.restless()
        told = [each.ticket for each in (*turn.admitted, *turn.missed, *turn.endings)]
        assert len(told) == len(set(told)), "what is done for one ticket needs no order"
        for missed in turn.missed:
            self._miss(missed)
        for admitted in turn.admitted:
            self._admit(admitted)
            self.met["admitted after a wait"] += 1
        self._check_the_order(queue, [each.ticket for each in turn.admitted])
        for ending in turn.endings:
            self._end(ending)
            if ending.refusal.code == Code.KV_EVICTED:
                assert waited or was_grown, "nobody is ended without a waiter or growth"
                assert ending.ticket in over_soft(order, self.softs()), "nobody protected is ended for others"
            else:
                assert grown is not None
                self._check_own_growth(before, grown, ending)

    def _ask(self, wanted: Wanted, told: Told, *, final: bool = False) -> Answer:
        before = self.charges()
        answer: Answer = self.call("ask", wanted.ask(told, final=final), self.now)
        if isinstance(answer, Refusal | Close):
            assert self.charges() == before, "a refusal takes nothing"
            assert isinstance(answer, Close) or (answer.retry_after is not None) == answer.retryable
        elif isinstance(answer, Admitted):
            assert sum(self.charges().values()) == sum(before.values()) + answer.reserved
        return answer

    def _accept(self, answer: Admitted | Waiting, wanted: Wanted, told: Told) -> None:
        share = self.shares[wanted.name]
        entry = self.books._roll.entries[answer.ticket]
        client = Client(wanted, told, share.hard_blocks, self.now, entry.rank)
        self.waiting[answer.ticket] = client
        if isinstance(answer, Admitted):
            if self.enforced(wanted.name) and share.max_context_tokens is not None:
                for (tokens, _), limit in zip(told, self._limits(answer, client), strict=True):
                    assert tokens + limit <= share.max_context_tokens, (
                        "the engine goes no further than what was charged"
                    )
            self._admit(answer)
        else:
            self.met["waited"] += 1
        if self.enforced(wanted.name):
            assert self.charges()[wanted.name] <= share.hard_blocks
            most = share.max_concurrent_requests
            assert most is None or self.in_flight()[wanted.name] <= most

    def _admit(self, answer: Admitted) -> None:
        client = self.clients[answer.ticket] = self.waiting.pop(answer.ticket)
        wanted, limits = client.wanted, self._limits(answer, client)
        assert answer.rank == (client.rank if self.engine.ranks > 1 else None)
        copies = wanted.sequences // len(wanted.texts)
        self.engine.submit(
            Running(answer.ticket, wanted.name, wanted.texts, copies, limits, wanted.cold, wanted.pools, client.rank)
        )

    def _limits(self, answer: Admitted, client: Client) -> tuple[int, ...]:
        """What the engine will let each text produce: it knows its own context, and what the request says or was told
        to."""
        said = client.wanted.limit if answer.limit is None else answer.limit
        left = [max(1, self.context - each.tokens) for each in client.wanted.texts]
        if client.wanted.pools:
            return (0,) * len(left)
        return tuple(left if said is None else [min(said, each) for each in left])

    def _miss(self, missed: Ending) -> None:
        client = self.waiting.pop(missed.ticket)
        if missed.refusal.code == Code.KV_POOL_EXHAUSTED:
            assert self.config is not None
            assert self.now - client.since >= min(2.0, self.config.ladder.eviction_wait_seconds)
            self.missed += 1
            self.met["missed"] += 1
        else:
            assert missed.refusal.code == Code.TENANT_KV_QUOTA_EXCEEDED

    def _end(self, ending: Ending) -> None:
        client = self.clients[ending.ticket]
        assert not client.ended, "nobody is ended twice"
        client.ended = True
        self.met["evicted" if ending.refusal.code == Code.KV_EVICTED else "ended for its own"] += 1
        if ending.refusal.code != Code.KV_EVICTED:
            assert self.enforced(client.wanted.name)
        assert self.config is None or self.config.enforcement == "Enforce"

    def _check_the_order(self, queue: tuple[tuple[int, Client], ...], admitted: list[int]) -> None:
        assert admitted == [ticket for ticket, _ in queue if ticket in admitted], "in order of arrival"
        for rank in range(self.engine.ranks):
            here = [ticket for ticket, client in queue if client.rank == rank]
            still = [ticket for ticket in here if ticket in self.waiting]
            let_in = [ticket for ticket in here if ticket in admitted]
            assert not still or not let_in or max(let_in) < min(still), "nobody is overtaken"

    def _check_own_growth(self, before: Work, grown: int, ending: Ending) -> None:
        name = self.clients[grown].wanted.name
        assert self.clients[ending.ticket].wanted.name == name, "never another tenant's"
        charge = self.books._roll.entries[grown].cost()
        work = tuple((ticket, charge if ticket == grown else held) for ticket, held in before)
        assert ending.ticket in over_soft({name: work}, self.softs()), "never a protected one"

    # -- what the books say

    def restless(self) -> bool:
        return self.books.restless

    def charges(self) -> dict[str, int]:
        """As they stand in the books; `check_reports` holds the reports to it."""
        return {each.tenant.removeprefix("inference/"): each.charged for each in self.accounts()}

    def in_flight(self) -> dict[str, int]:
        return {each.tenant.removeprefix("inference/"): each.sequences for each in self.accounts()}

    def accounts(self) -> list[Account]:
        """Of the config, and of those that still run something."""
        return [each for each in self.books._roll.accounts.values() if each.share is not None or not each.idle]

    def check_reports(self) -> None:
        """What is reported is what stands in the books, and these hold the sequences of all that was not released."""
        told = {each.id: (each.reserved, each.in_flight) for each in self.books.tenant_usage(self.now, 0.0)}
        assert told == {each.tenant: (each.charged, each.sequences) for each in self.accounts()}
        sequences: Counter[str] = Counter()
        for client in (*self.clients.values(), *self.waiting.values()):
            sequences[client.wanted.name] += client.wanted.sequences
        assert +Counter(self.in_flight()) == sequences

    def check_each_charge(self, batch: int | None) -> None:
        """Where nothing is shared a request is charged at least what it needs by what is known of it. `batch`: tokens
        of one step of the engine, as the config has it."""
        for ticket, client in (*self.clients.items(), *self.waiting.items()):
            if not client.ended:
                runs = self.engine.running.get(ticket)
                limits = (0,) * len(client.told) if runs is None else runs.limits
                assert self.books._roll.entries[ticket].charge >= client.least(limits, batch)

    def enforced(self, name: str) -> bool:
        own = self.shares.get(name)
        pool_enforces = self.config is None or self.config.enforcement == "Enforce"
        return pool_enforces and (own is None or own.enforcement == "Enforce")

    def order(self) -> Order:
        accounts = self.books._roll.accounts.values()
        return {each.tenant.removeprefix("inference/"): _work(each) for each in accounts}

    def work_of(self, client: Client) -> Work:
        """What the tenant of a request runs."""
        return _work(self.books._roll.accounts[f"inference/{client.wanted.name}"])

    def softs(self) -> dict[str, int]:
        return {each.tenant.removeprefix("inference/"): each.soft for each in self.books._roll.accounts.values()}

    def play_again(self) -> None:
        """The same calls say the same."""
        again = new_books()
        for method, arguments, result in self.log:
            assert getattr(again, method)(*arguments) == result

    def check_nothing_is_left(self) -> None:
        """When everything was released."""
        self.books.check_integrity()
        self.check_reports()
        assert set(self.charges().values()) <= {0}
        assert set(self.in_flight().values()) <= {0}
        roll = self.books._roll
        assert (roll.entries, roll.queue, roll.charged) == ({}, {}, 0)
        for account in roll.accounts.values():
            assert (account.live, account.waiting, account.charged, account.doubt, account.sequences) == (
                {},
                {},
                0,
                0,
                0,
            )
            assert sum(len(each) for each in account._prefixes.values()) == 0
        assert [(rank.charged, rank.waiting) for rank in roll.ranks.each] == [(0, 0)] * self.engine.ranks


def _work(account: Account) -> Work:
    return tuple((ticket, entry.charge) for ticket, entry in account.live.items())


def over_soft(order: Order, softs: Mapping[str, int]) -> set[int]:
    """By the words of the rule: what comes behind the longest prefix whose charges sum to at most soft."""
    found: set[int] = set()
    for name, work in order.items():
        total = 0
        for ticket, charge in work:
            total += charge
            if total > softs[name]:
                found.add(ticket)
    return found
