"""One request between a client and the engine, from its admission to its release.

Invariants:

1. What was admitted is released exactly once, whatever ends the request: the engine's answer, its failure, the client,
   an eviction, the drain. All ways lead through `_close`.
2. It is released before the client's connection looks at its next request, so a client that waits for one answer before
   the next request never holds two.
3. Nothing is sent to the client before the first byte of the answer's body is here: until then an ending is a plain
   refusal, which clients retry.
4. A body that was begun is completed by the engine or by a final event that says why it ends here (streams only); all
   else is broken off, so that nobody takes a part for the whole.
5. The engine is not read while the client does not read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from kvquota_api.amounts import Tokens
from kvquota_sidecar.clock import Clock
from kvquota_sidecar.estimate.ratio import Ratios
from kvquota_sidecar.ledger.asking import Cause, Ending
from kvquota_sidecar.ledger.books import Books
from kvquota_sidecar.proxy.answers import passed_on
from kvquota_sidecar.proxy.engine_answer import AnswerHead
from kvquota_sidecar.proxy.engine_side import EngineCall, EngineFailure, EnginePool
from kvquota_sidecar.proxy.head import Headers
from kvquota_sidecar.proxy.metering import MAX_JSON_BYTES, StreamMeter, Usage, usage_of_json
from kvquota_sidecar.proxy.refusing import good_headers, refusal_answer
from kvquota_sidecar.proxy.routes import Route
from kvquota_sidecar.proxy.service import Client
from kvquota_sidecar.refusals import Code, Refusal, refuse
from kvquota_sidecar.refusals.room import Room
from kvquota_sidecar.refusals.wire import final_event
from kvquota_sidecar.telemetry.journal import Journal
from kvquota_sidecar.telemetry.tally import Outcome, Tally

# Tokens of output after which the books are told: half a block of the smallest usual size, so a charge is never more
# than one block late, and the books' part of the cost of a token is an eighth.
GROWTH_STEP: Final = 8
_CAUSES: Final = {
    Outcome.ANSWERED: Cause.FINISHED,
    Outcome.ENGINE_REFUSED: Cause.ENGINE_FAILED,
    Outcome.CLIENT_GONE: Cause.CLIENT_GONE,
    Outcome.ENGINE_FAILED: Cause.ENGINE_FAILED,
    Outcome.ENDED: Cause.ENDED,
    Outcome.DRAINED: Cause.DRAINED,
}


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be forwarded, and for whom. `tenant` and `ticket` are None where no quota applies.

    `prompt_bytes`: of all prompts, for learning their tokens; 0 where their tokens were given. `estimated`: tokens.
    `withholds_usage`: this program asked for the stream's usage, not the client.
    """

    request_id: str
    route: Route
    tenant: str | None = None
    ticket: int | None = None
    prompt_bytes: int = 0
    estimated: int = 0
    withholds_usage: bool = False


@dataclass(slots=True)
class Desk:
    """What all requests share."""

    books: Books
    ratios: Ratios
    pool: EnginePool
    tally: Tally
    journal: Journal
    clock: Clock
    silence_seconds: float
    health: Outcome = Outcome.ANSWERED  # of the last GET /health
    running: dict[str, Relay] = field(default_factory=dict)  # by request id
    tickets: dict[int, Relay] = field(default_factory=dict)

    def room(self, tenant: str | None) -> Room | None:
        """The room that a tenant has left; None where no quota applies."""
        return None if tenant is None else self.books.room(tenant, self.clock())

    def expire(self) -> None:
        """End the requests whose engine has been silent for too long."""
        now = self.clock()
        for relay in [each for each in self.running.values() if each.silent_until <= now]:
            relay.answer_broken(EngineFailure("Silent", f"nothing came within {self.silence_seconds:g} s"))

    def end(self, endings: tuple[Ending, ...]) -> None:
        """End the requests that the books gave up."""
        for ending in endings:
            relay = self.tickets.get(ending.ticket)
            if relay is not None:
                relay.end(ending.refusal, Outcome.ENDED)

    def end_all(self, refusal: Refusal, outcome: Outcome) -> None:
        """End every request."""
        for relay in tuple(self.running.values()):
            relay.end(refusal, outcome)


