"""The books against a model engine that holds real blocks and frees late, under every interleaving of its calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bookkeeping import BLOCK, PERIOD, config, sample, share
from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.outputs import FEWEST
from kvquota_sidecar.ledger.asking import Growth
from kvquota_sidecar.ledger.books import Admitted, Ask, Books, Cause, Ending, LedgerError, Refusal

NAMES = ("search", "batch", "night")
USABLE = 200
CONTEXT = 64 * BLOCK


def blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)


@dataclass
class Running:
    """One request as it really is: `prompt` true tokens beside the estimate, `produced` of each sequence."""

    name: str
    prompt: int
    estimate: int
    copies: int
    limit: int
    hard: int
    promised: int
    growth: Growth
    filled: bool = False  # the engine has taken it up
    produced: int = 0
    seen: int = 0
    ended: bool = False

    def held(self) -> int:
        """Blocks that the engine holds for it."""
        if not self.filled:
            return 0
        shared = self.prompt // BLOCK
        return shared + self.copies * (blocks(self.prompt + self.produced) - shared)


@dataclass
class Engine:
    """`freeing`: (when, blocks) that it will have freed."""

    running: dict[int, Running] = field(default_factory=dict)
    freeing: list[tuple[float, int]] = field(default_factory=list)
    started: float = 1.0

    def used(self, now: float) -> int:
        return sum(each.held() for each in self.running.values()) + sum(n for at, n in self.freeing if at > now)

    def drop(self, ticket: int, at: float) -> None:
        self.freeing.append((at, self.running.pop(ticket).held()))


@st.composite
def quotas(draw: st.DrawFn, enforcement: st.SearchStrategy[str]) -> tuple[Any, ...]:
    def one(name: str) -> Any:
        soft = draw(st.integers(0, 60))
        return share(
            name,
            priority=draw(st.sampled_from([0, 10, 100])),
            soft_blocks=soft,
            hard_blocks=soft + draw(st.integers(0, 60)),
            max_concurrent_requests=draw(st.sampled_from([None, 4, 12])),
            max_context_tokens=draw(st.sampled_from([None, 40 * BLOCK])),
            enforcement=draw(enforcement),
        )

    return tuple(one(name) for name in draw(st.lists(st.sampled_from(NAMES), min_size=2, unique=True)))


class BooksMachine(RuleBasedStateMachine):
    """Endings are obeyed at once or later; every request is released once, at the latest in the teardown."""

    enforcement: st.SearchStrategy[str] = st.just("Enforce")

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.books = Books(jitter=lambda: 0.5, sampling_period=PERIOD)
        self.engine = Engine()
        self.shares: dict[str, Any] = {}
        self.unheeded: list[int] = []
        self.exempt: set[str] = set()  # tenants whose hard was in Shadow while they ran what they still run

    @initialize(data=st.data())
    def first_config(self, data: st.DataObject) -> None:
        self.reconfigure(data)

    @rule(data=st.data())
    def reconfigure(self, data: st.DataObject) -> None:
        shares = data.draw(quotas(self.enforcement), "shares")
        before = set(self.engine.running)
        self.books.configure(config(*shares, usable=USABLE, max_model_len=CONTEXT), self.now)
        self.shares = {each.quota: each for each in shares}
        assert set(self.engine.running) == before

    @rule(
        name=st.sampled_from(NAMES),
        prompt=st.integers(1, 20 * BLOCK),
        error=st.sampled_from([0, 0, 0, -20, 20]),
        limit=st.sampled_from([None, 0, 1, BLOCK, 10 * BLOCK, 30 * BLOCK]),
        copies=st.sampled_from([1, 1, 1, 2, 4]),
        growth=st.sampled_from(["Seen", "Unseen"]),
    )
    def ask(self, name: str, prompt: int, error: int, limit: int | None, copies: int, growth: Growth = "Seen") -> None:
        estimate = max(1, prompt - error)
        wanted = Ask(f"inference/{name}", (Tokens(estimate),), copies, None if limit is None else Tokens(limit), growth)
        before = self.reserved()
        answer = self.books.ask(wanted, self.now)
        if isinstance(answer, Refusal):
            assert self.reserved() == before, "a refusal takes nothing"
            assert (answer.retry_after is not None) == answer.retryable
            return
        self.admitted(answer, wanted, prompt, sum(before.values()))

    def admitted(self, answer: Admitted, wanted: Ask, prompt: int, before: int) -> None:
        name, estimate, limit = wanted.tenant.removeprefix("inference/"), wanted.prompts[0], wanted.output_limit
        own = self.shares[name]
        context = min(CONTEXT, own.max_context_tokens or CONTEXT) if own.enforcement == "Enforce" else CONTEXT
        most = max(1, context - estimate) if limit is None else limit
        self.engine.running[answer.ticket] = Running(
            name, prompt, estimate, wanted.copies, most, own.hard_blocks, answer.reserved, wanted.growth
        )
        assert sum(self.reserved().values()) == before + answer.reserved
        if own.enforcement == "Enforce":
            assert self.reserved()[f"inference/{name}"] <= own.hard_blocks
            assert own.max_concurrent_requests is None or self.in_flight(name) <= own.max_concurrent_requests

    @rule(name=st.sampled_from(NAMES), times=st.integers(1, FEWEST + 5))
    def answer_shortly(self, name: str, times: int) -> None:
        """So that the next requests are promised little, and grow past it."""
        for _ in range(times):
            answer = self.books.ask(Ask(f"inference/{name}", (Tokens(1),), 1, Tokens(1)), self.now)
            if isinstance(answer, Admitted):
                self.obey(self.books.grow(answer.ticket, Tokens(1), self.now))
                self.books.release(answer.ticket, Cause.FINISHED, self.now)

    @rule(name=st.sampled_from(NAMES), together=st.integers(1, 8), each=st.integers(1, 20))
    def outgrow(self, name: str, together: int, each: int) -> None:
        """Several requests of which little was expected, and which all become long."""
        self.answer_shortly(name, FEWEST)
        known = set(self.engine.running)
        for _ in range(together):
            self.ask(name, 2 * BLOCK, 0, 20 * BLOCK, 1)
        for ticket in set(self.engine.running) - known:
            self.grow(ticket, each * BLOCK)

    @precondition(lambda self: self.engine.running)
    @rule(
        data=st.data(),
        tokens=st.sampled_from([1, BLOCK, 5 * BLOCK, 30 * BLOCK]),
        told=st.sampled_from([True, True, False]),
    )
    def produce(self, data: st.DataObject, tokens: int, told: bool) -> None:
        ticket = self.any_ticket(data)
        if told:
            self.grow(ticket, tokens)
        else:
            self.produce_unseen(self.engine.running[ticket], tokens)

    def produce_unseen(self, request: Running, tokens: int) -> None:
        request.filled = True
        request.produced = min(request.limit, request.produced + tokens)

    def grow(self, ticket: int, tokens: int) -> None:
        request = self.engine.running[ticket]
        self.produce_unseen(request, tokens)
        request.seen = request.produced
        self.obey(self.books.grow(ticket, Tokens(request.produced * request.copies), self.now))

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data())
    def take_up(self, data: st.DataObject) -> None:
        self.engine.running[self.any_ticket(data)].filled = True

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data(), late=st.floats(0, 3), settled=st.booleans())
    def finish(self, data: st.DataObject, late: float, settled: bool) -> None:
        ticket = self.any_ticket(data)
        request = self.engine.running[ticket]
        if settled:
            counts = Tokens(request.prompt), Tokens(request.produced * request.copies)
            self.obey(self.books.settle(ticket, *counts, self.now))
        self.release(ticket, Cause.FINISHED, late)

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data(), late=st.floats(0, 3), cause=st.sampled_from([Cause.CLIENT_GONE, Cause.DRAINED]))
    def abort(self, data: st.DataObject, late: float, cause: Cause) -> None:
        self.release(self.any_ticket(data), cause, late)

    def any_ticket(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.engine.running)), "ticket")

    def release(self, ticket: int, cause: Cause, late: float) -> None:
        self.books.release(ticket, cause, self.now)
        self.engine.drop(ticket, self.now + late)
        self.unheeded = [each for each in self.unheeded if each != ticket]
        with pytest.raises(LedgerError):
            self.books.release(ticket, cause, self.now)

    def obey(self, endings: tuple[Ending, ...]) -> None:
        for ending in endings:
            request = self.engine.running[ending.ticket]
            assert not request.ended, "nobody is ended twice"
            assert self.shares.get(request.name) is None or self.shares[request.name].enforcement == "Enforce"
            request.ended = True
            self.unheeded.append(ending.ticket)

    @rule(late=st.floats(0, 3))
    def end_the_victims(self, late: float) -> None:
        for ticket in list(self.unheeded):
            self.release(ticket, Cause.ENDED, late)

    @rule(seconds=st.floats(0.01, 5))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(said=st.booleans(), waiting=st.sampled_from([0, 0, 1, None]))
    def observe(self, said: bool, waiting: int | None) -> None:
        queue = sum(not each.filled for each in self.engine.running.values())
        used = self.engine.used(self.now) if said else None
        shown = waiting if waiting is None else queue
        self.books.observe(sample(used=used, waiting=shown, started=self.engine.started), self.now)

    @rule()
    def restart_the_engine(self) -> None:
        self.engine.started += 1
        self.engine.freeing = []
        for request in self.engine.running.values():
            request.filled = False
        self.books.observe(sample(used=0, waiting=0, started=self.engine.started), self.now)
        self.now += 0.01
        for ticket in list(self.engine.running):
            self.release(ticket, Cause.ENGINE_FAILED, 0)

    def reserved(self) -> dict[str, int]:
        return {each.id: each.reserved for each in self.books.tenant_usage(self.now, 0.0)}

    def in_flight(self, name: str) -> int:
        return {each.id: each.in_flight for each in self.books.tenant_usage(self.now, 0.0)}[f"inference/{name}"]

    def live(self, name: str) -> list[Running]:
        return [each for each in self.engine.running.values() if each.name == name and not each.ended]

    @invariant()
    def the_sums_are_right(self) -> None:
        self.books.check_integrity()
        pool = self.books.pool_usage(self.now)
        if pool is not None:
            assert pool.reserved == sum(self.reserved().values())
            assert pool.free <= pool.usable - pool.reserved - pool.unattributed

    @invariant()
    def no_charge_passes_hard(self) -> None:
        for name in NAMES:
            hard = self.shares[name].hard_blocks if name in self.shares else 0
            bound = max([hard, *(each.hard for each in self.live(name))])
            if name in self.shares and self.shares[name].enforcement == "Shadow":
                self.exempt.add(name)
            elif not self.live(name):
                self.exempt.discard(name)
            assert name in self.exempt or self.reserved().get(f"inference/{name}", 0) <= bound

    @invariant()
    def what_a_tenant_really_holds_passes_its_charge_by_the_error_of_the_estimate_only(self) -> None:
        for name in NAMES:
            error = sum(
                (blocks(max(0, each.prompt - each.estimate)) + self.untold(each) + 1) * each.copies
                for each in self.live(name)
            )
            held = sum(each.held() for each in self.live(name))
            assert held <= self.reserved().get(f"inference/{name}", 0) + error

    def untold(self, request: Running) -> int:
        """Blocks that the books cannot know of; where nothing would be told they have reserved all there may be."""
        return blocks(request.produced - request.seen) if request.growth == "Seen" else 0

    def teardown(self) -> None:
        for ticket in list(self.engine.running):
            self.release(ticket, Cause.CLIENT_GONE, 0)
        self.books.check_integrity()
        assert set(self.reserved().values()) <= {0}
        assert {each.in_flight for each in self.books.tenant_usage(self.now, 0.0)} <= {0}
        self.now += 10
        self.books.observe(sample(used=0, started=self.engine.started), self.now)
        pool = self.books.pool_usage(self.now)
        assert pool is None or (pool.free, pool.unattributed) == (USABLE, 0)


class ShadowMachine(BooksMachine):
    """The same, with tenants that come and go between Enforce and Shadow."""

    enforcement = st.sampled_from(["Enforce", "Shadow"])


class StreamedMachine(BooksMachine):
    """Everything streamed and estimated exactly: then what is promised is never promised twice."""

    @rule(name=st.sampled_from(NAMES), prompt=st.integers(1, 20 * BLOCK), limit=st.integers(1, 20 * BLOCK))
    def nothing_is_promised_twice(self, name: str, prompt: int, limit: int) -> None:
        """Admitted on a fresh gauge: what the engine holds, and what it will hold for others, leaves room for it."""
        for ticket, each in self.engine.running.items():
            exact = Tokens(each.prompt), Tokens(each.produced * each.copies)
            self.obey(self.books.settle(ticket, *exact, self.now))
            each.estimate, each.seen = each.prompt, each.produced
        self.books.observe(sample(used=self.engine.used(self.now), waiting=1, started=self.engine.started), self.now)
        answer = self.books.ask(Ask(f"inference/{name}", (Tokens(prompt),), 1, Tokens(limit)), self.now)
        if isinstance(answer, Refusal):
            return
        promised = sum(self.reserved().values())
        unfilled = promised - sum(each.held() for each in self.engine.running.values() if each.seen and not each.ended)
        assert self.engine.used(self.now) + unfilled <= USABLE + self.slack()
        self.books.release(answer.ticket, Cause.CLIENT_GONE, self.now)

    def slack(self) -> int:
        """What has started and shows nothing may be filled by what the gauge shows, up to its charge."""
        return sum(
            (blocks(each.prompt + each.limit)) * each.copies
            for each in self.engine.running.values()
            if not each.seen and not each.ended
        )


BOUNDED = settings(max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
for machine in (BooksMachine, ShadowMachine, StreamedMachine):
    machine.TestCase.settings = BOUNDED

TestBooks = BooksMachine.TestCase
TestShadow = ShadowMachine.TestCase
TestStreamed = StreamedMachine.TestCase
