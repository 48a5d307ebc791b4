"""Config and identity of one moment, with what is asked of them for every request."""

from __future__ import annotations

from typing import Final

from kvquota_api.pod_config import PodConfig, PoolIdentity
from kvquota_sidecar.proxy.head import Headers
from kvquota_sidecar.proxy.identity.naming import NOBODY, Keys, Owner, Peer, tokens_of
from kvquota_sidecar.proxy.identity.remembering import Remembered

ANTHROPIC_KEY_HEADER: Final = b"x-api-key"
PEER_SECRET_HEADER: Final = b"x-kvquota-peer-secret"  # of ours, so it is never passed on
# What stands for a peer's headers in another spelling than theirs, such as `x_tenant`. No header has an empty name.
MISSPELT: Final = (b"", b"")
_AUTHORIZATION: Final = b"authorization"
_MESSAGES: Final = "/v1/messages"


class Directory:
    """`tenants`: the ids that the config knows.

    Headers are named in lower case and with `-`: `X_Api_Key` is `x-api-key`, so that nobody reads the two apart. The
    headers of a peer alone go by their own spelling: a gateway that takes `x-tenant` out of what its clients send may
    let `x_tenant` pass. `credential_names`: those that may hold a key or a token. `peer_name`: the one in which a peer
    names a tenant, "" where none is trusted. `watched`: all that say who the sender is, with `-`. `wanted`: what is
    said to somebody whom nobody knows. `stamp`: what is noted elsewhere by this Directory
    is noted beside it, so that nothing else holds a Directory that is not in force any more.
    """

    def __init__(self, config: PodConfig, identity: PoolIdentity | None) -> None:
        own = folded(config.api_key_header.lower().encode())
        peer = None if identity is None else identity.trusted_peer
        self.stamp = object()
        self.config = config
        self.identity = identity
        self.tenants = frozenset(share.id for share in config.tenants)
        self._priorities = {share.id: share.priority for share in config.tenants}
        self.credential_names = frozenset({_AUTHORIZATION, ANTHROPIC_KEY_HEADER, own})
        self.peer_name = b"" if peer is None else peer.name.lower().encode()
        if folded(self.peer_name) in self.credential_names:  # a header with two meanings is read as the other one is
            self.peer_name = folded(self.peer_name)
        self._peer_names = frozenset[bytes]() if peer is None else frozenset({self.peer_name, PEER_SECRET_HEADER})
        self._peer_folded = frozenset(folded(name) for name in self._peer_names)
        self._names = self.credential_names | self._peer_names
        self.watched = self.credential_names | self._peer_folded
        self.remembered = Remembered(b"" if identity is None else identity.pepper.encode())
        self.peer = None if identity is None or peer is None else Peer(peer, identity.pepper)
        self._keys = None if identity is None else Keys(identity)
        self._tokens = None if identity is None else tokens_of(identity)
        self._places = (own,) if self._tokens is None else (own, _AUTHORIZATION)
        self.wanted = _wanted(config, identity)

    def priority(self, tenant: str) -> int:
        """Of a tenant that the config knows: 0 to 1000, higher is more important."""
        return self._priorities[tenant]

    def presented(self, headers: Headers) -> Headers:
        """The headers that say who the sender is, in the order received, and MISSPELT once where there was such."""
        names = self._names
        if b"_" in self.peer_name or b"_" in b"".join([name for name, _ in headers]):  # rare: looked for in one go
            headers = self._folded(headers)
        return tuple([pair for pair in headers if pair[0] in names or pair[0] == MISSPELT[0]])

    def _folded(self, headers: Headers) -> Headers:
        read = [(self._read(name), value) for name, value in headers]
        good = tuple([pair for pair in read if pair[0] != MISSPELT[0]])
        return good if len(good) == len(read) else (*good, MISSPELT)

    def _read(self, name: bytes) -> bytes:
        plain = folded(name)
        if plain not in self._peer_folded:
            return plain
        return name if name in self._peer_names else MISSPELT[0]

    def places(self, path: str) -> tuple[bytes, ...]:
        """The headers that a sender may be known by on a route; the first that is there counts."""
        return (*self._places, ANTHROPIC_KEY_HEADER) if path.startswith(_MESSAGES) else self._places

    def mark(self, path: str, presented: Headers) -> bytes:
        """What these credentials are remembered by on this route."""
        return self.remembered.mark(b"messages" if path.startswith(_MESSAGES) else b"", presented)

    def owner(self, credential: bytes, now: float) -> Owner:
        """Whom a key or a token names. `now` in Unix seconds."""
        owner = NOBODY if self._keys is None else self._keys.owner(credential)
        return owner if owner.tenant or self._tokens is None else self._tokens.owner(credential, now)


def folded(name: bytes) -> bytes:
    """The one way in which a header's name is read here."""
    return name.replace(b"_", b"-")


def _wanted(config: PodConfig, identity: PoolIdentity | None) -> str:
    """What this pool takes, in a sentence that is the same whatever was wrong."""
    name = config.api_key_header
    place = "Authorization: Bearer KEY" if name.lower() == "authorization" else f"{name}: KEY"
    ways = [f"Send an API key of this model pool as '{place}'"]
    if identity is not None and identity.jwt is not None:
        ways.append(f"send a token of {identity.jwt.issuer} as 'Authorization: Bearer TOKEN'")
    if identity is not None and identity.trusted_peer is not None:
        ways.append("come through the gateway that this pool trusts")
    return f"No tenant is known by these credentials. {', or '.join(ways)}."
