"""API keys and other keys, as Secrets and ConfigMaps hold them.

The pool's own Secret is read by `kvquota_operator.reconcile.manifests`.

Decides which keys a pool and its quotas name, which Secrets may hold one, and why one cannot be read. Pure. Invariants:

1. A key is taken only from a Secret of type kvquota.dev/api-key: naming another Secret in a quota or a pool never shows
   its content to anybody, nor whether a key is in it.
2. A problem says what to do about it.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kvquota_api.meta import API_KEY_SECRET_TYPE
from kvquota_api.model_pool import ModelPool
from kvquota_api.resource import KeyRef
from kvquota_api.sidecar_spec import JwtKeys
from kvquota_api.tenant_quota import TenantQuota
from kvquota_operator.reconcile.issuing import NOT_FOUND as SET_NOT_FOUND
from kvquota_operator.reconcile.observed import InvalidSeen, KeyFound, KeyProblem

NOT_FOUND: Final = "APIKeyNotFound"
WRONG_TYPE: Final = "WrongSecretType"
UNREADABLE: Final = "APIKeyUnreadable"


@dataclass(frozen=True, slots=True)
class KeySecret:
    """What is kept of a Secret that a quota or a pool names: its type, and its entries only where that allows it."""

    type: str
    data: Mapping[str, str] = field(repr=False)


def secret_refs(pool: ModelPool | InvalidSeen, quotas: Iterable[TenantQuota]) -> set[tuple[str, str]]:
    """(Secret, key in it) of all that the pool and its quotas name."""
    return {(ref.name, ref.key) for ref in (*_of_pool(pool), *(ref for quota in quotas for ref in _of_quota(quota)))}


def jwks_ref(pool: ModelPool | InvalidSeen) -> JwtKeys | None:
    """Where the keys of the pool's issuer are; None where it takes no tokens."""
    jwt = None if isinstance(pool, InvalidSeen) else pool.spec.sidecar.identity.jwt
    return None if jwt is None else jwt.keys_ref


def _of_pool(pool: ModelPool | InvalidSeen) -> Iterator[KeyRef]:
    keys = jwks_ref(pool)
    if keys is not None and keys.secret is not None:
        yield keys.secret
    header = None if isinstance(pool, InvalidSeen) else pool.spec.sidecar.identity.trusted_header
    if header is not None:
        yield header.shared_secret_ref


def _of_quota(quota: TenantQuota) -> Iterable[KeyRef]:
    identity = quota.spec.identity
    return () if identity is None else (each.secret_ref for each in identity.api_keys)


def read_key_set(config_map: Mapping[str, Any] | None, ref: KeyRef) -> KeyFound | KeyProblem:
    """The text in one entry of a ConfigMap; `config_map` is None where there is none of that name."""
    if config_map is None:
        return KeyProblem(SET_NOT_FOUND, f"ConfigMap {ref.name} does not exist: create it with the set under {ref.key}")
    data = config_map.get("data")
    text = data.get(ref.key) if isinstance(data, Mapping) else None
    if not isinstance(text, str) or not text:
        return KeyProblem(SET_NOT_FOUND, f"ConfigMap {ref.name} has no text under {ref.key}: put the set there")
    return KeyFound(text)


def keep_key_secret(body: Mapping[str, Any]) -> KeySecret:
    """A Secret as the API server has it (`data`, in base64), or as a file may have it (`stringData`)."""
    kind = str(body.get("type") or "Opaque")
    if kind != API_KEY_SECRET_TYPE:
        return KeySecret(kind, {})
    plain = {key: binascii.b2a_base64(str(value).encode()).decode() for key, value in _entries(body, "stringData")}
    return KeySecret(kind, {**dict(_entries(body, "data")), **plain})


def read_key(secret: KeySecret | None, name: str, key: str) -> KeyFound | KeyProblem:
    """The API key in one entry; `secret` is None where there is no Secret of that name."""
    if secret is None:
        return KeyProblem(NOT_FOUND, f"Secret {name} does not exist: create it with type {API_KEY_SECRET_TYPE}")
    if secret.type != API_KEY_SECRET_TYPE:
        return KeyProblem(
            WRONG_TYPE,
            f"Secret {name} has type {secret.type}, and keys are only read from type {API_KEY_SECRET_TYPE}:"
            " create a new Secret of that type (the type of a Secret cannot be changed)",
        )
    if key not in secret.data:
        return KeyProblem(NOT_FOUND, f"Secret {name} has no key {key}: add it, or name another one")
    value = _text(secret.data[key])
    if not value:
        return KeyProblem(UNREADABLE, f"key {key} of Secret {name} is empty or no text: write the API key into it")
    return KeyFound(value)


def _entries(body: Mapping[str, Any], part: str) -> list[tuple[str, str]]:
    return list((body.get(part) or {}).items())


def _text(encoded: str) -> str:
    """The value without the line break that `echo` and editors leave at the end; "" where it is no text."""
    try:
        return b64decode(encoded, validate=False).decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        return ""
