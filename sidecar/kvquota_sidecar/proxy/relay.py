"""One request between a client and the engine, from its admission to its release.

Invariants:

1. What was admitted is released exactly once, whatever ends the request: the engine's answer, its failure, the client,
   an eviction, the drain, a fault of this program. All ways lead through `_close`.
2. It is released before the client's connection looks at its next request, so a client that waits for one answer before
   the next request never holds two.
3. Nothing is sent to the client before the first byte of the answer's body is here: until then an ending is a plain
   refusal, which clients retry.
4. A body that was begun is completed by the engine or by a final event that says why it ends here (streams only); all
   else is broken off, so that nobody takes a part for the whole. Not complete are a stream without the mark that its
   engine ends it with and one that the engine gave up; what ends badly by its word is no success.
5. The engine is not read while the client does not read. It goes on all the same, unseen: so when that lasts, the books
   are told, and charge what the answer may become.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Concatenate, Final, ParamSpec

from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.shape import PromptSize
from kvquota_sidecar.ledger.asking import Cause
from kvquota_sidecar.proxy.desk import UNREAD_SECONDS, Desk
from kvquota_sidecar.proxy.engine_answer import AnswerHead
from kvquota_sidecar.proxy.engine_side import EngineCall, EngineFailure
from kvquota_sidecar.proxy.metering import MAX_JSON_BYTES, PlainAnswer, StreamMeter, read_plain
from kvquota_sidecar.proxy.refusing import refusal_answer
from kvquota_sidecar.proxy.request_ids import Name
from kvquota_sidecar.proxy.routes import Route
from kvquota_sidecar.proxy.service import Client
from kvquota_sidecar.proxy.usage_scope import Scope
from kvquota_sidecar.records import LeafValue
from kvquota_sidecar.refusals import Code, Refusal, refuse
from kvquota_sidecar.refusals.headers import admitted_fields
from kvquota_sidecar.refusals.wire import final_event
from kvquota_sidecar.telemetry.tally import Outcome

# Tokens of output after which the books are told: half a block of the smallest usual size, so a charge is never more
# than one block behind what is seen, and the books' part of the cost of a token is an eighth.
GROWTH_STEP: Final = 8
_CAUSES: Final = {
    Outcome.ANSWERED: Cause.FINISHED,
    Outcome.ENGINE_REFUSED: Cause.ENGINE_FAILED,
    Outcome.CLIENT_GONE: Cause.CLIENT_GONE,
    Outcome.ENGINE_FAILED: Cause.ENGINE_FAILED,
    Outcome.EVICTED: Cause.ENDED,
    Outcome.ENDED: Cause.ENDED,
    Outcome.DRAINED: Cause.DRAINED,
    Outcome.FAULT: Cause.ENGINE_FAILED,
}
_UNREAD: Final = PlainAnswer()
_STOPPED: Final = "The engine ended its answer before it was complete. Retry later."
_P = ParamSpec("_P")


class Job(LeafValue, frozen=True):
    """What is to be forwarded, and for whom. `tenant` and `ticket` are None where no quota applies.

    `prompts`: for learning their tokens. `estimated`: of these together. `withholds_usage`: this program asked for the
    stream's usage, not the client. `tokens_per_frame`: that its stream is taken to have; None where it hides some.
    `marks_end`: a stream that stops without a mark was cut, see `stream_ends`. `scope`: of the engine's usage.
    """

    name: Name
    route: Route
    tenant: str | None = None
    ticket: int | None = None
    prompts: tuple[PromptSize, ...] = ()
    estimated: int = 0
    withholds_usage: bool = False
    marks_end: bool = False
    tokens_per_frame: float | None = None
    scope: Scope = "Answer"


def _guarded(method: Callable[Concatenate[Relay, _P], None]) -> Callable[Concatenate[Relay, _P], None]:
    """Whatever fails within it, nothing stays held."""

    @functools.wraps(method)
    def whole(relay: Relay, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            method(relay, *args, **kwargs)
        except BaseException:
            relay.abandon()
            raise

    return whole


class Relay:
    """An `Exchange` to the client, a `Listener` to the engine, and `Work` to the desk.

    It holds from the moment that it is made: who makes it starts it, and abandons it where that fails.
    """

    __slots__ = (
        "_answered",
        "_begun",
        "_call",
        "_client",
        "_closed",
        "_copied",
        "_copy",
        "_desk",
        "_head",
        "_heard",
        "_is_good",
        "_job",
        "_meter",
        "_plain",
        "_silent_until",
        "_started_at",
        "_told",
        "_unread_until",
    )

    def __init__(self, job: Job, client: Client, desk: Desk) -> None:
        self._job = job
        self._client = client
        self._desk = desk
        self._call: EngineCall | None = None
        self._head: AnswerHead | None = None
        self._is_good = False  # it says 200
        self._meter: StreamMeter | None = None
        self._copy: list[bytes] = []  # of a body that is one JSON object, for its usage
        self._copied = 0
        self._plain = _UNREAD
        self._begun = False  # something of the answer was sent
        self._answered = False  # all of it was
        self._closed = False
        self._told = Tokens(0)
        self._started_at = desk.clock()
        self._heard = False  # something of the engine since the last look
        self._silent_until = self._started_at + desk.silence_seconds
        self._unread_until = math.inf  # finite while the client does not read
        desk.running.add(self)
        if job.ticket is not None:
            desk.tickets[job.ticket] = self

    def start(self, request: bytes) -> None:
        """Send the request to the engine; the answer goes to the client by itself."""
        self._client.attach(self)
        self._call = self._desk.pool.call(request, self)

    def abandon(self) -> None:
        """Let go of everything after a fault of this program."""
        with ExitStack() as last_first:
            if not self._answered:
                last_first.callback(self._client.break_off)
            last_first.callback(self._cancel)
            last_first.callback(self._close, Outcome.FAULT)

    # What the engine's side calls.

    def answer_head(self, head: AnswerHead) -> None:
        self._head, job = head, self._job
        self._heard = True
        self._is_good = head.status == 200
        try:
            self._client.let_go()
            if head.is_stream and self._is_good:
                self._meter = StreamMeter(
                    withholds_usage=job.withholds_usage, tokens_per_frame=job.tokens_per_frame or 1.0, scope=job.scope
                )
        except BaseException:
            self.abandon()
            raise

    def answer_data(self, data: bytes) -> None:
        self._heard = True
        try:
            meter = self._meter
            if meter is None:
                self._keep_copy(data)
            else:
                data = meter.feed(data)
                if meter.produced >= self._told + GROWTH_STEP:
                    self._grow(meter.produced)
            if data and not self._closed:
                if not self._begun:
                    self._begin()
                self._client.write(data)
        except BaseException:
            self.abandon()
            raise

    def answer_end(self) -> None:
        try:
            meter = self._meter
            rest = b"" if meter is None else meter.rest()
            if self._copy and self._is_good:
                self._plain = read_plain(b"".join(self._copy), self._job.scope)
            self._settle()
            if meter is not None and self._stops_short(meter):
                self._finish(refuse(Code.ENGINE_ERROR, _STOPPED), Outcome.ENGINE_FAILED)
                return
            self._close(self._how_it_ended())
            if not self._begun:
                self._begin()
            if rest:
                self._client.write(rest)
            self._client.end()
            self._answered = True
            self._desk.turn()
        except BaseException:
            self.abandon()
            raise

    def answer_broken(self, failure: EngineFailure) -> None:
        refusal = _failure_refusal(failure, self._desk.pool.address.authority.decode())
        self.end(refusal, Outcome.ENGINE_FAILED)

    # What the client's side calls.

    @_guarded
    def client_gone(self) -> None:
        self._answered = True
        if not self._closed:
            self._cancel()
            self._close(Outcome.CLIENT_GONE)
            self._desk.turn()

    @_guarded
    def client_full(self) -> None:
        self._unread_until = self._desk.clock() + UNREAD_SECONDS
        if self._call is not None:
            self._call.pause()

    @_guarded
    def client_ready(self) -> None:
        self._heard = True
        self._unread_until = math.inf
        if self._call is not None:
            self._call.resume()

    # What the desk calls.

    @_guarded
    def look(self, now: float) -> None:
        if self._unread_until < math.inf:
            if self._unread_until <= now:
                self._go_unread(now)
        elif self._heard:
            self._heard = False
            self._silent_until = now + self._desk.silence_seconds
        elif self._silent_until <= now:
            self.answer_broken(EngineFailure("Silent", f"nothing came within {self._desk.silence_seconds:g} s"))

    @_guarded
    def end(self, refusal: Refusal, outcome: Outcome) -> None:
        if self._closed:
            return
        self._cancel()
        self._finish(refusal, outcome)

    # The inside.

    def _finish(self, refusal: Refusal, outcome: Outcome) -> None:
        self._close(outcome, refusal)
        self._tell(refusal, outcome)
        self._answered = True
        self._desk.turn()

    def _stops_short(self, meter: StreamMeter) -> bool:
        return meter.is_given_up or (not meter.has_ended and (meter.is_cut or self._job.marks_end))

    def _how_it_ended(self) -> Outcome:
        if self._plain.is_given_up if self._meter is None else self._meter.has_failed:
            return Outcome.ENGINE_FAILED
        return Outcome.ANSWERED if self._is_good else Outcome.ENGINE_REFUSED

    def _tell(self, refusal: Refusal, outcome: Outcome) -> None:
        path = self._job.route.path
        if not self._begun:
            room = self._desk.room(self._job.tenant)
            self._client.answer(refusal_answer(refusal, path, self._job.name, room))
            return
        if self._meter is None or not self._meter.is_between_frames:
            self._client.break_off()
            return
        if self._meter.has_ended:  # nothing can follow
            self._client.end()
            return
        self._client.write(final_event(refusal, path))
        if outcome is Outcome.ENGINE_FAILED:
            self._client.break_off()
        else:
            self._client.end()

    def _cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def _go_unread(self, now: float) -> None:
        """The engine goes on without being read, to its limit at most."""
        self._unread_until = math.nextafter(math.inf, 0)  # told once, until the client has read again
        if self._job.ticket is not None:
            self._desk.books.unseen(self._job.ticket, now)
            self._desk.turn()

    def _grow(self, produced: Tokens) -> None:
        self._told = produced
        if self._job.ticket is not None:
            self._desk.books.grow(self._job.ticket, produced, self._desk.clock())
            self._desk.turn()

    def _settle(self) -> None:
        """Correct the books by what the engine counted, and learn from it."""
        job, desk = self._job, self._desk
        usage = self._plain.usage if self._meter is None else self._meter.usage
        if usage is None or usage.prompt is None or job.ticket is None or job.tenant is None or job.scope == "Prompt":
            return
        desk.ratios.learn(job.tenant, job.prompts, usage.prompt)
        if usage.prompt > job.estimated:
            desk.tally.underestimated_tokens += usage.prompt - job.estimated
        if self._meter is not None:
            self._told = self._meter.produced
            if usage.output is not None and job.tokens_per_frame is not None:
                desk.paces.learn(job.tenant, self._meter.shown, usage.output)
        elif usage.output is not None:
            self._told = usage.output
        desk.books.settle(job.ticket, usage.prompt, self._told, desk.clock(), usage.cached)

    def _keep_copy(self, data: bytes) -> None:
        self._copied += len(data)
        if self._job.ticket is None or self._copied > MAX_JSON_BYTES:
            self._copy.clear()
        else:
            self._copy.append(data)

    def _begin(self) -> None:
        head, job, desk = self._head, self._job, self._desk
        if head is None:
            return
        self._begun = True
        if job.ticket is not None and not self._closed:
            desk.books.sent(job.ticket)
        fields = head.fields + job.name.field + admitted_fields(desk.room(job.tenant))
        self._client.begin(head.status, fields, head.length if self._meter is None else None)

    def _close(self, outcome: Outcome, refusal: Refusal | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        job, desk = self._job, self._desk
        desk.running.discard(self)
        if job.ticket is not None:
            self._release(job.ticket, _CAUSES[outcome])
        desk.tally.requests[job.route.path, outcome] += 1
        if self._is_news(outcome) and desk.journal.may_write():
            self._report(outcome, refusal)

    def _release(self, ticket: int, cause: Cause) -> None:
        desk, meter = self._desk, self._meter
        del desk.tickets[ticket]
        desk.doubts.close(ticket)
        try:
            if meter is not None and meter.produced > self._told:
                self._told = meter.produced
                desk.books.grow(ticket, self._told, desk.clock())
        finally:
            desk.books.release(ticket, cause, desk.clock())

    def _is_news(self, outcome: Outcome) -> bool:
        """Whether it is worth a log line; probes come every second, so only when they begin to say something else."""
        if self._job.route.purpose != "Health":
            return outcome is not Outcome.ANSWERED
        before, self._desk.health = self._desk.health, outcome
        return outcome is not before

    def _report(self, outcome: Outcome, refusal: Refusal | None) -> None:
        self._desk.journal.write(
            outcome,
            request=self._job.name.own,
            clientRequest=self._job.name.given,
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
