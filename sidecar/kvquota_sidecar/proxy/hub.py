"""All connections of one port: what they share, how long they may wait, and how they end together.

Invariants:

1. There are never more than `max_connections`, but for KEPT more of those for whom places are kept.
2. Who comes when all places are taken gets that of a connection that is in no request, one that never was first; else
   it is closed unread. So who only sits there keeps nobody out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, Protocol

from kvquota_sidecar.clock import Clock
from kvquota_sidecar.proxy.answers import http_date
from kvquota_sidecar.proxy.buffers import Buffers
from kvquota_sidecar.proxy.service import ContextT, Ends, Service

KEPT: Final = 16  # places beyond the others: for the kubelet's probes and hooks, when strangers have taken those
LOOKED_AT: Final = 64  # connections, to find one that can go: so a newcomer costs no more with 8,000 than with 64
NEWS_SECONDS: Final = 60.0  # between two log lines about places that are taken


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

    @property
    def is_spare(self) -> bool:
        """Whether it is in no request, and nothing is on its way to it: nobody would miss it."""

    @property
    def is_known(self) -> bool:
        """Whether a request of it was served."""

    def expire(self) -> None:
        """The deadline has passed."""

    def close_if_idle(self) -> None:
        """Close it if it is in no request."""

    def abort(self) -> None:
        """Cut it."""


class Hub(Generic[ContextT]):
    """All connections of one port."""

    def __init__(
        self,
        service: Service[ContextT],
        patience: Patience,
        clock: Clock,
        wall: Clock = time.time,
        *,
        keeps_place: Callable[[Ends], bool] | None = None,
    ) -> None:
        """`keeps_place`: for whom there is one when all others are taken; None: for nobody."""
        self.service = service
        self.patience = patience
        self.clock = clock
        self._wall = wall
        self._keeps_place = keeps_place
        self._date = (0, b"")
        self.connections: dict[Connection, None] = {}  # those that were looked at last come last
        self.emptied = asyncio.Event()  # set while there is no connection
        self.emptied.set()
        self.buffers = Buffers(patience.max_held_bytes, patience.max_body_bytes)
        self.turned_away = 0  # connections for which there was no place, closed unread
        self.made_room = 0  # connections that others got the place of
        self._told = 0
        self._next_news_at = 0.0

    def date(self) -> bytes:
        """The line of the Date header, made once a second."""
        second = int(self._wall())
        if self._date[0] != second:
            self._date = (second, http_date(second))
        return self._date[1]

    def has_place(self, ends: Ends) -> bool:
        """Whether one more may come, from there; another may have had to go for it."""
        most = self.patience.max_connections
        if len(self.connections) < most or self.make_room():
            return True
        if self._keeps_place is not None and len(self.connections) < most + KEPT and self._keeps_place(ends):
            return True
        self.turned_away += 1
        return False

    def make_room(self) -> bool:
        """Close a connection that nobody would miss; whether there was one."""
        found: Connection | None = None
        for each in tuple(islice(self.connections, LOOKED_AT)):
            del self.connections[each]
            self.connections[each] = None
            if each.is_spare and (found is None or not each.is_known):
                found = each
                if not each.is_known:
                    break
        if found is None:
            return False
        self.made_room += 1
        self.remove(found)
        found.abort()
        return True

    def news(self) -> dict[str, int] | None:
        """Who had to go or was not let in since the start, where these are more than was told and it is time."""
        total = self.turned_away + self.made_room
        if total == self._told or self.clock() < self._next_news_at:
            return None
        self._told, self._next_news_at = total, self.clock() + NEWS_SECONDS
        return {"most": self.patience.max_connections, "turnedAway": self.turned_away, "madeRoom": self.made_room}

    def add(self, connection: Connection) -> None:
        """A connection is there."""
        self.connections[connection] = None
        self.emptied.clear()

    def remove(self, connection: Connection) -> None:
        """It is closed."""
        self.connections.pop(connection, None)
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
