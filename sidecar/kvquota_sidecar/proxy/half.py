"""A client that has closed its half of a connection: whether it still listens.

Nothing tells it but sending: a client that has gone answers with a reset, which takes as long as the way there and
back. Nothing wakes this program for it, as a transport that has read to the end reads no more: so it is looked for.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final, Protocol

from kvquota_sidecar.clock import Clock
from kvquota_sidecar.proxy import peers
from kvquota_sidecar.proxy.answers import CONTINUE
from kvquota_sidecar.proxy.head import Head

# After something was sent, each after the one before. (Of any length: the compiler takes a short one to pieces.)
LOOKS_SECONDS: Final[tuple[float, ...]] = (0.001, 0.004, 0.01, 0.02)


class Halved(Protocol):
    """The connection."""

    @property
    def is_served(self) -> bool:
        """Whether it is in a request, and is not full: else it makes no difference whether the client listens."""

    def abort(self) -> None:
        """Cut it."""


class Half:
    """Made when the client has closed its half. `seconds`: for the next word of an answer that was begun."""

    __slots__ = ("_clock", "_connection", "_gone_at", "_looking", "_seconds", "_transport")

    def __init__(self, connection: Halved, transport: asyncio.Transport, clock: Clock, seconds: float) -> None:
        self._connection = connection
        self._transport = transport
        self._clock = clock
        self._seconds = seconds
        self._looking = False
        self._gone_at = math.inf  # when one that does not show whether it listens is taken to have gone

    def sound_out(self, head: Head | None, *, begun: bool) -> None:
        """Find out whether it listens. `head`: of the request that is being answered; `begun`: the answer was."""
        if begun:  # nothing can be put into it: its next part will tell
            self._gone_at = self._clock() + self._seconds
        elif head is not None and head.minor == 1:
            self._transport.write(CONTINUE)
            self.sent()
        elif head is not None and head.method == "POST":
            self._connection.abort()  # HTTP/1.0 has no interim answers, and who has gone must not hold anything

    def sent(self) -> None:
        """Something was sent to it."""
        self._gone_at = math.inf
        if not self._looking:
            self._look_later(0)

    def look(self) -> None:
        """Cut the connection if the client has gone."""
        if peers.has_reset(self._transport) or self._clock() >= self._gone_at:
            self._connection.abort()

    def _look_later(self, number: int) -> None:
        self._looking = number < len(LOOKS_SECONDS)
        if self._looking:
            asyncio.get_running_loop().call_later(LOOKS_SECONDS[number], self._look, number)

    def _look(self, number: int) -> None:
        self._looking = False
        if self._connection.is_served:
            self.look()
            self._look_later(number + 1)
