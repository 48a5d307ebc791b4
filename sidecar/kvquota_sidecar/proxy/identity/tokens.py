"""JSON Web Tokens of one issuer, decoded and verified by PyJWT.

Decides which key a token has to be signed by, and whether it still holds; the time is given. Signature, issuer and
audience are PyJWT's.

Invariants:

1. The algorithm is that of a key of ours, never the token's own choice; a token that brings its key along, or asks for
   something that is not understood here, is none (RFC 7515, section 4.1; RFC 8725, section 3).
2. Issuer and audience are exactly those of the pool; the token has an end, and it has not come.
3. Nobody is told what was wrong: all that fails is unknown.

Loaded only where a pool takes tokens: PyJWT and what it stands on take about 9 MiB.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import jwt
from jwt.types import Options

from kvquota_api.jwks import PublicKey, read_jwks
from kvquota_api.pod_config import JwtIssuer
from kvquota_sidecar.proxy.identity.naming import NOBODY, Owner

LEEWAY_SECONDS: Final = 30.0  # how far the clocks of issuer and node may be apart
MAX_TOKEN_BYTES: Final = 16_384  # bounds what is decoded; tokens with many groups have about 8,000

# PyJWT passes over what is no base64url, so that one token could be written in many ways.
_SHAPE: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
# Keys and addresses of keys that the token brings along, what must be understood (crit, b64), what hides it (enc, zip).
_FOREIGN: Final = frozenset({"jwk", "jku", "x5u", "x5c", "crit", "b64", "enc", "zip"})
# The times are looked at below, by a clock that is given; the others mean nothing here.
_OPTIONS: Final = Options(
    require=["exp"],
    verify_exp=False,
    verify_nbf=False,
    verify_iat=False,
    verify_sub=False,
    verify_jti=False,
)


class Tokens:
    """See the module."""

    def __init__(self, issuer: JwtIssuer) -> None:
        """Raises JwksError."""
        self._issuer = issuer
        self._keys = read_jwks(issuer.keys)
        self._loaded: dict[PublicKey, Any] = {}

    def owner(self, credential: bytes, now: float) -> Owner:
        """Whom a token names, NOBODY where it is not for us. `now` in Unix seconds."""
        if len(credential) > MAX_TOKEN_BYTES or _SHAPE.fullmatch(credential) is None:
            return NOBODY
        try:
            claims = self._verified(credential)
        except jwt.PyJWTError:
            return NOBODY
        return self._named_by(claims, now)

    def _verified(self, text: bytes) -> dict[str, Any]:
        """Raises PyJWTError."""
        header = jwt.get_unverified_header(text)
        fitting = [each for each in self._keys if _fits(each, header)] if _FOREIGN.isdisjoint(header) else []
        if len(fitting) != 1:
            raise jwt.InvalidKeyError
        key, issuer = fitting[0], self._issuer
        if key not in self._loaded:
            self._loaded[key] = jwt.PyJWK({"kty": key.kind, **dict(key.figures)}, key.algorithms[0]).key
        return jwt.decode(
            text,
            self._loaded[key],
            algorithms=key.algorithms,
            audience=issuer.audience,
            issuer=issuer.issuer,
            options=_OPTIONS,
        )

    def _named_by(self, claims: dict[str, Any], now: float) -> Owner:
        tenant, start, end = claims.get(self._issuer.tenant_claim), claims.get("nbf", -math.inf), claims["exp"]
        if not (isinstance(tenant, str) and isinstance(start, int | float) and isinstance(end, int | float)):
            return NOBODY
        until = end + LEEWAY_SECONDS
        holds = start - LEEWAY_SECONDS <= now < until < math.inf
        return Owner(f"{self._issuer.namespace}/{tenant}", until) if holds else NOBODY


def _fits(key: PublicKey, header: dict[str, Any]) -> bool:
    """Whether a token may be signed by it: of its key id, and without one whichever there is for its algorithm."""
    return header.get("kid", key.key_id) == key.key_id and header.get("alg") in key.algorithms
