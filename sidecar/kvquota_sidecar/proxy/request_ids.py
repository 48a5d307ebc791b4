"""What a request is called: by this program, and by its client.

Decides which id an answer carries.

Invariants:

1. The engine only ever gets the id of this program's own: it names its requests by it, and two tenants' clients may
   have chosen the same.
2. A client that sent one id of its own, short and plain, is answered with it; everybody else with this program's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from kvquota_sidecar.proxy.head import Head
from kvquota_sidecar.records import LeafValue

HEADER: Final = b"x-request-id"
_NOTE: Final = "request_ids.given"  # of a head: what `_given` gave
_PLAIN: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Name(LeafValue, frozen=True):
    """`own`: this program's; `given`: the client's, None where there was none that could be taken."""

    own: str
    given: str | None = None

    @property
    def field(self) -> bytes:
        """The header line by which the client is told."""
        return f"x-request-id: {self.own if self.given is None else self.given}\r\n".encode()


def name_of(head: Head | None, own: str) -> Name:
    """The name of the request with that head, or of one whose head could not be read."""
    if head is None:
        return Name(own)
    notes = head.notes
    if _NOTE not in notes:
        notes[_NOTE] = _given(head)
    return Name(own, notes[_NOTE])


def _given(head: Head) -> str | None:
    given = head.values(HEADER)
    return given[0].decode() if len(given) == 1 and _PLAIN.fullmatch(given[0]) is not None else None


def numbered(prefix: str) -> Callable[[], str]:
    """Ids of one process: `prefix`, which no other process has, and a number."""
    return _Numbered(prefix)


class _Numbered:
    __slots__ = ("_last", "_prefix")

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._last = 0

    def __call__(self) -> str:
        self._last += 1
        return f"{self._prefix}-{self._last}"
