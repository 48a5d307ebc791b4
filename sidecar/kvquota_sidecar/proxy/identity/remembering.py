"""Whom credentials named before.

Invariants:

1. No credential is kept: what was looked up is found again by a keyed digest, for as long as the credential holds.
2. Only who was known is remembered, and of those a bounded number: strangers push nobody out.
"""

from __future__ import annotations

import hashlib
from typing import Final

from kvquota_sidecar.proxy.head import Headers
from kvquota_sidecar.proxy.identity.naming import Owner

MAX_REMEMBERED: Final = 4096  # sets of credentials, of about 300 bytes each


class Remembered:
    """`secret` keys the digests."""

    def __init__(self, secret: bytes) -> None:
        self._key = hashlib.sha256(b"remembered:" + secret).digest()
        self._owners: dict[bytes, Owner] = {}

    def mark(self, kind: bytes, presented: Headers) -> bytes:
        """What credentials are remembered by on one kind of route. No header holds a line break."""
        parts = [self._key, kind]
        for pair in presented:
            parts += pair
        return hashlib.sha256(b"\n".join(parts)).digest()

    def recall(self, mark: bytes, now: float) -> Owner | None:
        """Whom these credentials named before, and still name at `now` (Unix seconds)."""
        owner = self._owners.get(mark)
        return owner if owner is not None and now < owner.until else None

    def keep(self, mark: bytes, owner: Owner) -> None:
        """Remember it; the oldest goes where there are too many."""
        self._owners.pop(mark, None)
        if len(self._owners) >= MAX_REMEMBERED:
            del self._owners[next(iter(self._owners))]
        self._owners[mark] = owner
