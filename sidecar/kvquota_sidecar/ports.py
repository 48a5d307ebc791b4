"""The two ports: their sockets, their connections, and what happens where these are too many.

Invariants:

1. Connections of clients cannot take the descriptors that the admin port, the engine and files need: of both ports
   there are no more than `places` allows, wherever they come from.
2. Where descriptors run out all the same, connections that nobody would miss are closed for them.
3. That connections were too many is told, once in a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from kvquota_sidecar import descriptors
from kvquota_sidecar.channel.admin import AdminContext
from kvquota_sidecar.descriptors import Places
from kvquota_sidecar.door import Door
from kvquota_sidecar.listening import Listeners, Sockets
from kvquota_sidecar.proxy.client_side import ClientConnection
from kvquota_sidecar.proxy.hub import NEWS_SECONDS, Hub
from kvquota_sidecar.proxy.secured import TlsClientConnection
from kvquota_sidecar.proxy.traffic import Admittance
from kvquota_sidecar.telemetry.journal import Journal
from kvquota_sidecar.tls import Certificate

FLUSH_SECONDS: Final = 2.0  # for the last bytes to clients that read, when everything else is over
MADE_ROOM_AT_ONCE: Final = 16  # connections that are closed in one look, where no descriptor is left


class Ports:
    """`traffic` and `admin`: all connections of each. `certificate`: of the traffic port; None: plain."""

    def __init__(
        self,
        traffic: Hub[Admittance],
        admin: Hub[AdminContext],
        *,
        certificate: Certificate | None,
        places: Places,
        journal: Journal,
    ) -> None:
        self._traffic = traffic
        self._admin = admin
        self._hubs: dict[str, Hub[Any]] = {"traffic": traffic, "admin": admin}
        self._certificate = certificate
        self._places = places
        self._journal = journal
        self._servers: list[asyncio.Server] = []
        self._doors: list[Door] = []
        self._any_open = -1
        self._next_complaint_at = 0.0

    async def listen(self, listeners: Listeners) -> None:
        """Take the sockets, without accepting anything yet. Raises OSError."""
        self._any_open = listeners.admin[0].fileno()
        if self._certificate is None:
            await self._listen_on(listeners.traffic, lambda: ClientConnection(self._traffic))
        else:
            certificate, connection = self._certificate, lambda: TlsClientConnection(self._traffic)
            self._doors = [Door(each, certificate, self._traffic, connection) for each in listeners.traffic]
        await self._listen_on(listeners.admin, lambda: ClientConnection(self._admin))

    async def start(self) -> None:
        """Accept connections."""
        for server in self._servers:
            await server.start_serving()
        for door in self._doors:
            door.open(self._places.backlog)

    def tick(self) -> None:
        """Close what has waited too long, and tell where it is too much; to be called a few times a second."""
        for port, hub in self._hubs.items():
            hub.expire()
            if (taken := hub.news()) is not None:
                self._journal.write("connections_full", port=port, **taken)
        if self._servers and descriptors.are_used_up(self._any_open):
            self._make_room()

    async def close(self) -> None:
        """End every connection; those that read get what was sent to them."""
        for server in self._servers:
            server.close()
        for door in self._doors:
            door.close()
        self._servers.clear()
        for hub in self._hubs.values():
            hub.close_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                for hub in self._hubs.values():
                    await hub.emptied.wait()
        for hub in self._hubs.values():
            hub.abort_all()

    # The inside.

    async def _listen_on(self, sockets: Sockets, connection: Callable[[], asyncio.Protocol]) -> None:
        loop, backlog = asyncio.get_running_loop(), self._places.backlog
        for each in sockets:
            self._servers.append(await loop.create_server(connection, sock=each, backlog=backlog, start_serving=False))

    def _make_room(self) -> None:
        """The loop does not tell that it could not accept."""
        for _ in range(MADE_ROOM_AT_ONCE):
            if not self._traffic.make_room():
                break
        now = self._traffic.clock()
        if now >= self._next_complaint_at:
            self._next_complaint_at = now + NEWS_SECONDS
            self._journal.write("descriptors_used_up", openFiles=descriptors.limit())
