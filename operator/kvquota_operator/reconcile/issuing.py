"""Whose tokens are believed.

Decides the issuer of a pool and its keys, and what is wrong with them. Pure.

Invariants:

1. A set of keys that is missing or that cannot be used changes nothing: the last good keys of the same issuer stay, and
   the pool says so. Keys of one issuer never vouch for another.
2. The identity holds the keys alone, in one way of writing: what else is in the set makes no difference.
"""

from __future__ import annotations

from typing import Final

from kvquota_api.jwks import JwksError, canonical_jwks, read_jwks
from kvquota_api.pod_config import JwtIssuer, PoolIdentity
from kvquota_api.sidecar_spec import Jwt
from kvquota_operator.reconcile.observed import InvalidSeen, KeyFound, KeyProblem, Observed

NOT_FOUND: Final = "JWTKeysNotFound"
INVALID: Final = "JWTKeysInvalid"
_FIELD: Final = "spec.sidecar.identity.jwt.keysRef"


def issuer_of(observed: Observed, stored: PoolIdentity | None) -> tuple[JwtIssuer | None, KeyProblem | None]:
    """The issuer, None where no tokens are taken, and what is wrong with its keys; `stored`: the identity so far."""
    before = None if stored is None else stored.jwt
    if isinstance(observed.pool, InvalidSeen):
        return before, None
    spec = observed.pool.spec.sidecar.identity.jwt
    if spec is None:
        return None, None
    keys = _keys(observed.jwks)
    if isinstance(keys, str):
        return _issuer(spec, observed.key.namespace, keys), None
    if before is None or before.issuer != spec.issuer:
        return None, _said(keys, "No token is accepted until then")
    kept = "The keys that were read last stay in force; to refuse all tokens, take jwt out of the pool"
    return _issuer(spec, observed.key.namespace, before.keys), _said(keys, kept)


def _issuer(spec: Jwt, namespace: str, keys: str) -> JwtIssuer:
    return JwtIssuer(
        issuer=spec.issuer, audience=spec.audience, tenant_claim=spec.tenant_claim, namespace=namespace, keys=keys
    )


def _keys(found: KeyFound | KeyProblem | None) -> str | KeyProblem:
    if found is None:
        return KeyProblem(NOT_FOUND, "the set of keys was not found: publish it where keysRef says")
    if isinstance(found, KeyProblem):
        return found
    try:
        return canonical_jwks(read_jwks(found.value))
    except JwksError as error:
        return KeyProblem(INVALID, f"the set of keys is not used: {error}")


def _said(problem: KeyProblem, meanwhile: str) -> KeyProblem:
    return KeyProblem(problem.reason, f"{_FIELD}: {problem.message}. {meanwhile}")
