"""The signatures of tokens, verified by PyJWT.

Loaded only where a pool takes tokens: PyJWT and what it stands on take about 9 MiB.
"""

from __future__ import annotations

from typing import Any

from jwt.algorithms import get_default_algorithms

from kvquota_api.jwks import PublicKey


class Signatures:
    """Of one set of keys, each loaded when it is first asked for."""

    def __init__(self) -> None:
        self._ways = get_default_algorithms()
        self._loaded: dict[PublicKey, Any] = {}

    def is_good(self, signed: bytes, signature: bytes, key: PublicKey, algorithm: str) -> bool:
        """Whether `key`, of the set, signed it. `algorithm`: one of the key's own."""
        way = self._ways[algorithm]
        if key not in self._loaded:
            self._loaded[key] = way.from_jwk({"kty": key.kind, **dict(key.figures)})
        return way.verify(signed, self._loaded[key], signature)
