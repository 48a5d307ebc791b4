"""JSON Web Tokens: what one says, and whether it says it to us.

Decides whether a text is a token, which key would have signed it, and whom it names. Pure; the time is given.

Invariants:

1. The algorithm is that of a key of ours, never the token's own choice; a token that brings its key along, or asks for
   something that is not understood here, is none (RFC 7515, section 4.1; RFC 8725, section 3).
2. Issuer and audience are exactly those of the pool; the token has an end, and it has not come.
3. What costs little is looked at before the signature. Nobody is told what was wrong: all that fails is unknown.

It does not verify signatures.
"""

from __future__ import annotations

import math
import re
from base64 import urlsafe_b64decode
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from kvquota_api.jwks import PublicKey
from kvquota_api.pod_config import JwtIssuer

LEEWAY_SECONDS: Final = 30.0  # how far the clocks of issuer and node may be apart
MAX_TOKEN_BYTES: Final = 16_384  # bounds what is decoded; tokens with many groups have about 8,000

_SHAPE: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
# Keys and addresses of keys that the token brings along, what must be understood (crit, b64), what hides it (enc, zip).
_FOREIGN: Final = frozenset({"jwk", "jku", "x5u", "x5c", "crit", "b64", "enc", "zip"})

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Signed:
    """A token, taken apart. `key_id`: "" where it names none."""

    algorithm: str
    key_id: str
    claims: dict[str, msgspec.Raw]
    signed: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom a credential names, "" for nobody, and until when (Unix seconds)."""

    tenant: str
    until: float = math.inf


def take_apart(text: bytes) -> Signed | None:
    """The token in a text; None where it is none that is understood here."""
    if len(text) > MAX_TOKEN_BYTES or _SHAPE.fullmatch(text) is None:
        return None
    signed, _, signature = text.rpartition(b".")
    head, _, body = signed.partition(b".")
    try:
        header, claims = _OBJECT.decode(_bytes(head)), _OBJECT.decode(_bytes(body))
        if _FOREIGN & header.keys():
            return None
        algorithm = msgspec.json.decode(header["alg"], type=str)
        key_id = msgspec.json.decode(header["kid"], type=_Text) if "kid" in header else ""
        return Signed(algorithm, key_id, claims, signed, _bytes(signature))
    except (msgspec.MsgspecError, ValueError, KeyError, RecursionError):
        return None


def signing_key(token: Signed, keys: Iterable[PublicKey]) -> PublicKey | None:
    """The only key that can have signed it: the one of its key id, or the one that there is for its algorithm."""
    fitting = [key for key in keys if token.algorithm in key.algorithms and token.key_id in ("", key.key_id)]
    return fitting[0] if len(fitting) == 1 else None


def named_by(token: Signed, issuer: JwtIssuer, now: float) -> Owner | None:
    """Whom a token names whose signature is good; None where it is not for us, not yet or no more. `now` in Unix s."""
    try:
        end, start = _time(token, "exp"), _time(token, "nbf") if "nbf" in token.claims else -math.inf
        claimed = msgspec.json.decode(token.claims[issuer.tenant_claim], type=_Text)
        if not _is_for_us(token, issuer):
            return None
    except (msgspec.MsgspecError, KeyError, RecursionError):
        return None
    until = end + LEEWAY_SECONDS
    if not start - LEEWAY_SECONDS <= now < until:
        return None
    return Owner(f"{issuer.namespace}/{claimed}", until)


def _is_for_us(token: Signed, issuer: JwtIssuer) -> bool:
    audience = msgspec.json.decode(token.claims["aud"], type=str | tuple[str, ...])
    audiences = (audience,) if isinstance(audience, str) else audience
    return msgspec.json.decode(token.claims["iss"], type=str) == issuer.issuer and issuer.audience in audiences


def _time(token: Signed, name: str) -> float:
    return msgspec.json.decode(token.claims[name], type=float)


def _bytes(text: bytes) -> bytes:
    """Of base64url without padding. Raises ValueError."""
    return urlsafe_b64decode(text + b"=" * (-len(text) % 4))
