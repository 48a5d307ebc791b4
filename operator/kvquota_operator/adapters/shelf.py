"""Objects by uid, each in the newest version that anybody showed.

Answers to own writes, events and lists come in any order. Invariants:

1. An object is replaced only by a newer version of it.
2. A list takes away what it does not have, unless that was seen newer than the list.
3. What a list or an event took away does not come back by an older event or answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from kvquota_operator.adapters.api import Json

T = TypeVar("T")
MOST_ENDED: Final = 1024  # that are remembered: answers that are on their way are as many as requests at once


class Shelf(Generic[T]):
    """`parse` gives what is kept of an object, or None where it is of no interest.

    `replaced` is called with what was and what is (None: nothing), also where these are equal.
    """

    def __init__(self, parse: Callable[[Json], T | None], replaced: Callable[[T | None, T | None], None]) -> None:
        self._parse = parse
        self._replaced = replaced
        self._items: dict[str, T] = {}
        self._versions: dict[str, int] = {}
        self._ended: dict[str, int] = {}  # versions of the events that took objects away, the oldest first
        self._listed_at = 0

    @property
    def items(self) -> Mapping[str, T]:
        """What is known, by uid."""
        return self._items

    def put(self, body: Json) -> None:
        """Take an object as it is in an answer or an event."""
        uid, version = body["metadata"]["uid"], number(body["metadata"]["resourceVersion"])
        least = max(self._listed_at, self._ended.get(uid, 0))
        if version > self._versions.get(uid, least):
            self._place(uid, version, body)

    def remove(self, body: Json) -> None:
        """The object is gone, or of no interest any more, as an event with this body says."""
        uid, version = body["metadata"]["uid"], number(body["metadata"]["resourceVersion"])
        self._ended[uid] = max(version, self._versions.get(uid, 0))
        if len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        self._take_away(uid)

    def replace(self, bodies: Iterable[Json], version: str) -> None:
        """Take a whole list, as it was at `version`."""
        at = number(version)
        found = {body["metadata"]["uid"]: body for body in bodies}
        for uid in [uid for uid, seen in self._versions.items() if uid not in found and seen <= at]:
            self._take_away(uid)
        for uid, body in found.items():
            seen = number(body["metadata"]["resourceVersion"])
            if seen > self._versions.get(uid, 0):
                self._place(uid, seen, body)
        self._listed_at = max(self._listed_at, at)

    def _place(self, uid: str, version: int, body: Json) -> None:
        self._versions[uid] = version
        self._swap(uid, self._parse(body))

    def _take_away(self, uid: str) -> None:
        self._versions.pop(uid, None)
        self._swap(uid, None)

    def _swap(self, uid: str, item: T | None) -> None:
        before = self._items.pop(uid, None)
        if item is not None:
            self._items[uid] = item
        if before is not None or item is not None:
            self._replaced(before, item)


def number(version: str) -> int:
    """A resourceVersion as a number: the API says since 1.35 that they compare as such. Raises ValueError."""
    return int(version)
