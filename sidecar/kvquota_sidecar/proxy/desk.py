"""What all requests share, and who does what the books say.

Invariants:

1. What holds something in the books or waits for it stands in `running`, `waiting` or `counting` until it has let go.
2. The books are asked what is to be done (`turn`) after whatever may change it. A turn is done to its end, each part of
   it whatever becomes of the others, before the next one is asked for.
3. What is done for one request never runs inside another one's: an answer that ends here may be followed at once by the
   next request of its connection, which finds the turn in progress and leaves its own to it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, Protocol

from kvquota_sidecar.clock import Clock
from kvquota_sidecar.estimate.pace import Paces
from kvquota_sidecar.estimate.ratio import Ratios
from kvquota_sidecar.ledger.asking import Admitted, Ending, Turn
from kvquota_sidecar.ledger.books import Books
from kvquota_sidecar.proxy.answers import Answer
from kvquota_sidecar.proxy.blamed import blamed
from kvquota_sidecar.proxy.counting import Tokenizer
from kvquota_sidecar.proxy.doubting import Doubts
from kvquota_sidecar.proxy.engine_side import EnginePool
from kvquota_sidecar.proxy.head import Head
from kvquota_sidecar.proxy.refusing import refusal_answer
from kvquota_sidecar.proxy.request_ids import Name, name_of
from kvquota_sidecar.proxy.routes import PATHS
from kvquota_sidecar.refusals import Code, Refusal
from kvquota_sidecar.refusals.room import Room
from kvquota_sidecar.telemetry.journal import Journal
from kvquota_sidecar.telemetry.tally import Outcome, Tally

# Seconds for which a client may not read before its output counts as unseen: a slow reader catches up within less, and
# an engine fills a few blocks in them.
UNREAD_SECONDS: Final = 1.0


class Work(Protocol):
    """A request that is with the engine."""

    def look(self, now: float) -> None:
        """See whether its engine or its client has kept it waiting for too long."""

    def end(self, refusal: Refusal, outcome: Outcome) -> None:
        """End it: the client gets `refusal`."""


class Counted(Protocol):
    """A request whose tokens are being counted."""

    @property
    def tenant(self) -> str:
        """Whose it is."""

    def end(self, refusal: Refusal) -> None:
        """End it: the client gets `refusal`."""


class Applicant(Protocol):
    """A request that waits for room."""

    def admitted(self, admitted: Admitted) -> None:
        """There is room for it now."""

    def missed(self, refusal: Refusal) -> None:
        """There will be none. It is out of the books already."""

    def end(self, refusal: Refusal) -> None:
        """End it: the client gets `refusal`."""


@dataclass(slots=True)
class Desk:
    """`running`: all that are with the engine; `tickets`: those of them that hold something, by ticket. `waiting`: for
    room, by ticket. `counting`: for tokens that are being counted. `doubts`: in what was admitted by an estimate.
    `paces`: tokens that a frame stands for. `new_id`: of a request. `silence_seconds`: how long an engine may say
    nothing.
    """

    books: Books
    ratios: Ratios
    pool: EnginePool
    tokenizer: Tokenizer
    tally: Tally
    journal: Journal
    clock: Clock
    new_id: Callable[[], str]
    silence_seconds: float
    health: Outcome = Outcome.ANSWERED  # of the last GET /health
    running: set[Work] = field(default_factory=set)
    tickets: dict[int, Work] = field(default_factory=dict)
    waiting: dict[int, Applicant] = field(default_factory=dict)
    counting: set[Counted] = field(default_factory=set)
    doubts: Doubts = field(init=False)
    paces: Paces = field(default_factory=Paces)
    _turning: bool = False

    def __post_init__(self) -> None:
        self.doubts = Doubts(
            self.books, self.ratios, self.tokenizer, tally=self.tally, clock=self.clock, turn=self.turn
        )

    @property
    def at_work(self) -> int:
        """How many requests are not over."""
        return len(self.running) + len(self.waiting) + len(self.counting)

    def room(self, tenant: str | None) -> Room | None:
        """The room that a tenant has left; None where no quota applies."""
        return None if tenant is None else self.books.room(tenant, self.clock())

    def name(self, head: Head | None) -> Name:
        """A new name for the request with that head."""
        return name_of(head, self.new_id())

    def refuse(self, refusal: Refusal, name: Name, path: str, tenant: str | None) -> Answer:
        """Count and log a refusal; the answer that says it. `path`: of the route, or whatever was asked for."""
        route, code = path if path in PATHS else "other", refusal.code
        self.tally.requests[route, code] += 1
        if self.journal.may_write():
            self.journal.write(
                "refused",
                request=name.own,
                clientRequest=name.given,
                route=route,
                tenant=tenant,
                code=code,
                param=blamed(refusal.param),
                status=refusal.status,
            )
        return refusal_answer(refusal, path, name, self.room(tenant))

    def turn(self) -> None:
        """Do what the books have to say without time passing."""
        if self.books.restless and not self._turning:
            self._do(self.books.turn(self.clock()))

    def tick(self) -> None:
        """Do what time brings; to be called a few times a second."""
        now = self.clock()
        for work in tuple(self.running):
            work.look(now)
        self._do(self.books.turn(now))

    def end_all(self, refusal: Refusal, outcome: Outcome) -> None:
        """End every request; nobody is admitted in between."""
        self._turning = True
        try:
            with ExitStack() as last_first:
                for work in self.running:
                    last_first.callback(work.end, refusal, outcome)
                for applicant in self.waiting.values():
                    last_first.callback(applicant.end, refusal)
                for counted in self.counting:
                    last_first.callback(counted.end, refusal)
        finally:
            self._turning = False

    def _do(self, turn: Turn) -> None:
        self._turning = True
        try:
            while self._does_something(turn) and self.books.restless:
                turn = self.books.turn(self.clock())
        finally:
            self._turning = False

    def _does_something(self, turn: Turn) -> bool:
        with ExitStack() as last_first:
            for admitted in reversed(turn.admitted):
                last_first.callback(self._admit, admitted)
            for ending in reversed(turn.missed):
                last_first.callback(self._miss, ending)
            for ending in reversed(turn.endings):
                last_first.callback(self._end, ending)
        return bool(turn.admitted or turn.missed or turn.endings)

    def _admit(self, admitted: Admitted) -> None:
        self.waiting[admitted.ticket].admitted(admitted)

    def _miss(self, ending: Ending) -> None:
        self.waiting[ending.ticket].missed(ending.refusal)

    def _end(self, ending: Ending) -> None:
        evicted = ending.refusal.code is Code.KV_EVICTED
        self.tickets[ending.ticket].end(ending.refusal, Outcome.EVICTED if evicted else Outcome.ENDED)
