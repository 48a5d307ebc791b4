"""Replicas that share a Lease, over a network and a time that behave badly: never two that write, and in the end one.

A small world in simulated time. Every replica has a clock of its own (any start, up to a tenth too fast or too slow),
stops now and then, and has a line to the API server that is good, slow, dead, or dead in one direction, for a while.
What was given up may arrive later. The Lease is changed only by whoever names its version, as the API server does it;
now and then somebody deletes it.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from kvquota_operator.leading import (
    NOBODY,
    Belief,
    Look,
    Make,
    Record,
    Rest,
    Timing,
    Write,
    failed,
    looked,
    next_step,
    resigned,
    wrote,
)

TIMING = Timing()
REQUEST_S = 2.5
TROUBLE_S = 200.0
LINES = ("good", "good", "good", "slow", "cut", "answers cut")
CALM_S = 60.0
"""Seconds in which one of them leads once the world behaves: what is still on its way (30 s), a lease, and a look."""


@dataclass
class Server:
    """The one Lease. A version is given once."""

    record: Record = field(default_factory=Record)
    versions: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def do(self, step: Look | Make | Write, me: str) -> Record | None:
        """None is a conflict."""
        match step:
            case Write(over):
                return self.write(over, me)
            case Make():
                return self.write(Record(), NOBODY)
        return self.record

    def write(self, over: Record, holder: str) -> Record | None:
        if self.record.version != over.version:
            return None
        terms = self.record.terms + (holder not in (NOBODY, over.holder))
        self.record = Record(str(next(self.versions)), holder, TIMING.lease_seconds, terms)
        return self.record


@dataclass
class Replica:
    belief: Belief
    offset: float
    rate: float
    asleep_until: float = 0.0
    line: str = "good"
    line_until: float = 0.0
    attempt: int = 0

    def clock(self, now: float) -> float:
        return self.offset + self.rate * now

    def real(self, own: float) -> float:
        return (own - self.offset) / self.rate

    def writes(self, now: float) -> bool:
        """Whether it would write at this moment, asleep or not."""
        return self.belief.may_write(self.clock(now))


class World:
    def __init__(self, chance: random.Random, replicas: int) -> None:
        self.chance = chance
        self.server = Server()
        self.now = 0.0
        self.replicas = [
            Replica(Belief(f"replica-{n}"), chance.uniform(-1e6, 1e6), chance.uniform(0.9, 1.1))
            for n in range(replicas)
        ]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        for replica in self.replicas:
            self.after(chance.uniform(0, 3), lambda replica=replica: self.step(replica))

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), what))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
            self.check()
        self.now = until

    def check(self) -> None:
        """The right to write begins with an event, so two of them would be seen at the later one's."""
        writing = [each.belief.me for each in self.replicas if each.writes(self.now)]
        assert len(writing) <= 1, f"at {self.now:.3f} s {writing} write"

    @property
    def troubled(self) -> bool:
        return self.now < TROUBLE_S

    def line(self, replica: Replica) -> str:
        """How the replica's line is now."""
        if not self.troubled:
            return "good"
        if self.now >= replica.line_until:
            replica.line, replica.line_until = self.chance.choice(LINES), self.now + self.chance.uniform(2, 25)
        return replica.line

    def delay(self, replica: Replica) -> float:
        """Seconds on the way: of a slow line sometimes more than a lease."""
        if self.line(replica) == "slow":
            return self.chance.choice([0.5, 2.0, 4.0, self.chance.uniform(0, 30)])
        return self.chance.uniform(0.001, 0.1)

    def maybe_sleep(self, replica: Replica) -> None:
        if self.troubled and self.chance.random() < 0.03:
            replica.asleep_until = self.now + self.chance.uniform(0, 25)

    def awake(self, replica: Replica, then: Callable[[], None]) -> None:
        """Now, or when the replica goes on: its clock has gone on meanwhile."""
        if replica.asleep_until > self.now:
            self.after(replica.asleep_until - self.now, then)
        else:
            then()

    def step(self, replica: Replica) -> None:
        self.maybe_sleep(replica)
        if self.troubled and self.chance.random() < 0.01:
            self.server.record = Record()
        self.awake(replica, lambda: self.act(replica))

    def act(self, replica: Replica) -> None:
        own = replica.clock(self.now)
        if self.troubled and self.chance.random() < 0.02:
            self.leave(replica)
        step = next_step(replica.belief, own, TIMING)
        if isinstance(step, Rest):
            assert step.until > own
            self.after(replica.real(step.until) - self.now + 1e-6, lambda: self.step(replica))
        else:
            self.ask(replica, step)

    def leave(self, replica: Replica) -> None:
        """A graceful end: it stops writing, then gives the Lease back; and another process starts in its place."""
        held, record = replica.writes(self.now), replica.belief.record
        replica.belief = resigned(replica.belief)
        if held and record is not None:
            self.after(self.delay(replica), lambda: self.server.write(record, NOBODY) and None)
        replica.belief = Belief(f"{replica.belief.me}'")
        replica.attempt += 1

    def ask(self, replica: Replica, step: Look | Make | Write) -> None:
        """One attempt: an answer in time, or the end of patience; what was sent arrives all the same."""
        replica.attempt += 1
        attempt, sent_at = replica.attempt, replica.clock(self.now)
        until = replica.belief.held_until
        patience = REQUEST_S if until is None or until <= sent_at else min(REQUEST_S, until - sent_at)

        def arrives() -> None:
            answer = self.server.do(step, me)
            if self.line(replica) not in ("cut", "answers cut"):
                self.after(self.delay(replica), lambda: self.awake(replica, lambda: answered(answer)))

        def answered(answer: Record | None) -> None:
            if replica.attempt != attempt:
                return
            replica.attempt += 1
            own = replica.clock(self.now)
            if answer is None:
                replica.belief = failed(replica.belief, own, TIMING)
            elif not isinstance(step, Write):
                replica.belief = looked(replica.belief, answer, own, TIMING)
            else:
                replica.belief = wrote(replica.belief, answer, sent_at, own, TIMING)
            self.step(replica)

        def given_up() -> None:
            if replica.attempt == attempt:
                replica.attempt += 1
                replica.belief = failed(replica.belief, replica.clock(self.now), TIMING)
                self.step(replica)

        me = replica.belief.me
        if self.line(replica) != "cut":
            self.after(self.delay(replica), arrives)
        self.maybe_sleep(replica)
        self.after(patience / replica.rate, lambda: self.awake(replica, given_up))


@given(seed=st.integers(0, 2**32), replicas=st.integers(2, 3))
def test_never_two_write_at_once_and_in_the_end_one_leads(seed: int, replicas: int) -> None:
    world = World(random.Random(seed), replicas)
    world.run(TROUBLE_S + CALM_S)
    leaders = [each for each in world.replicas if each.writes(world.now)]
    assert len(leaders) == 1
    world.run(world.now + 60)
    assert [each for each in world.replicas if each.writes(world.now)] == leaders
