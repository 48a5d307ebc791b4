"""Which peer may name the tenant of a request.

Decides the pool's trusted peer: its header, the digest of its secret, and which value of the header stands for which
tenant. Pure.

Invariants:

1. A peer without a good secret is no peer: a secret that is gone or weak is gone from the identity.
2. A value stands for one tenant: that of the older quota. The name of a tenant is its value where its quota names none.
3. The header has no other meaning here, and a value cannot come from two headers that were joined by a comma.
4. A quota that does not parse keeps the values that it had, and a pool that does not parse its peer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kvquota_api.pod_config import PoolIdentity, TrustedPeer, key_digest
from kvquota_api.sidecar_spec import ClientIdentity, TrustedHeader
from kvquota_api.tenant_quota import TenantQuota
from kvquota_operator.reconcile.observed import InvalidSeen, KeyFound, KeyProblem, Observed
from kvquota_operator.reconcile.standing import Standing
from kvquota_operator.reconcile.strength import MINIMUM_BITS, strength_bits

OWN_PREFIX: Final = "x-kvquota-"
_FIELD: Final = "spec.sidecar.identity.trustedHeader"
_TAKEN: Final = frozenset(
    {
        *("authorization", "x-api-key", "cookie", "host", "connection", "keep-alive", "te", "trailer", "upgrade"),
        *("transfer-encoding", "content-length", "content-type", "content-encoding", "accept", "accept-encoding"),
        *("expect", "user-agent", "x-request-id", "x-session-id", "x-vllm-priority", "x-data-parallel-rank"),
    }
)


@dataclass(frozen=True, slots=True)
class Peering:
    """`problems`: by a quota's name, what is wrong with its value. `problem`: what is wrong with the pool's part.

    `unread`: the quotas whose value says nothing, since the pool has no such header.
    """

    peer: TrustedPeer | None = None
    problem: KeyProblem | None = None
    problems: Mapping[str, KeyProblem] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()


def peering_of(observed: Observed, pepper: str, stored: PoolIdentity | None, standings: Iterable[Standing]) -> Peering:
    """The peer, None where none is trusted; the order of `standings` decides who has a value that two quotas name.

    `stored`: the identity so far.
    """
    before = None if stored is None else stored.trusted_peer
    counted = [each for each in standings if each.tenant is not None]
    if isinstance(observed.pool, InvalidSeen):
        return Peering() if before is None else _with_values(before.name, before.secret, before, counted)
    identity = observed.pool.spec.sidecar.identity
    if identity.trusted_header is None:
        valued = (each for each in counted if each.quota is not None and _own_value(each.quota) is not None)
        return Peering(unread=frozenset(each.name for each in valued))
    secret = _secret(observed, identity, identity.trusted_header, pepper)
    if isinstance(secret, KeyProblem):
        return Peering(problem=secret)
    return _with_values(identity.trusted_header.name, secret, before, counted)


def _secret(observed: Observed, identity: ClientIdentity, header: TrustedHeader, pepper: str) -> str | KeyProblem:
    """The digest of the peer's secret."""
    if _is_taken(header.name, identity.api_key_header):
        message = f"{_FIELD}.name: the header {header.name} means something else here: choose another, such as x-tenant"
        return KeyProblem("HeaderNameTaken", message)
    ref = header.shared_secret_ref
    where = f"{_FIELD}.sharedSecretRef"
    found = observed.keys.get((ref.name, ref.key))
    if not isinstance(found, KeyFound):
        problem = found or KeyProblem("APIKeyNotFound", f"Secret {ref.name} with the key {ref.key} was not found")
        return KeyProblem(problem.reason, f"{where}: {problem.message}. The header is ignored until then")
    bits = strength_bits(found.value)
    if bits >= MINIMUM_BITS:
        return key_digest(pepper, found.value)
    return KeyProblem(
        "WeakSharedSecret",
        f"{where}: the secret in Secret {ref.name}, key {ref.key}, has at most {int(bits)} bits of randomness, it needs"
        f" {MINIMUM_BITS}: make one with `kvquota keygen`. The header is ignored until then",
    )


def _is_taken(name: str, api_key_header: str) -> bool:
    folded = _folded(name)
    return folded in _TAKEN or folded.startswith(OWN_PREFIX) or folded == _folded(api_key_header)


def _folded(name: str) -> str:
    """As the sidecar reads the name of a header."""
    return name.lower().replace("_", "-")


def _with_values(name: str, secret: str, before: TrustedPeer | None, counted: Iterable[Standing]) -> Peering:
    standings = list(counted)
    unread = {each.tenant: each.name for each in standings if each.quota is None}
    kept = {} if before is None else {value: owner for value, owner in before.tenants.items() if owner in unread}
    tenants, holders = dict(kept), {value: unread[owner] for value, owner in kept.items()}
    problems = {}
    for standing in standings:
        if standing.quota is None or standing.tenant is None:
            continue
        value = _value(standing.quota)
        holder = holders.setdefault(value, standing.name)
        if holder != standing.name:
            problems[standing.name] = _conflict(standing.quota, value, holder)
        elif "," in value:
            problems[standing.name] = _joined(value)
        else:
            tenants[value] = standing.tenant
    return Peering(TrustedPeer(name=name, secret=secret, tenants=tenants), None, problems)


def _value(quota: TenantQuota) -> str:
    return _own_value(quota) or quota.spec.tenant


def _own_value(quota: TenantQuota) -> str | None:
    return None if quota.spec.identity is None else quota.spec.identity.header_value


def _conflict(quota: TenantQuota, value: str, holder: str) -> KeyProblem:
    which = "" if value != quota.spec.tenant else ", which is this tenant's name,"
    return KeyProblem(
        "HeaderValueConflict",
        f"spec.identity.headerValue: the value {value}{which} of the trusted header already stands for the tenant of"
        f" TenantQuota {holder}: give one of the two another headerValue",
    )


def _joined(value: str) -> KeyProblem:
    return KeyProblem(
        "HeaderValueAmbiguous",
        f"spec.identity.headerValue: {value} has a comma, by which proxies join two headers into one: choose a value"
        " without",
    )
