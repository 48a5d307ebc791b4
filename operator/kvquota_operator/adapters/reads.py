"""Single objects that may only be read by name, and are not watched: Secrets, and the ConfigMap with a model's config.

Invariants:

1. An object is read again after about 30 s, or at once when somebody says that it may have changed.
2. A failed read keeps what was known: an API server that is away takes no tenant's key away. Not found is no failure.
3. Only what `keep` takes of an object stays in memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from kvquota_operator.adapters.api import REQUEST_TIMEOUT_SECONDS, Api, Json, find
from kvquota_operator.ports import Clock, ClusterError

FRESH_SECONDS: Final = 30.0  # how late a rotated key works, at worst
RETRY_SECONDS: Final = 5.0  # after a failed read of what is known
KNOWN_TIMEOUT_SECONDS: Final = 2.0  # a pass does not wait longer for what it knows already
UNUSED_SECONDS: Final = 300.0  # what nobody asked for in this time is forgotten

T = TypeVar("T")


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T | None
    fresh_until: float
    used_at: float


class Reads(Generic[T]):
    """Objects of one kind, by their path."""

    def __init__(self, api: Api, clock: Clock, keep: Callable[[Json], T]) -> None:
        self._api = api
        self._clock = clock
        self._keep = keep
        self._entries: dict[str, _Entry[T]] = {}

    async def get(self, path: str) -> T | None:
        """What is kept of the object; None where there is none. Raises ClusterError where nothing is known of it."""
        entry, now = self._entries.get(path), self._clock.monotonic()
        if entry is not None and now < entry.fresh_until:
            entry.used_at = now
            return entry.value
        try:
            value = await self._read(path, KNOWN_TIMEOUT_SECONDS if entry else REQUEST_TIMEOUT_SECONDS)
        except ClusterError:
            if entry is None:
                raise
            self._entries[path] = _Entry(entry.value, now + RETRY_SECONDS, now)
            return entry.value
        self._store(path, value)
        return value

    def known(self, path: str) -> T | None:
        """What is kept of the object, without asking; None also where nothing is known of it."""
        entry = self._entries.get(path)
        return None if entry is None else entry.value

    def put(self, path: str, body: Json) -> None:
        """Take the object as it is in the answer to a write."""
        self._store(path, self._keep(body))

    def expire(self, prefix: str) -> None:
        """What is below this path may have changed: read it again when it is next asked for."""
        for path, entry in self._entries.items():
            if path.startswith(prefix):
                entry.fresh_until = 0.0

    def sweep(self) -> None:
        """Forget what nobody asks for any more."""
        since = self._clock.monotonic() - UNUSED_SECONDS
        self._entries = {path: entry for path, entry in self._entries.items() if entry.used_at > since}

    async def _read(self, path: str, seconds: float) -> T | None:
        body = await find(self._api.get(path, timeout_seconds=seconds))
        return None if body is None else self._keep(body)

    def _store(self, path: str, value: T | None) -> None:
        now = self._clock.monotonic()
        spread = random.uniform(0.75, 1.0)  # noqa: S311 - spreads reads, protects nothing
        self._entries[path] = _Entry(value, now + FRESH_SECONDS * spread, now)
