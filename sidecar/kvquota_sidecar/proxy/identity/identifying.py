"""Who a client is.

Decides which tenant a request belongs to, from its credentials alone. Pure.

Invariants:

1. A credential is an API key, looked up by its keyed digest; the key itself is neither kept nor written anywhere.
2. Two credentials of one kind, or two kinds that name different tenants or of which one names nobody, are a
   contradiction, never a choice. It does not matter whether the route would look at both.
3. No header that names a tenant is believed.
4. A tenant that the config does not know is unknown, whatever the identity says.
5. The engine sees one credential at most: the one that the sender is known by.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from kvquota_api.pod_config import PodConfig, PoolIdentity, key_digest
from kvquota_sidecar.proxy.head import Head


class Failure(Enum):
    """Why a request has no tenant."""

    CONTRADICTION = "its credentials disagree"
    UNKNOWN = "nobody knows them"


ANTHROPIC_KEY_HEADER: Final = b"x-api-key"
_BEARER: Final = b"bearer "
MAX_KEY_BYTES: Final = 4096  # hashed on every request; real keys have under 200


@dataclass(frozen=True, slots=True)
class Directory:
    """Config and identity of one moment, with what is asked of them for every request."""

    config: PodConfig
    identity: PoolIdentity | None
    tenants: frozenset[str]

    @classmethod
    def of(cls, config: PodConfig, identity: PoolIdentity | None) -> Directory:
        return cls(config, identity, frozenset(share.id for share in config.tenants))


def identify(head: Head, directory: Directory) -> str | Failure:
    """The tenant's id ("namespace/tenant"), or why there is none."""
    keys = _keys(head, directory)
    if keys is None:
        return Failure.CONTRADICTION
    owners = {key: _owner(key, directory.identity) for key in keys.values()}
    if len(owners) > 1 and (len(set(owners.values())) > 1 or "" in owners.values()):
        return Failure.CONTRADICTION
    known_by = next((name for name in _names_on(head.path, directory) if name in keys), None)
    tenant = "" if known_by is None else owners[keys[known_by]]
    if tenant in directory.tenants:
        return tenant
    return directory.config.anonymous_tenant or Failure.UNKNOWN


def credential_headers(directory: Directory) -> frozenset[bytes]:
    """The headers that hold credentials, in lower case."""
    return frozenset({b"authorization", ANTHROPIC_KEY_HEADER, _own_header(directory)})


def to_withhold(head: Head, directory: Directory) -> frozenset[bytes]:
    """The headers with credentials that the engine does not get to see, in lower case."""
    names = credential_headers(directory)
    if directory.config.authorization == "Remove":
        return names
    known_by = next((name for name in _names_on(head.path, directory) if head.values(name)), None)
    return names if known_by is None else names - {known_by}


def _own_header(directory: Directory) -> bytes:
    return directory.config.api_key_header.lower().encode()


def _names_on(path: str, directory: Directory) -> tuple[bytes, ...]:
    """The headers that a sender may be known by on a route; the first that is there counts."""
    own = _own_header(directory)
    return (own, ANTHROPIC_KEY_HEADER) if path == "/v1/messages" else (own,)


def _keys(head: Head, directory: Directory) -> dict[bytes, bytes] | None:
    """The key in every header that may hold one; None where one header came twice."""
    keys = {}
    for name in credential_headers(directory):
        values = head.values(name)
        if len(values) > 1:
            return None
        if values:
            keys[name] = _key(name, values[0])
    return keys


def _key(name: bytes, value: bytes) -> bytes:
    if name != b"authorization":
        return value
    return value[len(_BEARER) :].strip(b" \t") if value[: len(_BEARER)].lower() == _BEARER else b""


def _owner(key: bytes, identity: PoolIdentity | None) -> str:
    if identity is None or not key or len(key) > MAX_KEY_BYTES:
        return ""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return ""
    return identity.api_keys.get(key_digest(identity.pepper, text), "")