class Relay:
    """An `Exchange` to the client and a `Listener` to the engine."""

    def __init__(self, job: Job, client: Client, desk: Desk) -> None:
        self._job = job
        self._client = client
        self._desk = desk
        self._call: EngineCall
        self._head: AnswerHead | None = None
        self._meter: StreamMeter | None = None
        self._copy: list[bytes] = []  # of a body that is one JSON object, for its usage
        self._copied = 0
        self._begun = False
        self._closed = False
        self._told = Tokens(0)
        self._started_at = desk.clock()
        self.silent_until = math.inf

    def start(self, request: bytes) -> None:
        """Send the request to the engine; the answer goes to the client by itself."""
        self._desk.running[self._job.request_id] = self
        if self._job.ticket is not None:
            self._desk.tickets[self._job.ticket] = self
        self._listen()
        self._call = self._desk.pool.call(request, self)
        self._client.attach(self)

    # What the engine's side calls.

    def answer_head(self, head: AnswerHead) -> None:
        self._head = head
        self._client.let_go()
        self._listen()
        if head.status == 200 and head.is_stream():
            self._meter = StreamMeter(withholds_usage=self._job.withholds_usage)

    def answer_data(self, data: bytes) -> None:
        self._listen()
        if self._meter is None:
            self._keep_copy(data)
        else:
            data = self._meter.feed(data)
            self._grow(self._meter.produced)
        if data and not self._closed:
            self._begin()
            self._client.write(data)

    def answer_end(self) -> None:
        rest = b"" if self._meter is None else self._meter.rest()
        self._settle()
        if self._closed:  # what it turned out to hold was too much
            return
        self._close(Outcome.ANSWERED if self._is_good() else Outcome.ENGINE_REFUSED)
        self._begin()
        self._client.write(rest)
        self._client.end()

    def answer_broken(self, failure: EngineFailure) -> None:
        refusal = _failure_refusal(failure, self._desk.pool.address.authority.decode())
        self.end(refusal, Outcome.ENGINE_FAILED)

    # What the client's side calls.

    def client_gone(self) -> None:
        if not self._closed:
            self._call.cancel()
            self._close(Outcome.CLIENT_GONE)

    def client_full(self) -> None:
        self.silent_until = math.inf
        self._call.pause()

    def client_ready(self) -> None:
        self._listen()
        self._call.resume()

    # What the desk calls.

    def end(self, refusal: Refusal, outcome: Outcome) -> None:
        """End it here: the client gets `refusal`, as an answer or as a stream's final event."""
        if self._closed:
            return
        self._call.cancel()
        self._close(outcome, refusal)
        if not self._begun:
            room = self._desk.room(self._job.tenant)
            self._client.answer(refusal_answer(refusal, self._job.route.path, room))
            return
        if self._meter is not None:
            self._client.write(final_event(refusal, self._job.route.path))
        if self._meter is not None and outcome is not Outcome.ENGINE_FAILED:
            self._client.end()
        else:
            self._client.break_off()

    # The inside.

    def _listen(self) -> None:
        self.silent_until = self._desk.clock() + self._desk.silence_seconds

    def _grow(self, produced: Tokens, step: int = GROWTH_STEP) -> None:
        if self._job.ticket is not None and produced >= self._told + step:
            self._told = produced
            self._desk.end(self._desk.books.grow(self._job.ticket, produced, self._desk.clock()))

    def _settle(self) -> None:
        """Correct the books by what the engine counted, and learn from it."""
        usage = self._usage()
        if usage is None or usage.prompt is None or self._job.ticket is None or self._job.tenant is None:
            return
        if self._job.prompt_bytes:
            self._desk.ratios.learn(self._job.tenant, self._job.prompt_bytes, usage.prompt)
            self._desk.tally.underestimated_tokens += max(0, usage.prompt - self._job.estimated)
        produced = Tokens(max(self._told, usage.output or 0))
        self._desk.end(self._desk.books.settle(self._job.ticket, usage.prompt, produced, self._desk.clock()))

    def _usage(self) -> Usage | None:
        if self._meter is not None:
            return self._meter.usage
        return usage_of_json(b"".join(self._copy)) if self._copy and self._is_good() else None

    def _keep_copy(self, data: bytes) -> None:
        self._copied += len(data)
        if self._job.ticket is None or self._copied > MAX_JSON_BYTES:
            self._copy.clear()
        else:
            self._copy.append(data)

    def _begin(self) -> None:
        if self._begun or self._head is None:
            return
        self._begun = True
        length = self._head.length if self._meter is None else None
        self._client.begin(self._head.status, self._headers(self._head), length)

    def _headers(self, head: AnswerHead) -> Headers:
        passed = passed_on(head.headers)
        if not any(name == b"x-request-id" for name, _ in passed):
            passed += ((b"x-request-id", self._job.request_id.encode()),)
        return passed + good_headers(self._desk.room(self._job.tenant))

    def _is_good(self) -> bool:
        return self._head is not None and self._head.status == 200

    def _close(self, outcome: Outcome, refusal: Refusal | None = None) -> None:
        self._closed = True
        self.silent_until = math.inf
        if self._meter is not None:
            self._grow(self._meter.produced, step=1)
        del self._desk.running[self._job.request_id]
        if self._job.ticket is not None:
            del self._desk.tickets[self._job.ticket]
            self._desk.books.release(self._job.ticket, _CAUSES[outcome], self._desk.clock())
        self._desk.tally.requests[self._job.route.path, outcome] += 1
        if self._is_news(outcome):
            self._report(outcome, refusal)

    def _is_news(self, outcome: Outcome) -> bool:
        """Whether it is worth a log line; probes come every second, so only when they begin to say something else."""
        if self._job.route.purpose != "Health":
            return outcome is not Outcome.ANSWERED
        before, self._desk.health = self._desk.health, outcome
        return outcome is not before

    def _report(self, outcome: Outcome, refusal: Refusal | None) -> None:
        self._desk.journal.write(
            outcome,
            request=self._job.request_id,
            route=self._job.route.path,
            tenant=self._job.tenant,
            code=None if refusal is None else refusal.code,
            engineStatus=None if self._head is None else self._head.status,
            tokens=int(self._told),
            seconds=round(self._desk.clock() - self._started_at, 3),
        )


def _failure_refusal(failure: EngineFailure, authority: str) -> Refusal:
    if failure.kind == "Unreachable":
        return refuse(
            Code.ENGINE_ERROR,
            f"Nothing listens on {authority} ({failure.detail}): the engine is loading or has stopped. Retry later; "
            "if it lasts, check that the engine obeys --host and --port.",
        )
    if failure.kind == "Silent":
        return refuse(Code.ENGINE_TIMEOUT, f"The engine did not answer in time: {failure.detail}. Retry later.")
    return refuse(Code.ENGINE_ERROR, f"The engine broke its answer off: {failure.detail}. Retry later.")
