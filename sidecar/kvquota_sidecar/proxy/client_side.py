"""A client's connection: bytes in, answers out, one request at a time.

Invariants:

1. Requests are answered in the order they came, the next one is looked at when the answer before it is complete.
2. A client that leaves is noticed at once, also while nothing is being sent to it: reading never stops while a request
   is answered, unless the client has sent more than MAX_AHEAD_BYTES of further requests.
3. A client that does not read is sent nothing more than what the transport's buffer holds, and is cut off in the end.
4. After a fault, or an answer that came before its request was all here, the connection is closed without a reset: the
   rest of what the client sends is read and dropped for a while, so that it gets to see the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
from typing import Any, Final, Generic, cast

from kvquota_sidecar.proxy.answers import (
    CONTINUE,
    LAST_CHUNK,
    Answer,
    Framing,
    chunk,
    encode_answer,
    encode_head,
    with_date,
)
from kvquota_sidecar.proxy.head import Fault, Head, Headers
from kvquota_sidecar.proxy.hub import Hub
from kvquota_sidecar.proxy.reading import Event, Request, RequestReader, Stage
from kvquota_sidecar.proxy.service import ContextT, Ends, Exchange

MAX_AHEAD_BYTES: Final = 64 * 1024  # of pipelined requests; more stay in the kernel's buffer
# A peer whose cable is cut is found by these: 20 + 3 * 10 s with nothing to send, 60 s with something unacknowledged.
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000))


class ClientConnection(asyncio.Protocol, Generic[ContextT]):
    """One connection. See the module's invariants; it is a `Client` to the exchange that answers."""

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
        self.deadline = math.inf

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if len(self._hub.connections) >= self._hub.patience.max_connections:
            self._hub.turned_away += 1
            self.abort()
            return
        self._hub.add(self)
        self._ends = Ends(_host(transport, "peername"), _host(transport, "sockname"))
        _watch_peer(transport.get_extra_info("socket"))
        self._wait(self._hub.patience.idle)

    def data_received(self, data: bytes) -> None:
        if self._leaving:
            return
        self._reader.feed(data)
        self._hold(len(data))
        if not self._serving:
            self._advance()
            self._check_held()
        self._pause_if_ahead()

    def eof_received(self) -> None:
        if self._serving:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why makes no difference
        self._hub.remove(self)
        self._let_go()
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
        self.deadline = math.inf
        if self._exchange is not None:
            self._exchange.client_ready()
        elif not self._serving:
            self._stage = "ready"  # so that the time allowed for what comes next starts now
            self._read_again()
            self._advance()

    # What the hub calls.

    def expire(self) -> None:
        """The deadline has passed."""
        if self._serving or self._leaving or self._full:
            self.abort()
        elif self._reader.stage == "idle":
            self._close()
        else:
            seconds = self._hub.patience.head if self._head is None else self._hub.patience.body
            self._fail(Fault(408, f"The request was not complete within {seconds:g} s: send it faster."))

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

    def answer(self, answer: Answer) -> None:
        close = self._closes_after()
        self._transport.write(encode_answer(answer, self._hub.date(), close=close))
        self._answered(close=close)

    def begin(self, status: int, headers: Headers, length: int | None) -> None:
        if length is not None:
            self._framing = "Length"
        else:
            self._framing = "Close" if self._head is None or self._head.minor == 0 else "Chunked"
        close = self._framing == "Close" or self._closes_after()
        dated = with_date(headers, self._hub.date())
        self._unsent = encode_head(status, dated, length, self._framing, close=close)

    def write(self, data: bytes) -> None:
        if data and not self._leaving:
            self._send(chunk(data) if self._framing == "Chunked" else data)

    def end(self) -> None:
        self._send(LAST_CHUNK if self._framing == "Chunked" else b"")
        self._answered(close=self._framing == "Close" or self._closes_after())

    def break_off(self) -> None:
        self._exchange = None
        if self._framing == "Close":
            self._reset()
        else:
            self._close()

    # The inside.

    def _send(self, data: bytes) -> None:
        """Send it, with the head where that has not been sent: every write is a system call."""
        whole, self._unsent = self._unsent + data, b""
        if whole:
            self._transport.write(whole)

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
        finally:
            self._advancing = False
        if not (self._serving or self._leaving or self._full):
            self._await_client()

    def _take(self, event: Event) -> None:
        if isinstance(event, Fault):
            self._fail(event)
        elif isinstance(event, Head):
            self._examine(event)
        else:
            self._serve(event)

    def _examine(self, head: Head) -> None:
        self._head = head
        verdict = self._hub.service.examine(head, self._ends)
        if isinstance(verdict, Answer):
            self._turn_away(verdict)
            return
        self._context = verdict
        if head.expects_continue and self._reader.stage == "body":
            self._transport.write(CONTINUE)

    def _turn_away(self, answer: Answer) -> None:
        if self._reader.stage == "ready":
            self._reader.next_event()
            self._let_go()
            self._serving = True
            self.answer(answer)
        else:
            self._answer_and_leave(answer)

    def _serve(self, request: Request) -> None:
        self._serving = True
        self._let_go()
        self.deadline = math.inf
        self._hub.service.serve(request, self._context, self)

    def _answered(self, *, close: bool) -> None:
        self._serving = False
        self._exchange = self._head = self._context = None
        self._stage = "ready"
        if close:
            self._leave()
            return
        self._read_again()
        self._advance()

    def _await_client(self) -> None:
        """Set the time allowed for what comes next, once for every stage."""
        stage = self._reader.stage
        if stage != self._stage:
            self._stage = stage
            patience = self._hub.patience
            self._wait({"idle": patience.idle, "head": patience.head}.get(stage, patience.body))

    def _hold(self, size: int) -> None:
        self._held += size
        self._hub.held_bytes += size

    def _let_go(self) -> None:
        self._hub.held_bytes -= self._held
        self._held = 0

    def _check_held(self) -> None:
        if self._held and not self._leaving and self._hub.held_bytes > self._hub.patience.max_held_bytes:
            self._fail(Fault(503, "This replica is receiving as much at once as it may hold. Retry in a few seconds."))

    def _wait(self, seconds: float) -> None:
        self.deadline = self._hub.clock() + seconds

    def _closes_after(self) -> bool:
        return self._head is None or not self._head.keep_alive or self._hub.service.is_leaving

    def _fail(self, fault: Fault) -> None:
        self._answer_and_leave(self._hub.service.answer_fault(fault, self._head))

    def _answer_and_leave(self, answer: Answer) -> None:
        self._transport.write(encode_answer(answer, self._hub.date(), close=True))
        self._linger()

    def _leave(self) -> None:
        """Close after a complete answer; what was sent beyond its request is read first, else the close is a reset."""
        if self._reader.unread or not self._reading:
            self._linger()
        else:
            self._close()

    def _linger(self) -> None:
        self._leaving = True
        self._wait(self._hub.patience.linger)
        self._read_again()
        with contextlib.suppress(OSError, RuntimeError):  # the client may have gone before its answer
            self._transport.write_eof()

    def _pause_if_ahead(self) -> None:
        waiting = self._serving or self._full
        if waiting and self._reader.unread > MAX_AHEAD_BYTES and self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _read_again(self) -> None:
        if not self._reading and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    def _close(self) -> None:
        self._leaving = True
        self._wait(self._hub.patience.stall)
        self._transport.close()

    def _reset(self) -> None:
        """Cut it so that the client sees an error, not an end."""
        sock: Any = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()

    def _tell_gone(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()


def _host(transport: asyncio.BaseTransport, which: str) -> str:
    address: Any = transport.get_extra_info(which)
    return str(address[0]) if isinstance(address, tuple) else ""


def _watch_peer(sock: Any) -> None:
    """Let the kernel find out whether the peer is still there."""
    if sock is None or sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
