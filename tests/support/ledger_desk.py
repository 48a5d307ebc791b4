"""Who calls the books in tests: it does what their callers have to do, and checks all that the books say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from bookkeeping import PERIOD, sample
from kvquota_api.amounts import Tokens
from kvquota_api.pod_config import PodConfig, TenantShare
from kvquota_sidecar.ledger.asking import Growth
from kvquota_sidecar.ledger.books import (
    Admitted,
    Answer,
    Ask,
    AskedPrompt,
    Books,
    Cause,
    Close,
    Ending,
    LedgerError,
    Refusal,
    Waiting,
)
from kvquota_sidecar.refusals import Code
from ledger_engine import ModelEngine, Running, Text


def new_books() -> Books:
    return Books(jitter=lambda: 0.5, sampling_period=PERIOD)


Order = Mapping[str, tuple[tuple[int, int], ...]]  # by tenant: ticket and charge of what runs, in order of admission


@dataclass(frozen=True)
class Wanted:
    """One request as its client means it. `limit`: of each output, None: not said."""

    name: str
    text: Text
    copies: int = 1
    limit: int | None = None
    seen: bool = True
    cold: bool = False

    def ask(self, tokens: int, most: int, *, final: bool = False) -> Ask:
        prompt = AskedPrompt(Tokens(tokens), Tokens(most), self.text.chain, self.text.size)
        limit = None if self.limit is None else Tokens(self.limit)
        growth: Growth = "Seen" if self.seen else "Unseen"
        return Ask(f"inference/{self.name}", (prompt,), self.copies, limit, growth, final=final)


@dataclass(eq=False)
class Client:
    """A request that was not released. `told`: tokens and upper bound that the books know. `hard`: the largest that was
    in force since its ask. `shown`: tokens of each output that the books were told of."""

    wanted: Wanted
    told: tuple[int, int]
    hard: int
    since: float
    shown: int = 0
    settled: bool = False
    unseen: bool = False
    ended: bool = False


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

    def observe(self, *, used: bool = True, waiting: bool = True, foreign: int = 0) -> None:
        shown = self.engine.used(self.now) + foreign if used else None
        queue = self.engine.waiting() if waiting else None
        self.call("observe", sample(used=shown, waiting=queue, started=self.engine.started), self.now)
        self.take_turn()

    def ask(self, wanted: Wanted, *, exact: bool = False, counted_in_time: bool = True) -> Answer:
        """Ask by the estimate, and where that is too close by what the tokenizer counts, else by the worst; at last
        when the others of the tenant were counted too."""
        real, guess, most = wanted.text.tokens, wanted.text.estimate, wanted.text.most
        told = (real, real) if exact else (guess, most)
        answer = self._ask(wanted, told)
        if isinstance(answer, Close) and told[0] < told[1]:
            told = (real, real) if counted_in_time else (most, most)
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
        before = self.order()
        self.call("grow", ticket, Tokens(request.produced * request.copies), self.now)
        client.shown, self.grown = request.produced, True
        self.take_turn(before, ticket)

    def count_all(self, name: str, *, in_time: bool) -> None:
        """Have the prompts counted that one tenant runs or waits with, and that are known by estimate."""
        for ticket, client in (*self.clients.items(), *self.waiting.items()):
            if client.wanted.name == name and client.told[0] < client.told[1] and not client.settled:
                counted = client.wanted.text.tokens if in_time else client.told[1]
                before = self.order()
                self.call("count", ticket, (Tokens(counted),), self.now)
                client.told, self.grown = (counted, counted), True
                self.take_turn(before, ticket)

    def lose_sight(self, ticket: int) -> None:
        before = self.order()
        self.call("unseen", ticket, self.now)
        self.clients[ticket].unseen, self.grown = True, True
        self.take_turn(before, ticket)

    def settle(self, ticket: int) -> None:
        client, request = self.clients[ticket], self.engine.running.get(ticket)
        if request is None:
            return
        before = self.order()
        cached = Tokens(0) if client.wanted.cold else None
        counts = Tokens(client.wanted.text.tokens), Tokens(request.produced * request.copies)
        self.call("settle", ticket, *counts, self.now, cached)
        client.shown, client.settled, self.grown = request.produced, True, True
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

    def take_turn(self, before: Order | None = None, grown: int | None = None) -> None:
        """As the callers do it: after each call that leaves the books restless, and then and now."""
        if not self.restless():
            return
        order, queue = self.order(), tuple(self.waiting)
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
                assert before is not None
                assert grown is not None
                self._check_own_growth(before, grown, ending)

    def _ask(self, wanted: Wanted, told: tuple[int, int], *, final: bool = False) -> Answer:
        before = self.charges()
        answer: Answer = self.call("ask", wanted.ask(*told, final=final), self.now)
        if isinstance(answer, Refusal | Close):
            assert self.charges() == before, "a refusal takes nothing"
            assert isinstance(answer, Close) or (answer.retry_after is not None) == answer.retryable
        elif isinstance(answer, Admitted):
            assert sum(self.charges().values()) == sum(before.values()) + answer.reserved
        return answer

    def _accept(self, answer: Admitted | Waiting, wanted: Wanted, told: tuple[int, int]) -> None:
        share = self.shares[wanted.name]
        client = Client(wanted, told, share.hard_blocks, self.now)
        self.waiting[answer.ticket] = client
        if isinstance(answer, Admitted):
            if self.enforced(wanted.name) and share.max_context_tokens is not None:
                longest = told[0] + self._limit(answer, client)
                assert longest <= share.max_context_tokens, "the engine goes no further than what was charged"
            self._admit(answer)
        else:
            self.met["waited"] += 1
        if self.enforced(wanted.name):
            assert self.charges()[wanted.name] <= share.hard_blocks
            most = share.max_concurrent_requests
            assert most is None or self.in_flight()[wanted.name] <= most

    def _admit(self, answer: Admitted) -> None:
        client = self.clients[answer.ticket] = self.waiting.pop(answer.ticket)
        wanted = client.wanted
        self.engine.submit(
            Running(answer.ticket, wanted.name, wanted.text, wanted.copies, self._limit(answer, client), wanted.cold)
        )

    def _limit(self, answer: Admitted, client: Client) -> int:
        """What the engine will let it produce: it knows its own context, and what the request says or was told to."""
        left = max(1, self.context - client.wanted.text.tokens)
        said = client.wanted.limit if answer.limit is None else answer.limit
        return left if said is None else min(said, left)

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

    def _check_the_order(self, queue: tuple[int, ...], admitted: list[int]) -> None:
        still = [ticket for ticket in queue if ticket in self.waiting]
        assert admitted == [ticket for ticket in queue if ticket in admitted], "in order of arrival"
        assert not still or not admitted or max(admitted) < min(still), "nobody is overtaken"

    def _check_own_growth(self, before: Order, grown: int, ending: Ending) -> None:
        name = self.clients[grown].wanted.name
        assert self.clients[ending.ticket].wanted.name == name, "never another tenant's"
        charge = self.books._roll.entries[grown].cost()
        work = tuple((ticket, charge if ticket == grown else held) for ticket, held in before[name])
        assert ending.ticket in over_soft({name: work}, self.softs()), "never a protected one"

    # -- what the books say

    def restless(self) -> bool:
        return self.books.restless

    def charges(self) -> dict[str, int]:
        return {each.id.removeprefix("inference/"): each.reserved for each in self.books.tenant_usage(self.now, 0.0)}

    def in_flight(self) -> dict[str, int]:
        return {each.id.removeprefix("inference/"): each.in_flight for each in self.books.tenant_usage(self.now, 0.0)}

    def enforced(self, name: str) -> bool:
        own = self.shares.get(name)
        pool_enforces = self.config is None or self.config.enforcement == "Enforce"
        return pool_enforces and (own is None or own.enforcement == "Enforce")

    def order(self) -> Order:
        accounts = self.books._roll.accounts.values()
        return {
            each.tenant.removeprefix("inference/"): tuple((ticket, entry.charge) for ticket, entry in each.live.items())
            for each in accounts
        }

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
        assert [(rank.charged, rank.waiting) for rank in roll.ranks.each] == [(0, 0)]


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
