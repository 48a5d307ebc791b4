"""The books against a model engine that holds real blocks and frees late, under every interleaving of their calls."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis.stateful import initialize, invariant, precondition, rule

from bookkeeping import BLOCK, config
from kvquota_api.pod_config import Ladder, PodConfig, TenantShare
from kvquota_sidecar.estimate.outputs import FEWEST
from kvquota_sidecar.ledger.books import Admitted, Cause, Refusal
from ledger_clients import Client, Wanted
from ledger_desk import Desk
from ledger_engine import ModelEngine, Running, Text
from ledger_machines import (
    CONTEXT,
    HOW,
    MOST_RUN,
    MOST_WAIT,
    NAMES,
    OUTPUT,
    TERMS,
    TIMES,
    USABLE,
    Counting,
    Terms,
    explore,
    lists,
    quotas,
    texts,
    usual_texts,
)

LATE = st.floats(0, 3)
SELDOM = st.sampled_from([False, False, False, True])


class BooksMachine(Counting):
    """Endings are obeyed at once or later; every request is released once, at the latest in the teardown."""

    enforcement: st.SearchStrategy[str] = st.just("Enforce")
    pool_enforcement: st.SearchStrategy[str] = st.just("Enforce")
    sharing: st.SearchStrategy[bool] = st.booleans()

    def __init__(self) -> None:
        super().__init__()
        self.exempt: set[str] = set()  # tenants whose hard was in Shadow while they ran what they still run

    @initialize(data=st.data())
    def first_config(self, data: st.DataObject) -> None:
        self.shares_prefixes = data.draw(self.sharing, "sharing")
        self.batch = data.draw(st.sampled_from([None, 6 * BLOCK, 20 * BLOCK]), "batch")
        ranks = data.draw(st.sampled_from([1, 1, 2, 4]), "ranks")
        self.engine = ModelEngine(USABLE // ranks, ranks, 10**6 if self.batch is None else self.batch)
        self.desk = Desk(self.engine, CONTEXT)
        self.reconfigure(data)
        if data.draw(st.sampled_from([True, True, False]), "full"):
            self.desk.observe()
            self.crowd(list(NAMES), 4 * BLOCK, data.draw(TIMES, "times"), told=True)

    @rule(data=st.data(), now=SELDOM)
    def reconfigure(self, data: st.DataObject, now: bool = True) -> None:
        if not now:
            return
        shares = data.draw(quotas(self.enforcement), "shares")
        enforcement = data.draw(self.pool_enforcement, "enforcement")
        ladder = Ladder(
            eviction_wait_seconds=data.draw(st.sampled_from([2.0, 2.0, 5.0]), "wait"),
            min_dwell_seconds=data.draw(st.sampled_from([0.0, 10.0]), "dwell"),
        )
        self.desk.configure(self.new_config(shares, ladder=ladder, enforcement=enforcement))

    def new_config(self, shares: tuple[TenantShare, ...], **changes: Any) -> PodConfig:
        engine = self.engine
        usual = config(*shares, usable=engine.usable, max_model_len=CONTEXT, **changes)
        kv = msgspec.structs.replace(
            usual.kv, shares_prefixes=self.shares_prefixes, ranks=engine.ranks, batch_tokens=self.batch
        )
        return msgspec.structs.replace(usual, kv=kv)

    @rule(name=st.sampled_from(NAMES), text=texts, terms=TERMS)
    def ask(self, name: str, text: Text, terms: Terms) -> None:
        self.ask_with(name, (text,), terms)

    @rule(name=st.sampled_from(NAMES), listed=lists, terms=TERMS)
    def ask_with_a_list(self, name: str, listed: tuple[Text, ...], terms: Terms) -> None:
        self.ask_with(name, listed, terms)

    @rule(name=st.sampled_from(NAMES), listed=lists, how=st.sampled_from(HOW))
    def ask_to_pool(self, name: str, listed: tuple[Text, ...], how: str) -> None:
        self.ask_with(name, listed, Terms(None, 3, seen=False, how=how), pools=True)

    def ask_with(self, name: str, listed: tuple[Text, ...], terms: Terms, *, pools: bool = False) -> None:
        cold = not self.shares_prefixes or listed[0].tail % 8 == 7
        wanted = Wanted(name, listed, terms.copies, terms.limit, terms.seen, cold, pools)
        answer = self.desk.ask(wanted, exact=terms.how == "exact", counted_in_time=terms.how != "too late")
        if isinstance(answer, Admitted) and self.desk.enforced(name):
            self.check_what_it_needs(name)
            if not self.shares_prefixes:
                self.check_the_bounds(name)

    def check_the_bounds(self, name: str) -> None:
        """What was admitted fits hard also where all prompts that are not known are as long as they can be."""
        context = self.desk.shares[name].max_context_tokens or CONTEXT
        doubt = sum(each.doubt(context) for each in self.live(name) if not each.settled)
        assert self.desk.charges()[name] + doubt <= self.desk.shares[name].hard_blocks

    def check_what_it_needs(self, name: str) -> None:
        """When something is admitted, all that the tenant runs fits hard as it really is, however dense: the bounds of
        these prompts are true ones. (Who comes before the prefix cache can help him is not known to the books.)"""
        live = {
            ticket: each
            for ticket, each in (*self.desk.clients.items(), *self.desk.waiting.items())
            if each.wanted.name == name and not each.ended
        }
        if any(each.wanted.cold and self.shares_prefixes for each in live.values()):
            return
        written = [self.needs(ticket, each) for ticket, each in live.items() if not each.wanted.pools]
        pooled = sum(_pooled(each, self.batch) for each in live.values() if each.wanted.pools)
        assert len(frozenset[object]().union(*written)) + pooled <= self.desk.shares[name].hard_blocks

    def needs(self, ticket: int, client: Client) -> frozenset[object]:
        """The blocks of its whole prompts and of the outputs that the books were told of, by name."""
        wanted, runs = client.wanted, self.engine.running.get(ticket)
        limits = (0,) * len(wanted.texts) if runs is None else runs.limits
        whole = Running(ticket, wanted.name, wanted.texts, wanted.copies, limits, wanted.cold, rank=client.rank)
        return whole.needs(whole.tokens, client.shown)

    @rule(name=st.sampled_from(NAMES), text=usual_texts, limit=st.sampled_from([None, 1, BLOCK]))
    def ask_for_a_little(self, name: str, text: Text, limit: int | None) -> None:
        self.desk.ask(Wanted(name, (text,), 1, limit, cold=not self.shares_prefixes), exact=True)

    @rule(
        name=st.sampled_from(NAMES),
        letters=st.sampled_from([(0, 0), (0, 1, 0, 0), (1, 0, 1), (0, 0, 1, 1, 1)]),
        limit=st.sampled_from([None, BLOCK, 4 * BLOCK, 8 * BLOCK]),
        times=st.sampled_from([60, 60, 8]),
    )
    def flood(self, name: str, letters: tuple[int, ...], limit: int | None, times: int) -> None:
        """As much as the tenant gets: what it may claim, then what it may borrow."""
        for tail in range(times):
            answer = self.desk.ask(
                Wanted(name, (Text(letters, tail),), 1, limit, cold=not self.shares_prefixes), exact=True
            )
            if isinstance(answer, Refusal) or len(self.desk.waiting) > MOST_WAIT or len(self.desk.clients) > MOST_RUN:
                return

    @rule(names=st.permutations(NAMES), limit=OUTPUT, times=TIMES, told=st.booleans())
    def crowd(self, names: list[str], limit: int, times: tuple[int, ...], told: bool) -> None:
        """One after the other takes what it gets: the first ones borrow, and the last ones claim what is theirs."""
        for name, most in zip(names, times, strict=True):
            self.flood(name, (0, 1, 0), limit, most)
            if told:
                self.engine.prefill(CONTEXT, self.desk.now)
                self.all_produce(1)
                self.desk.observe()

    @rule(name=st.sampled_from(NAMES), times=st.integers(1, FEWEST + 5))
    def answer_shortly(self, name: str, times: int) -> None:
        """So that the next requests are promised little, and grow past it."""
        for _ in range(times):
            answer = self.desk.ask(Wanted(name, (Text((), 16),), 1, 2, cold=True), exact=True)
            if isinstance(answer, Admitted) and answer.ticket in self.desk.clients:
                self.engine.prefill(CONTEXT, self.desk.now)
                self.produce_and_tell(answer.ticket, 1)
                self.desk.release(answer.ticket, Cause.FINISHED)

    @rule(name=st.sampled_from(NAMES), together=st.integers(1, 8), each=st.integers(1, 20))
    def outgrow(self, name: str, together: int, each: int) -> None:
        """Several requests of which little was expected, and which all become long."""
        self.answer_shortly(name, FEWEST)
        known = set(self.desk.clients)
        for _ in range(together):
            self.desk.ask(Wanted(name, (Text((0,), 0),), 1, 20 * BLOCK, cold=not self.shares_prefixes), exact=True)
        self.engine.prefill(CONTEXT, self.desk.now)
        for ticket in set(self.desk.clients) - known:
            self.produce_and_tell(ticket, each * BLOCK)

    @rule(tokens=st.sampled_from([16, 100, CONTEXT]))
    def prefill(self, tokens: int) -> None:
        self.engine.prefill(tokens, self.desk.now)

    @precondition(lambda self: self.desk.clients)
    @rule(
        data=st.data(),
        tokens=st.sampled_from([1, BLOCK, 5 * BLOCK, 30 * BLOCK]),
        told=st.sampled_from([True, True, False]),
    )
    def produce(self, data: st.DataObject, tokens: int, told: bool) -> None:
        ticket = self.any_ticket(data)
        if told:
            self.produce_and_tell(ticket, tokens)
        else:
            self.produce_unseen(ticket, tokens)

    @rule(tokens=st.sampled_from([1, BLOCK]))
    def all_produce(self, tokens: int) -> None:
        for ticket in tuple(self.desk.clients):
            self.produce_and_tell(ticket, tokens)

    def produce_unseen(self, ticket: int, tokens: int) -> None:
        if ticket in self.engine.running:
            self.engine.produce(self.engine.running[ticket], tokens, self.desk.now)

    def produce_and_tell(self, ticket: int, tokens: int) -> None:
        self.produce_unseen(ticket, tokens)
        if ticket in self.desk.clients:
            self.desk.grow(ticket)

    @precondition(lambda self: self.desk.clients)
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        self.desk.call("sent", self.any_ticket(data))

    @precondition(lambda self: self.desk.clients)
    @rule(data=st.data())
    def lose_sight(self, data: st.DataObject) -> None:
        """Its client has gone, and the engine goes on."""
        self.desk.lose_sight(self.any_ticket(data))

    @precondition(lambda self: self.desk.clients)
    @rule(data=st.data(), late=LATE, settled=st.booleans())
    def finish(self, data: st.DataObject, late: float, settled: bool) -> None:
        ticket = self.any_ticket(data)
        if settled:
            self.desk.settle(ticket)
        self.desk.release(ticket, Cause.FINISHED, late)

    @precondition(lambda self: self.desk.clients)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        self.desk.settle(self.any_ticket(data))

    @precondition(lambda self: self.desk.clients or self.desk.waiting)
    @rule(data=st.data(), late=LATE, cause=st.sampled_from([Cause.CLIENT_GONE, Cause.DRAINED, Cause.ENGINE_FAILED]))
    def abort(self, data: st.DataObject, late: float, cause: Cause) -> None:
        tickets = sorted({**self.desk.clients, **self.desk.waiting})
        self.desk.release(data.draw(st.sampled_from(tickets), "ticket"), cause, late)

    def any_ticket(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.desk.clients)), "ticket")

    @rule(late=LATE)
    def end_the_victims(self, late: float) -> None:
        for ticket in [ticket for ticket, each in self.desk.clients.items() if each.ended]:
            self.desk.release(ticket, Cause.ENDED, late)

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.5, 1.0, 5.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.desk.now += seconds

    @rule()
    def tick(self) -> None:
        before = self.desk.charges()
        turn = self.desk.call("turn", self.desk.now) if not self.desk.waiting else None
        if turn is None:
            self.desk.observe()
        else:
            assert (turn.admitted, turn.missed, turn.endings, self.desk.charges()) == ((), (), (), before)

    @rule(
        used=st.sampled_from([True, True, True, False]),
        waiting=st.booleans(),
        apart=st.sampled_from([True, True, False]),
    )
    def observe(self, used: bool, waiting: bool, apart: bool) -> None:
        self.desk.observe(used=used, waiting=waiting, apart=apart)

    @rule(now=SELDOM)
    def restart_the_engine(self, now: bool) -> None:
        if not now:
            return
        self.engine.restart()
        waiting = dict(self.desk.waiting)
        self.desk.observe()
        assert not waiting.keys() - self.desk.waiting.keys() - self.desk.clients.keys() or self.desk.missed
        self.desk.now += 0.01
        for ticket in tuple(self.desk.clients):
            self.desk.release(ticket, Cause.ENGINE_FAILED)

    def live(self, name: str) -> list[Client]:
        everybody = (*self.desk.clients.values(), *self.desk.waiting.values())
        return [each for each in everybody if each.wanted.name == name and not each.ended]

    @invariant()
    def the_sums_are_right(self) -> None:
        type(self).steps += 1
        self.desk.books.check_integrity()
        self.desk.check_reports()
        if not self.shares_prefixes:
            self.desk.check_each_charge(self.batch)
        pool = self.desk.call("pool_usage", self.desk.now)
        if pool is not None:
            assert pool.reserved == sum(self.desk.charges().values())
            assert pool.free <= pool.usable - pool.reserved - pool.unattributed
            assert pool.waiting == len(self.desk.waiting)
            assert self.desk.books.someone_waits == bool(self.desk.waiting)

    @invariant()
    def no_charge_passes_hard(self) -> None:
        for name in NAMES:
            live = self.live(name)
            own = self.desk.shares.get(name)
            bound = max([0 if own is None else own.hard_blocks, *(each.hard for each in live)])
            if not self.desk.enforced(name):
                self.exempt.add(name)
            elif not live:
                self.exempt.discard(name)
            assert name in self.exempt or self.desk.charges().get(name, 0) <= bound

    @invariant()
    def what_a_tenant_really_holds_passes_its_charge_by_the_error_of_the_estimate_only(self) -> None:
        charges = self.desk.charges()
        held: dict[str, set[object]] = {name: set() for name in NAMES}
        errors = dict.fromkeys(NAMES, 0)
        for ticket, client in (*self.desk.clients.items(), *self.desk.waiting.items()):
            if not client.ended:
                request = self.engine.running.get(ticket)
                held[client.wanted.name].update(() if request is None else request.held)
                produced = 0 if request is None else request.produced
                errors[client.wanted.name] += client.error(produced, sharing=self.shares_prefixes)
        assert all(len(held[name]) <= charges.get(name, 0) + errors[name] for name in NAMES)

    def teardown(self) -> None:
        desk = self.desk
        for ticket in (*tuple(desk.clients), *tuple(desk.waiting)):
            if ticket in desk.clients or ticket in desk.waiting:
                desk.release(ticket, Cause.CLIENT_GONE)
        desk.check_nothing_is_left()
        desk.now += 10
        desk.observe()
        pool = desk.call("pool_usage", desk.now)
        assert pool is None or (pool.free, pool.unattributed) == (USABLE, 0)
        assert [self.engine.used(rank, desk.now) for rank in range(self.engine.ranks)] == [0] * self.engine.ranks
        desk.play_again()
        type(self).met += desk.met


def _pooled(client: Client, batch: int | None) -> int:
    """Blocks of texts that are done batch by batch, as they really are."""
    real = Client(client.wanted, client.wanted.real, client.hard, client.since, client.rank)
    return real.least((0,) * len(real.told), batch)


class ShadowMachine(BooksMachine):
    """The same, with tenants and pools that come and go between Enforce and Shadow."""

    enforcement = st.sampled_from(["Enforce", "Shadow"])
    pool_enforcement = st.sampled_from(["Enforce", "Enforce", "Shadow"])


class StreamedMachine(BooksMachine):
    """Everything known exactly and nothing shared: then what is promised is never promised twice."""

    sharing = st.just(False)

    @rule(name=st.sampled_from(NAMES), text=texts, limit=st.integers(1, 20 * BLOCK))
    def nothing_is_promised_twice(self, name: str, text: Text, limit: int) -> None:
        """Admitted on a fresh gauge: what the engine holds, and what it will hold for others, leaves room for it."""
        for ticket in tuple(self.desk.clients):
            self.desk.settle(ticket)
        self.desk.observe(waiting=False)
        answer = self.desk.ask(Wanted(name, (text,), 1, limit, cold=True), exact=True)
        if not isinstance(answer, Admitted) or answer.ticket not in self.desk.clients:
            return
        rank = self.desk.clients[answer.ticket].rank
        assert self.engine.used(rank, self.desk.now) + self.promised(rank) <= self.engine.usable
        self.desk.release(answer.ticket, Cause.CLIENT_GONE)

    def promised(self, rank: int) -> int:
        """Blocks that the engine will hold beside those that it holds now: what is charged to those that run and not
        held. Of one that has shown nothing the books cannot know what it holds, unless the engine has said that
        nothing waits in it."""
        promised = 0
        for ticket, client in self.desk.clients.items():
            if client.rank == rank and not client.ended:
                entry, held = self.desk.books._roll.entries[ticket], len(self.engine.running[ticket].held)
                promised += entry.charge - held
        return promised


@pytest.mark.parametrize("machine", [BooksMachine, ShadowMachine, StreamedMachine])
def test_books(machine: type[BooksMachine]) -> None:
    explore(machine)
