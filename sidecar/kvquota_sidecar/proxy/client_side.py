"""A client's connection: bytes in, answers out, one request at a time.

Invariants:

1. Requests are answered in the order they came, the next one is looked at when the answer before it is complete.
2. A client that leaves is noticed at once, also while nothing is being sent to it: reading never stops while a request
   is answered, unless the client has sent more than MAX_AHEAD_BYTES of further requests.
3. A client that does not read is sent nothing more than what the transport's buffer holds, and is cut off in the end.
4. A client that closes its half may still listen, and gets what it asked for. Whether it does, only sending tells (see
   `half`), so it is sent an interim answer at once, where the protocol allows it.
5. The bytes of a request count until whoever answers it has let go of them; what is refused is forgotten at once.
6. A service that fails loses its connection, and its exchange, if there is one, hears that the client has gone.
7. After a fault, or an answer that came before its request was all here, the connection is closed without a reset: the
   rest of what the client sends is read and dropped for a while, so that it gets to see the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any, Final, Generic, cast

from kvquota_sidecar.proxy import peers
from kvquota_sidecar.proxy.answers import (
    CONTINUE,
    LAST_CHUNK,
    Answer,
    Framing,
    encode_answer,
    encode_head,
    with_date,
)
from kvquota_sidecar.proxy.chunked import chunk
from kvquota_sidecar.proxy.half import Half
from kvquota_sidecar.proxy.head import Fault, Head
from kvquota_sidecar.proxy.hub import Hub
from kvquota_sidecar.proxy.reading import Event, RequestReader, Stage
from kvquota_sidecar.proxy.service import ContextT, Ends, Exchange

MAX_AHEAD_BYTES: Final = 64 * 1024  # of pipelined requests; more stay in the kernel's buffer
PIECE_BYTES: Final = 56  # that Python keeps for a piece of a body beside its content: an object, a place in a list


class ClientConnection(asyncio.Protocol, Generic[ContextT]):
    """One connection. See the module's invariants; it is a `Client` to the exchange that answers."""

    __slots__ = (
        "_advancing", "_begun", "_context", "_ends", "_exchange", "_framing", "_full", "_half", "_head", "_held",
        "_hub", "_leaving", "_owner", "_reader", "_reading", "_serving", "_stage", "_transport", "_unsent", "deadline",
        "is_known",
    )  # fmt: skip

    def __init__(self, hub: Hub[ContextT]) -> None:
        self._hub = hub
        self._reader = RequestReader(hub.patience.max_body_bytes)
        self._transport: asyncio.Transport
        self._ends = Ends("", "")
        self._stage: Stage = "idle"
        self._head: Head | None = None
        self._context: Any = None
        self._exchange: Exchange | None = None
        self._framing: Framing = "Length"
        self._unsent = b""  # the head of an answer that was begun
        self._serving = False
        self._advancing = False
        self._leaving = False  # closed, or closing once the buffer is empty or the client is done
        self._full = False
        self._reading = True
        self._held = 0
        self._owner: str | None = None  # for whom they count
        self._begun = False  # a byte of the answer was sent
        self._half: Half | None = None  # the client has closed its own
        self.deadline = math.inf
        self.is_known = False  # a request was served

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ends = Ends(peers.host(transport, "peername"), peers.host(transport, "sockname"))
        if not self._hub.has_place(self._ends):
            self.abort()
            return
        self._hub.add(self)
        peers.watch(transport)
        self._wait(self._hub.patience.idle)

    def data_received(self, data: bytes) -> None:
        if self._leaving:
            return
        self._reader.feed(data)
        self._keep(self._held + len(data) + PIECE_BYTES)
        if not self._serving:
            self._advance()
            if self._held and not self._serving:
                self._check_held()
        if self._reader.unread:
            self._pause_if_ahead()

    def eof_received(self) -> bool:
        """Whether the connection stays open: for what is still to be answered."""
        self._half = self._half or Half(self, self._transport, self._hub.clock, self._hub.patience.half)
        if self._leaving or not (self._serving or self._full):
            return False
        if self._serving:
            self._half.sound_out(self._head, begun=self._begun)
        if self.is_served:
            self._wait_for_nobody()
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why makes no difference
        self._hub.remove(self)
        self._forget()
        self._leaving = True
        self.deadline = math.inf
        self._tell_gone()

    def pause_writing(self) -> None:
        self._full = True
        self._wait(self._hub.patience.stall)
        if self._exchange is not None:
            self._exchange.client_full()

    def resume_writing(self) -> None:
        self._full = False
        if self._leaving:
            return
        self._wait_for_nobody()
        if self._exchange is not None:
            self._exchange.client_ready()
        elif not self._serving:
            self._stage = "ready"  # so that the time allowed for what comes next starts now
            self._read_again()
            self._advance()

    # What the hub calls.

    @property
    def is_spare(self) -> bool:
        is_free = self._head is None and not (self._serving or self._leaving)
        return is_free and self._transport.get_write_buffer_size() == 0

    @property
    def is_served(self) -> bool:
        return self._serving and not (self._leaving or self._full)

    def expire(self) -> None:
        """The deadline has passed."""
        if self._half is not None and self.is_served:
            self._half.look()
        elif self._serving or self._leaving or self._full:
            self.abort()
        elif self._reader.stage == "idle":
            self._close()
        else:
            seconds = self._hub.patience.head if self._head is None else self._hub.patience.body
            self._fail(
                Fault(408, f"The request was not complete within {seconds:g} s: send it faster.", self._reader.path)
            )

    def close_if_idle(self) -> None:
        """Close it if it is in no request."""
        if not self._serving and not self._leaving and self._reader.stage == "idle":
            self._close()

    def abort(self) -> None:
        """Cut it."""
        self._leaving = True
        self._transport.abort()
        self._tell_gone()

    # What an exchange calls: the Client port.

    def attach(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def let_go(self) -> None:
        if self._held:
            self._keep(0)
            self._owner = None
            if self._reader.unread:
                self._keep(self._reader.unread)

    def answer(self, answer: Answer) -> None:
        close = self._closes_after()
        self._send(encode_answer(answer, self._hub.date(), close=close, bodiless=self._is_bodiless()))
        self._answered(close=close)

    def begin(self, status: int, fields: bytes, length: int | None) -> None:
        framing: Framing
        if self._is_bodiless():
            framing = "Bodiless"
        elif length is not None:
            framing = "Length"
        else:
            framing = "Close" if self._head is None or self._head.minor == 0 else "Chunked"
        self._framing = framing
        close = framing == "Close" or self._closes_after()
        self._unsent = encode_head(status, with_date(fields, self._hub.date()), length, framing, close=close)

    def write(self, data: bytes) -> None:
        if not data or self._leaving or self._framing == "Bodiless":
            return
        if self._framing == "Chunked":
            data = chunk(data)
        if self._unsent or not self._begun:
            self._send(data)
        else:
            self._transport.write(data)
            if self._half is not None:
                self._half.sent()

    def end(self) -> None:
        if self._unsent or self._framing == "Chunked":
            self._send(LAST_CHUNK if self._framing == "Chunked" else b"")
        self._answered(close=self._framing == "Close" or self._closes_after())

    def break_off(self) -> None:
        self._exchange = None
        if self._framing == "Close":  # an end would make it whole
            peers.end_by_reset(self._transport)
            self.abort()
        else:
            self._close()

    # The inside.

    def _send(self, data: bytes) -> None:
        """Send it, with the head where that has not been sent: every write is a system call."""
        whole, self._unsent = self._unsent + data, b""
        self._begun = True
        self._transport.write(whole)
        if self._half is not None:
            self._half.sent()

    def _advance(self) -> None:
        if self._advancing:
            return
        self._advancing = True
        try:
            while not (self._serving or self._leaving or self._full):
                event = self._reader.next_event()
                if event is None:
                    break
                self._take(event)
        except BaseException:
            self.abort()
            raise
        finally:
            self._advancing = False
        if self._serving or self._leaving or self._full:
            return
        if self._half is not None:
            self._close()
        else:
            self._await_client()

    def _take(self, event: Event) -> None:
        if isinstance(event, Head):
            self._examine(event)
        elif isinstance(event, Fault):
            self._fail(event)
        elif event.body and self._hub.buffers.are_over(self._owner):
            self._refuse_for_memory()
        else:
            self._serving = self.is_known = True
            self._wait_for_nobody()
            self._hub.service.serve(event, self._context, self)

    def _examine(self, head: Head) -> None:
        self._head = head
        verdict = self._hub.service.examine(head, self._ends)
        if isinstance(verdict, Answer):
            self._turn_away(verdict)
            return
        self._context = verdict
        owner = self._hub.service.owner(verdict)
        if owner is not None:
            held = self._held
            self._keep(0)
            self._owner = owner
            self._keep(held)
        if head.expects_continue and self._reader.stage == "body":
            self._transport.write(CONTINUE)

    def _turn_away(self, answer: Answer) -> None:
        if self._reader.stage == "ready":
            self._reader.next_event()
            self._serving = True
            self.answer(answer)
        else:
            self._answer_and_leave(answer)

    def _answered(self, *, close: bool) -> None:
        self._serving = self._begun = False
        self.let_go()
        self._exchange = self._head = self._context = None
        self._stage = "ready"
        if close:
            self._leave()
            return
        self._read_again()
        if self._held or self._full or self._half is not None:  # what is held by now is of further requests
            self._advance()
        else:
            self._await_client()

    def _await_client(self) -> None:
        """Set the time allowed for what comes next, once for every stage."""
        stage = self._reader.stage
        if stage != self._stage:
            self._stage = stage
            patience = self._hub.patience
            self._wait(patience.idle if stage == "idle" else patience.head if stage == "head" else patience.body)

    def _keep(self, size: int) -> None:
        """Count `size` bytes as held, in place of those before."""
        by_bytes, self._held = size - self._held, size
        self._hub.buffers.change(self._owner, by_bytes)

    def _forget(self) -> None:
        """Drop what was received and will not be answered."""
        self._reader = RequestReader(self._hub.patience.max_body_bytes)
        self._keep(0)

    def _check_held(self) -> None:
        if self._leaving:
            return
        if self._reader.stage == "idle":  # what came was no part of a request
            self._keep(0)
        elif self._hub.buffers.are_over(self._owner):
            self._refuse_for_memory()

    def _refuse_for_memory(self) -> None:
        self._fail(Fault(503, "This replica is receiving as much at once as it may hold. Retry in a few seconds."))

    def _wait(self, seconds: float) -> None:
        self.deadline = self._hub.clock() + seconds

    def _wait_for_nobody(self) -> None:
        self.deadline = math.inf if self._half is None else -math.inf  # a half is looked at all the time

    def _closes_after(self) -> bool:
        is_last = self._head is None or not self._head.keep_alive or self._hub.service.is_leaving
        return is_last or (self._half is not None and not self._reader.unread)

    def _is_bodiless(self) -> bool:
        return self._head is not None and self._head.method == "HEAD"

    def _fail(self, fault: Fault) -> None:
        self._answer_and_leave(self._hub.service.answer_fault(fault, self._head, self._context))

    def _answer_and_leave(self, answer: Answer) -> None:
        self._transport.write(encode_answer(answer, self._hub.date(), close=True, bodiless=self._is_bodiless()))
        self._linger()

    def _leave(self) -> None:
        """Close after a complete answer; what was sent beyond its request is read first, else the close is a reset."""
        if self._reader.unread or not self._reading:
            self._linger()
        else:
            self._close()

    def _linger(self) -> None:
        if self._half is not None:
            self._close()
            return
        self._leaving = True
        self._forget()
        self._wait(self._hub.patience.linger)
        self._read_again()
        with contextlib.suppress(OSError, RuntimeError):  # the client may have gone before its answer
            self._transport.write_eof()

    def _pause_if_ahead(self) -> None:
        most = 0 if self._hub.buffers.are_over(None) else MAX_AHEAD_BYTES
        waiting = self._serving or self._full
        if waiting and self._reader.unread > most and self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _read_again(self) -> None:
        if not self._reading and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    def _close(self) -> None:
        self._leaving = True
        self._forget()
        self._wait(self._hub.patience.stall)
        self._transport.close()

    def _tell_gone(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()
