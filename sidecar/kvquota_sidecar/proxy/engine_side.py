"""Connections to the one engine, and single calls on them.

Invariants:

1. There is one address; it comes from the settings and never from a request.
2. A connection carries one call at a time, and is used again only when its answer ended cleanly and may be followed.
3. A call is repeated at most once, silently, and only when a kept connection turned out to be closed before a byte of
   the answer came: the engine had closed it while it was idle.
4. A call that is cancelled closes its connection at once, so that the engine stops working for it.
5. Every call ends with its answer, with word of why there is none, or with `cancel`; also where its connection raises.
   What a transport raises of itself is a connection that broke, and ends nothing but that.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, cast

from kvquota_sidecar.clock import Clock
from kvquota_sidecar.proxy.engine_answer import AnswerError, AnswerHead, AnswerHeads, AnswerReader

# uvicorn, the server of vLLM and SGLang, closes an idle connection after 5 s: leave it before that.
IDLE_SECONDS: Final = 4.0
MAX_IDLE: Final = 256  # connections that wait for a call; an engine runs about as many requests at a time
CONNECT_SECONDS: Final = 5.0

# What a transport or a loop raises: of the system, and of a handle that is closed already.
_PORT_ERRORS: Final = (OSError, RuntimeError)

FailureKind = Literal["Unreachable", "Broken", "Silent"]
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """`authority`: as the Host header has it."""

    host: str
    port: int
    authority: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        text = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        object.__setattr__(self, "authority", text.encode())


@dataclass(frozen=True, slots=True)
class EngineFailure:
    """Why an answer will not come or not be completed."""

    kind: FailureKind
    detail: str


class Listener(Protocol):
    """Who waits for an answer of the engine."""

    def answer_head(self, head: AnswerHead) -> None:
        """The head is here."""

    def answer_data(self, data: bytes) -> None:
        """A part of the body is here; never empty."""

    def answer_end(self) -> None:
        """The body is complete. The last call."""

    def answer_broken(self, failure: EngineFailure) -> None:
        """There will be no answer, or no more of it. The last call."""


class EnginePool:
    """The connections to the engine. `spawn` starts a task that somebody owns."""

    def __init__(self, address: EngineAddress, spawn: Spawn, clock: Clock) -> None:
        self.address = address
        self.spawn = spawn
        self.clock = clock
        self.heads = AnswerHeads()
        self._idle: list[EngineLink] = []
        self._links: set[EngineLink] = set()

    def call(self, request: bytes, listener: Listener) -> EngineCall:
        """Send a request; `listener` hears of it from now on, never before this returns."""
        call = EngineCall(self, request, listener)
        link = self.take_idle()
        if link is None:
            call.dial()
        else:
            call.ride(link)
        return call

    @property
    def open_links(self) -> int:
        return len(self._links)

    def expire(self) -> None:
        """Close connections that have been idle for too long; to be called about once a second."""
        oldest = self.clock() - IDLE_SECONDS
        for link in [each for each in self._idle if each.idle_since <= oldest]:
            self.forget(link)
            link.close()

    def close(self) -> None:
        """Cut every connection."""
        for link in tuple(self._links):
            link.close()
        self._idle.clear()

    # What links and calls do.

    def take_idle(self) -> EngineLink | None:
        return self._idle.pop() if self._idle else None

    async def dial(self) -> EngineLink:
        """A new connection. Raises OSError or TimeoutError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_SECONDS):
            _, link = await loop.create_connection(lambda: EngineLink(self), self.address.host, self.address.port)
        return link

    def opened(self, link: EngineLink) -> None:
        self._links.add(link)

    def idled(self, link: EngineLink) -> None:
        if len(self._idle) < MAX_IDLE:
            self._idle.append(link)
        else:
            link.close()

    def forget(self, link: EngineLink) -> None:
        if link in self._idle:
            self._idle.remove(link)

    def lost(self, link: EngineLink) -> None:
        self._links.discard(link)
        self.forget(link)


