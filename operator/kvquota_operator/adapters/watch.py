"""A collection of the API server, mirrored in memory by a watch that does not die quietly.

List, then watch from there. Invariants:

1. `items` is never emptied by a failure: what was known stays until a new list says otherwise.
2. Whatever ends a watch, another one begins: after 410 Gone, and after anything that is not understood, with a new
   list; else from the last resourceVersion that was seen, bookmarks included.
3. Waits between failures grow only while nothing is heard: a connection that is cut again and again, and says something
   each time, is back at once.
4. Before it goes on from a version, the server is asked for its own. Where that is behind, its store was put back, and
   a list takes the place of all that is known: from a version that is not there yet nothing would be told.
5. An answer to our own write and its late event do no harm (`kvquota_operator.adapters.shelf`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from kvquota_operator.adapters.api import Api, Json
from kvquota_operator.adapters.shelf import Shelf, number
from kvquota_operator.logs import told
from kvquota_operator.ports import (
    Clock,
    ClusterError,
    ClusterTimeoutError,
    ExpiredError,
    PutBackError,
    ThrottledError,
    VanishedError,
)

FIRST_RETRY_SECONDS: Final = 0.2
LONGEST_RETRY_SECONDS: Final = 15.0  # how late a watch is back, at worst, after the API server is
_KNOWN_EVENTS: Final = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK"})

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Collection:
    """What is mirrored: the path of a collection and a label selector."""

    path: str
    selector: str = ""


class Mirror(Generic[T]):
    """`parse` gives what is kept of an object, or None where it is of no interest.

    `replaced` is called with what was and what is, also where these are equal; and with nothing after the first list.
    `ended`: as of `kvquota_operator.adapters.shelf`.
    `heard_at`: when the API server last said something of the collection, if only that it is still there; before that,
    when the mirror was made. `tried_at`: when it was last asked.
    """

    def __init__(
        self,
        api: Api,
        clock: Clock,
        collection: Collection,
        *,
        parse: Callable[[Json], T | None],
        replaced: Callable[[T | None, T | None], None],
        restarted: Callable[[str], None] = lambda _: None,
        ended: Callable[[T], None] | None = None,
    ) -> None:
        self.collection = collection
        self.listed = asyncio.Event()
        self.shelf: Shelf[T] = Shelf(parse, replaced, ended)
        self.heard_at = self.tried_at = clock.monotonic()
        self._api = api
        self._clock = clock
        self._replaced = replaced
        self._restarted = restarted
        self._version = ""
        self._failures = 0
        self._noted = logging.NOTSET

    @property
    def items(self) -> Mapping[str, T]:
        """What is known, by uid."""
        return self.shelf.items

    async def run(self) -> None:
        """Keep the mirror until cancelled."""
        while True:
            self.tried_at = self._clock.monotonic()
            try:
                if self._version:
                    await self._compare()
                else:
                    await self._list()
                await self._follow()
            except ClusterError as error:
                self._failures += 1
                self._note(error)
                await asyncio.sleep(_pause(self._failures, error))
            else:
                self._works()
                await asyncio.sleep(FIRST_RETRY_SECONDS)

    def _works(self) -> None:
        """The server said something: what breaks next is the first failure."""
        self._failures, self._noted = 0, logging.NOTSET

    def _note(self, error: ClusterError) -> None:
        """A position that the server no longer knows is of no use; after any other failure the watch goes on there."""
        if isinstance(error, VanishedError | ExpiredError):
            self._version = ""
        self._restarted(error.reason)
        level = self._level(error)
        news, self._noted = level > self._noted, max(level, self._noted)
        log.log(
            level if news else logging.DEBUG,
            "%s: watch broke: %s; trying again",
            self.collection.path,
            error,
            extra=told("watch_broke", path=self.collection.path, reason=error.reason),
        )

    def _level(self, error: ClusterError) -> int:
        """The first bookmark of a quiet collection may come after twice the usual time: one silence is no warning."""
        if isinstance(error, VanishedError | ExpiredError):
            return logging.DEBUG
        silence = isinstance(error, ClusterTimeoutError) and self._failures == 1
        return logging.INFO if silence else logging.WARNING

    async def _compare(self) -> None:
        """Raises PutBackError where the server is not as far as the watch was."""
        version = await self._api.version_of(self.collection.path, self.collection.selector)
        if number(version) < number(self._version):
            raise PutBackError(f"its version is {version} after {self._version}: its store was put back")

    async def _list(self) -> None:
        self.shelf.ask()
        found, version = await self._api.list(self.collection.path, self.collection.selector)
        self.heard_at = self._clock.monotonic()
        self.shelf.replace(found, version)
        self._version = version
        if not self.listed.is_set():
            self.listed.set()
            self._replaced(None, None)

    async def _follow(self) -> None:
        async for event in self._api.watch(self.collection.path, self._version, self.collection.selector):
            kind, body = event.get("type"), event.get("object") or {}
            if kind not in _KNOWN_EVENTS:
                raise ExpiredError(f"the watch ended with {kind} {body.get('code')}: {body.get('message')}")
            self.heard_at = self._clock.monotonic()
            self._works()
            self._version = body["metadata"]["resourceVersion"]
            if kind == "DELETED":
                self.shelf.remove(body)
            elif kind != "BOOKMARK":
                self.shelf.put(body)


def _pause(failures: int, error: ClusterError) -> float:
    doubled = min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 10), LONGEST_RETRY_SECONDS)
    asked = error.retry_after or 0.0 if isinstance(error, ThrottledError) else 0.0
    return max(asked, doubled * random.uniform(0.75, 1.0))  # noqa: S311 - spreads retries, protects nothing
