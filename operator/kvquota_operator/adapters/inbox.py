"""From the thread of kopf to the loop of the operator: the newest event of every object, until it is taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kvquota_operator.adapters.api import Json
from kvquota_operator.reconcile.observed import Kind

Take = Callable[[Kind, str | None, Json], None]


class Inbox:
    """Holds at most one event per object: only the newest one counts, and DELETED is the last that comes."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[tuple[Kind, str], tuple[str | None, Json]] = {}
        self._filled = asyncio.Event()

    def deliver(self, kind: Kind, event: str | None, body: Json) -> None:
        """From any thread. `event` is ADDED, MODIFIED or DELETED, None in a first list."""
        self._loop.call_soon_threadsafe(self._put, kind, event, body)

    async def run(self, take: Take) -> None:
        """Hand over what comes, until cancelled."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            waiting, self._waiting = self._waiting, {}
            for (kind, _), (event, body) in waiting.items():
                take(kind, event, body)

    def _put(self, kind: Kind, event: str | None, body: Json) -> None:
        self._waiting[kind, body["metadata"]["uid"]] = (event, body)
        self._filled.set()