class EngineCall:
    """One request to the engine and its answer."""

    __slots__ = ("_dialling", "_link", "_over", "_paused", "_pool", "_request", "listener")

    def __init__(self, pool: EnginePool, request: bytes, listener: Listener) -> None:
        self._pool = pool
        self._request = request
        self.listener = listener
        self._link: EngineLink | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._over = False
        self._paused = False

    def ride(self, link: EngineLink) -> None:
        """Go out on a connection."""
        self._link = link
        try:
            link.carry(self, self._request)
            if self._paused:
                link.pause()
        except _PORT_ERRORS as error:
            link.close()
            self.broken(str(error), was_stale=link.was_used)
        except BaseException:
            link.close()
            raise

    def dial(self) -> None:
        """Go out on a connection that is to be made."""
        self._dialling = self._pool.spawn(self._connect())

    def pause(self) -> None:
        """Read nothing more from the engine until `resume`."""
        self._paused = True
        if self._link is not None:
            self._link.pause()

    def resume(self) -> None:
        self._paused = False
        if self._link is not None:
            self._link.resume()

    def cancel(self) -> None:
        """Give it up: the connection is closed at once, the listener hears nothing more."""
        self._over = True
        if self._dialling is not None:
            self._dialling.cancel()
        if self._link is not None:
            self._link.close()

    # What the link calls, until it is closed.

    def head(self, head: AnswerHead) -> None:
        self._request = b""  # it will not be repeated any more
        self.listener.answer_head(head)

    def end(self) -> None:
        self._over = True
        self.listener.answer_end()

    def broken(self, detail: str, *, was_stale: bool) -> None:
        if self._over:
            return
        self._link = None
        if was_stale:  # once at most: the next connection is a fresh one
            self.dial()
            return
        self._fail(EngineFailure("Broken", detail))

    # The inside.

    async def _connect(self) -> None:
        try:
            link = await self._pool.dial()
        except TimeoutError:
            self._fail(EngineFailure("Silent", f"no connection within {CONNECT_SECONDS:g} s"))
        except OSError as error:
            self._fail(EngineFailure("Unreachable", error.strerror or str(error)))
        except RuntimeError as error:
            self._fail(EngineFailure("Broken", str(error)))
        else:
            self._ride_or_close(link)

    def _ride_or_close(self, link: EngineLink) -> None:
        """The call may have been given up in the moment in which the connection was made."""
        if self._over:
            link.close()
        else:
            self.ride(link)

    def _fail(self, failure: EngineFailure) -> None:
        if not self._over:
            self._over = True
            self.listener.answer_broken(failure)


class EngineLink(asyncio.Protocol):
    """One connection to the engine. `was_used`: an answer on it has ended before."""

    __slots__ = (
        "_answered",
        "_call",
        "_head_told",
        "_pool",
        "_reader",
        "_reading",
        "_transport",
        "idle_since",
        "was_used",
    )

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport
        self._call: EngineCall | None = None
        self._reader = AnswerReader(pool.heads)
        self._answered = False
        self.was_used = False
        self._reading = True
        self._head_told = False
        self.idle_since = math.inf

    def carry(self, call: EngineCall, request: bytes) -> None:
        """Send a request on it and let `call` know of the answer."""
        self._call = call
        if self.was_used:
            self._reader.reset()
        self._answered = self._head_told = False
        self._transport.write(request)

    def pause(self) -> None:
        if self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._reading and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    def close(self) -> None:
        """Close it at once."""
        self._call = None
        self._transport.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._call is None:
            self.close()
            return
        self._answered = True
        try:
            body = self._reader.feed(data)
        except AnswerError as error:
            self._break(str(error))
            return
        if self._head_told and body and not self._reader.done:
            self._call.listener.answer_data(body)
        else:
            self._deliver(body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.lost(self)
        if self._call is None:
            return
        try:
            self._reader.end_of_input()
        except AnswerError as error:
            self._break(str(exc or error))
            return
        self._deliver(b"")

    # The inside.

    def _deliver(self, body: bytes) -> None:
        reader, call = self._reader, self._call
        if not self._head_told and reader.head is not None and call is not None:
            self._head_told = True
            call.head(reader.head)
        if body and self._call is not None:
            self._call.listener.answer_data(body)
        if reader.done and self._call is not None:
            self._finish(self._call)

    def _finish(self, call: EngineCall) -> None:
        try:
            self._rest_or_close()
        finally:
            self._call = None
            call.end()

    def _rest_or_close(self) -> None:
        if not self._may_be_used_again():
            self._transport.abort()
            return
        self.was_used = True
        if not self._reading:
            self.resume()
        self.idle_since = self._pool.clock()
        self._pool.idled(self)

    def _may_be_used_again(self) -> bool:
        head = self._reader.head
        unsent = self._transport.get_write_buffer_size()
        return head is not None and head.keep_alive and not unsent and not self._transport.is_closing()

    def _break(self, detail: str) -> None:
        call, self._call = self._call, None
        try:
            self._transport.abort()
        finally:
            if call is not None:
                call.broken(detail, was_stale=self.was_used and not self._answered)
