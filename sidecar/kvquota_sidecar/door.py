"""Connections of the TLS port, from the moment that they are accepted until their handshake is done.

A loop's own server keeps these to itself: who only connects would take a descriptor for HANDSHAKE_SECONDS and be
counted by nobody. (Of a plain port the connection is known at once, and the loop's server takes half the time.)

Invariants:

1. A connection in its handshake takes the place of one of the port's; where all are taken, the oldest of these goes.
2. Where no descriptor is left the port is not looked at for a moment: a loop would turn on it without end.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from kvquota_sidecar.descriptors import says_used_up
from kvquota_sidecar.proxy.hub import Hub
from kvquota_sidecar.tls import Certificate, options

AT_ONCE: Final = 64  # accepted in one turn of the loop: each costs it 50 us
PAUSE_SECONDS: Final = 0.1


class Door:
    """Of one socket. `connection` makes the protocol of one connection; `hub` has all whose handshake is done."""

    def __init__(
        self, sock: socket.socket, certificate: Certificate, hub: Hub[Any], connection: Callable[[], asyncio.Protocol]
    ) -> None:
        self._socket = sock
        self._options = options(certificate)
        self._hub = hub
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._greeted: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._is_open = False

    def open(self, backlog: int) -> None:
        """Accept connections."""
        self._socket.setblocking(False)  # noqa: FBT003 - it takes no name
        self._socket.listen(backlog)
        self._is_open = True
        self._watch()

    def close(self) -> None:
        """Accept no more, and give up those whose handshake is not done."""
        self._is_open = False
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for each in tuple(self._greeted):
            each.cancel()

    # The inside.

    def _watch(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                client, _ = self._socket.accept()
            except OSError as error:  # mostly: nobody else is there
                if says_used_up(error):
                    self._loop.remove_reader(self._socket)
                    self._loop.call_later(PAUSE_SECONDS, self._watch)
                return
            client.setblocking(False)  # noqa: FBT003 - it takes no name
            if self._greeted and len(self._greeted) + len(self._hub.connections) >= self._hub.patience.max_connections:
                self._hub.made_room += 1
                oldest = next(iter(self._greeted))
                del self._greeted[oldest]
                oldest.cancel()
            task = self._loop.create_task(self._greet(client))
            self._greeted[task] = None
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._greeted.pop(task, None)

    async def _greet(self, client: socket.socket) -> None:
        with suppress(OSError):  # it speaks no TLS, is late, or has gone; the certificate has counted it
            await self._loop.connect_accepted_socket(self._connection, client, **self._options)
