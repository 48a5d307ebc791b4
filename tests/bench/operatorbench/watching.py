"""What people see of pools and quotas: every status that is written, and when a watch showed it."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Any, Final

from api_calls import Calls, Object
from site_objects import NAMESPACE

from kvquota_api.meta import API_VERSION

PLURALS: Final = ("modelpools", "tenantquotas")


def collection(plural: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/{plural}"


class StatusWatch:
    """`writes`: when a status was written (its resourceVersion changed and its generation did not).

    `in_flight`: by quota, every value that was shown, with the time.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.objects: dict[tuple[str, str], Object] = {}
        self.writes: list[float] = []
        self.in_flight: dict[str, list[tuple[float, int]]] = defaultdict(list)

    def status(self, plural: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.objects.get((plural, name), {}).get("status") or {}
        return found

    def writes_between(self, start: float, end: float) -> list[float]:
        return [at for at in self.writes if start <= at < end]

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for plural in PLURALS:
                tasks.create_task(self._follow(plural))

    async def _follow(self, plural: str) -> None:
        listed = await self._calls.get(collection(plural))
        for body in listed["items"]:
            self._take(plural, body)
        async for event in self._calls.watch(collection(plural), listed["metadata"]["resourceVersion"]):
            if event["type"] == "ERROR":
                raise RuntimeError(f"the watch of {plural} ended: {event['object'].get('message')}")
            self._take(plural, event["object"])

    def _take(self, plural: str, body: Object) -> None:
        now, name = time.monotonic(), body["metadata"]["name"]
        before = self.objects.get((plural, name))
        self.objects[plural, name] = body
        if before is not None and before["metadata"]["generation"] == body["metadata"]["generation"]:
            self.writes.append(now)
        shown = (body.get("status") or {}).get("inFlight")
        if plural == "tenantquotas" and shown is not None:
            self.in_flight[name].append((now, shown))
