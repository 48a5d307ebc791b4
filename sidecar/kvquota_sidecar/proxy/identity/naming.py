"""Whom one credential names: the three kinds that there are. The time is given."""

from __future__ import annotations

import hmac
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvquota_api.jwks import JwksError
from kvquota_api.pod_config import PoolIdentity, TrustedPeer, key_digest

if TYPE_CHECKING:
    from kvquota_sidecar.proxy.identity.tokens import Tokens

MAX_KEY_BYTES: Final = 4096  # hashed where it was not seen before; real keys have under 200


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom a credential names, "" for nobody, and until when (Unix seconds)."""

    tenant: str
    until: float = math.inf


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


def tokens_of(identity: PoolIdentity) -> Tokens | None:
    """Its issuer's tokens; None where the pool takes none, or has no key for them that this version can read."""
    if identity.jwt is None:
        return None
    from kvquota_sidecar.proxy.identity.tokens import Tokens  # noqa: PLC0415 - 9 MiB that others save

    try:
        return Tokens(identity.jwt)
    except JwksError:
        return None


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
