"""Objects by uid, each in the newest version that anybody showed.

Answers to own writes and events come in any order. Invariants:

1. An answer or an event replaces an object only by a newer version of it.
2. A list replaces all that was seen before it was asked for, whatever the versions are: the API server never lists an
   older state than it has shown, unless its store was put back to one.
3. What comes while a list is under way is kept where it is newer than the list.
4. What a list or an event took away does not come back by an older event or answer.

An answer of the time before the store was put back may come after the list; it holds until the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from kvquota_operator.adapters.api import Json

T = TypeVar("T")
MOST_ENDED: Final = 1024  # that are remembered: answers that are on their way are as many as requests at once


class Shelf(Generic[T]):
    """`parse` gives what is kept of an object, or None where it is of no interest.

    `replaced` is called with what was and what is (None: nothing), also where these are equal. Before that, `ended` is
    called with what was last known of an object that ended while it was of interest.
    """

    def __init__(
        self,
        parse: Callable[[Json], T | None],
        replaced: Callable[[T | None, T | None], None],
        ended: Callable[[T], None] | None = None,
    ) -> None:
        self._parse = parse
        self._replaced = replaced
        self._tell_end = ended
        self._items: dict[str, T] = {}
        self._versions: dict[str, int] = {}
        self._ended: dict[str, int] = {}  # versions of the events that took objects away, the oldest first
        self._listed_at = 0
        self._highest = 0
        self._highest_asked = 0  # as it was when the list was asked for
        self._since: set[str] | None = None  # of what something came since then, while a list is under way

    @property
    def items(self) -> Mapping[str, T]:
        """What is known, by uid."""
        return self._items

    def knows(self, uid: str) -> bool:
        """Whether the object is there, though it may be of no interest."""
        return uid in self._versions

    def put(self, body: Json) -> None:
        """Take an object as it is in an answer or an event."""
        uid, version = body["metadata"]["uid"], number(body["metadata"]["resourceVersion"])
        least = max(self._listed_at, self._ended.get(uid, 0))
        self._hear(uid, version)
        if version > self._versions.get(uid, least):
            self._place(uid, version, body)

    def remove(self, body: Json) -> None:
        """The object is gone, or of no interest any more, as an event with this body says."""
        uid, version = body["metadata"]["uid"], number(body["metadata"]["resourceVersion"])
        self._hear(uid, version)
        self._ended[uid] = max(version, self._versions.get(uid, 0))
        if len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        last = None if self._tell_end is None or uid not in self._items else self._parse(body)
        self._take_away(uid, last)

    def ask(self) -> None:
        """A list is about to be asked for."""
        self._highest_asked = self._highest
        self._since = set()

    def replace(self, bodies: Iterable[Json], version: str) -> bool:
        """Take a whole list, as it was at `version`. Whether it shows that the store was put back."""
        at = number(version)
        found = {body["metadata"]["uid"]: body for body in bodies}
        since, self._since = self._since or set(), None
        put_back = at < self._highest_asked
        missing = [(uid, seen) for uid, seen in self._versions.items() if uid not in found]
        for uid in [uid for uid, seen in missing if seen <= at or uid not in since]:
            self._take_away(uid, self._items.get(uid))
        for uid, body in found.items():
            seen, known = number(body["metadata"]["resourceVersion"]), self._versions.get(uid, 0)
            if seen > max(known, self._ended.get(uid, 0)) or (seen != known and uid not in since):
                put_back = put_back or seen < known
                self._place(uid, seen, body)
        self._ended = {uid: ended for uid, ended in self._ended.items() if uid in since}
        self._listed_at = at
        self._highest = at if put_back else max(self._highest, at)
        return put_back

    def _hear(self, uid: str, version: int) -> None:
        self._highest = max(self._highest, version)
        if self._since is not None:
            self._since.add(uid)

    def _place(self, uid: str, version: int, body: Json) -> None:
        self._versions[uid] = version
        self._swap(uid, self._parse(body))

    def _take_away(self, uid: str, last: T | None) -> None:
        if last is not None and self._tell_end is not None:
            self._tell_end(last)
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
