"""All connections of one port: what they share, how long they may wait, and how they end together."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Generic, Protocol

from kvquota_sidecar.clock import Clock
from kvquota_sidecar.proxy.answers import http_date
from kvquota_sidecar.proxy.buffers import Buffers
from kvquota_sidecar.proxy.service import ContextT, Service


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a port waits for its clients, in seconds, and how much it takes from them.

    head, body: for the rest of it after its first byte (408). idle: between requests. stall: for a client that does not
    read. linger: for the rest of a request that was answered early. half: for the next word of an answer to a client
    that has closed its half in the middle of it. Defaults: what common proxies use.
    """

    head: float = 10.0
    body: float = 60.0
    idle: float = 75.0
    stall: float = 60.0
    linger: float = 2.0
    half: float = 5.0
    max_body_bytes: int = 8 * 1024 * 1024
    max_held_bytes: int = 256 * 1024 * 1024  # of all requests that the engine has not begun to answer, together
    max_connections: int = 8192


class Connection(Protocol):
    """One of the connections; `deadline` is in monotonic seconds, infinite while it waits for nobody."""

    deadline: float

    def expire(self) -> None:
        """The deadline has passed."""

    def close_if_idle(self) -> None:
        """Close it if it is in no request."""

    def abort(self) -> None:
        """Cut it."""


class Hub(Generic[ContextT]):
    """All connections of one port."""

    def __init__(self, service: Service[ContextT], patience: Patience, clock: Clock, wall: Clock = time.time) -> None:
        self.service = service
        self.patience = patience
        self.clock = clock
        self._wall = wall
        self._date = (0, b"")
        self.connections: set[Connection] = set()
        self.emptied = asyncio.Event()  # set while there is no connection
        self.emptied.set()
        self.buffers = Buffers(patience.max_held_bytes, patience.max_body_bytes)
        self.turned_away = 0  # connections beyond max_connections, closed unread

    def date(self) -> bytes:
        """The line of the Date header, made once a second."""
        second = int(self._wall())
        if self._date[0] != second:
            self._date = (second, http_date(second))
        return self._date[1]

    def add(self, connection: Connection) -> None:
        """A connection is there."""
        self.connections.add(connection)
        self.emptied.clear()

    def remove(self, connection: Connection) -> None:
        """It is closed."""
        self.connections.discard(connection)
        if not self.connections:
            self.emptied.set()

    def expire(self) -> None:
        """Close what has waited too long; to be called a few times a second."""
        now = self.clock()
        for connection in [each for each in self.connections if each.deadline <= now]:
            connection.expire()

    def close_idle(self) -> None:
        """Close the connections that are in no request."""
        for connection in tuple(self.connections):
            connection.close_if_idle()

    def abort_all(self) -> None:
        """Cut every connection."""
        for connection in tuple(self.connections):
            connection.abort()
