"""Who a client is.

Decides which tenant a request belongs to, from its credentials alone. Pure.

Invariants:

1. A credential is an API key, looked up by its keyed digest; the key itself is neither kept nor written anywhere.
2. Two credentials of one kind, or two kinds that disagree, are a contradiction, never a choice.
3. No header that names a tenant is believed.
4. A tenant that the config does not know is unknown, whatever the identity says.
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
    keys = _keys(head, directory.config.api_key_header.lower().encode())
    if keys is None or len(set(keys)) > 1:
        return Failure.CONTRADICTION
    tenant = _owner(keys[0], directory.identity) if keys else ""
    if tenant in directory.tenants:
        return tenant
    return directory.config.anonymous_tenant or Failure.UNKNOWN


def credential_headers(directory: Directory) -> frozenset[bytes]:
    """The headers that hold credentials, in lower case."""
    return frozenset({b"authorization", ANTHROPIC_KEY_HEADER, directory.config.api_key_header.lower().encode()})


def _keys(head: Head, header: bytes) -> list[bytes] | None:
    """The keys that were sent, at most one for each header; None where one header came twice."""
    names = [header, ANTHROPIC_KEY_HEADER] if head.path == "/v1/messages" else [header]
    keys = []
    for name in dict.fromkeys(names):
        values = head.values(name)
        if len(values) > 1:
            return None
        keys += [_key(name, value) for value in values]
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
