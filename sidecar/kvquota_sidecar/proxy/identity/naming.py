"""Whom one credential names: the three kinds that there are. The time is given."""

from __future__ import annotations

import hmac
from typing import Final

from kvquota_api.jwks import JwksError, read_jwks
from kvquota_api.pod_config import JwtIssuer, PoolIdentity, TrustedPeer, key_digest
from kvquota_sidecar.proxy.identity.tokens import Owner, named_by, signing_key, take_apart

MAX_KEY_BYTES: Final = 4096  # hashed where it was not seen before; real keys have under 200
NOBODY: Final = Owner("")


class Keys:
    """API keys, by their keyed digest. A key that is listed is a key, also where it looks like a token."""

    def __init__(self, identity: PoolIdentity) -> None:
        self._identity = identity

    def owner(self, credential: bytes) -> Owner:
        text = _text(credential)
        if not text:
            return NOBODY
        return Owner(self._identity.api_keys.get(key_digest(self._identity.pepper, text), ""))


class Tokens:
    """Tokens of one issuer."""

    def __init__(self, issuer: JwtIssuer) -> None:
        from kvquota_sidecar.proxy.identity.signatures import Signatures  # noqa: PLC0415 - 9 MiB that others save

        self._issuer = issuer
        self._keys = read_jwks(issuer.keys)
        self._signatures = Signatures()

    @classmethod
    def of(cls, identity: PoolIdentity) -> Tokens | None:
        """None where the pool takes none, or its keys are none that this version can read."""
        try:
            return None if identity.jwt is None else cls(identity.jwt)
        except JwksError:
            return None

    def owner(self, credential: bytes, now: float) -> Owner:
        token = take_apart(credential)
        key = None if token is None else signing_key(token, self._keys)
        if token is None or key is None:
            return NOBODY
        named = named_by(token, self._issuer, now)
        if named is None or not self._signatures.is_good(token.signed, token.signature, key, token.algorithm):
            return NOBODY
        return named


class Peer:
    """The peer that names a tenant in a header and shows its secret in another."""

    def __init__(self, peer: TrustedPeer, pepper: str) -> None:
        self._peer = peer
        self._pepper = pepper

    def names(self, secret: bytes, value: bytes | None) -> Owner | None:
        """Nobody, where the secret is another one; None where the peer names no tenant (`value` is None)."""
        shown = key_digest(self._pepper, _text(secret))
        if not hmac.compare_digest(shown.encode(), self._peer.secret.encode()):
            return NOBODY
        return None if value is None else Owner(self._peer.tenants.get(_text(value), ""))


def _text(value: bytes) -> str:
    """The value as text; "" where it is none, or longer than any that is looked up."""
    if len(value) > MAX_KEY_BYTES:
        return ""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return ""
