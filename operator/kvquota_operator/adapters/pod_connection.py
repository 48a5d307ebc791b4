"""One HTTP/1.1 connection to a sidecar: a request, its answer, and the next request on the same connection.

Thousands of pods are asked every few seconds: with aiohttp a sync takes 180 us of processor time, so 70.

Invariants:

1. One request at a time. A connection of which anything is in doubt is not used again: `reusable` says so.
2. What is kept of an answer is bounded, and an answer is read only in the one form in which a sidecar writes it: with
   its length. Whatever else comes is a MalformedError.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, cast

LARGEST_HEAD_BYTES: Final = 16 * 2**10  # a sidecar's has 200; a proxy in between may add its own lines
READ_BYTES: Final = 64 * 2**10  # of one read: a report of a hundred tenants


class MalformedError(Exception):
    """What answered does not speak as a sidecar does."""


class LostError(ConnectionError):
    """The connection ended before the answer did. `unanswered`: before the first byte of it."""

    def __init__(self, message: str, *, unanswered: bool) -> None:
        super().__init__(message)
        self.unanswered = unanswered


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class _Head:
    status: int
    length: int
    stays: bool


class PodConnection(asyncio.BufferedProtocol):
    """`buffer` may be that of other connections of the same loop too: what is read is taken out of it at once.

    `largest`: bytes of the largest body that is taken. `used_at` is for whoever keeps the connection.
    """

    def __init__(self, buffer: bytearray, largest: int) -> None:
        self.used_at = 0.0
        self._buffer = buffer
        self._largest = largest
        self._received = bytearray()
        self._head: _Head | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._stays = True
        self._transport: asyncio.Transport | None = None

    @property
    def reusable(self) -> bool:
        """Whether it is open, at rest, and the other side did not say that it will close it."""
        return (
            self._stays and self._waiting is None and self._transport is not None and not self._transport.is_closing()
        )

    async def ask(self, message: bytes) -> Answer:
        """Send a whole request and wait for its whole answer. Raises LostError, MalformedError."""
        if self._transport is None or self._transport.is_closing():
            raise LostError("the connection was closed", unanswered=True)
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting = waiting
        self._transport.write(message)
        answer = await waiting
        self._waiting = None
        return answer

    def close(self) -> None:
        """At once, with whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # that of another loop is of no class of asyncio

    def connection_lost(self, exc: Exception | None) -> None:
        unanswered = not self._received
        self._fail(LostError(str(exc or "the other side closed the connection"), unanswered=unanswered))

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - one size fits all
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._waiting is None or self._waiting.done():
            self.close()
            return
        self._received += memoryview(self._buffer)[:nbytes]
        try:
            answer = self._whole()
        except MalformedError as error:
            self._fail(error)
            return
        if answer is not None:
            self._waiting.set_result(answer)

    def _fail(self, error: Exception) -> None:
        self._stays = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def _whole(self) -> Answer | None:
        """The answer, once all of it is there."""
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            if len(self._received) > LARGEST_HEAD_BYTES:
                raise MalformedError(f"its answer has no body after {LARGEST_HEAD_BYTES} bytes")
            return None
        if self._head is None:
            self._head = _read_head(bytes(self._received[:end]), self._largest)
        head, body = self._head, end + 4
        if len(self._received) < body + head.length:
            return None
        self._stays = head.stays and len(self._received) == body + head.length
        answer = Answer(head.status, bytes(self._received[body : body + head.length]))
        self._received.clear()
        self._head = None
        return answer


def _read_head(data: bytes, largest: int) -> _Head:
    first, *lines = data.split(b"\r\n")
    version, _, rest = first.partition(b" ")
    status = rest[:3]
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(status) != 3 or not status.isdigit():
        raise MalformedError("its answer is not HTTP/1.1")
    fields = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    lengths = [value for name, value in fields if name == b"content-length"]
    if len(lengths) != 1 or not lengths[0].isdigit() or any(name == b"transfer-encoding" for name, _ in fields):
        raise MalformedError(f"its answer, with the status {status.decode()}, does not say how long it is")
    length = int(lengths[0]) if len(lengths[0]) < 16 else largest + 1
    if length > largest:
        raise MalformedError(f"its answer is larger than {largest} bytes")
    closes = any(name == b"connection" and value.lower() != b"keep-alive" for name, value in fields)
    return _Head(int(status), length, stays=version == b"HTTP/1.1" and not closes)
