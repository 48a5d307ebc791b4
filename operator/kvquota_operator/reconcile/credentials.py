"""Who the clients of the pool are.

Decides which API key stands for which tenant, and what is wrong with a key; and puts the pool's identity together, with
the issuer of tokens (`issuing`) and the trusted peer (`peering`). Pure.

Invariants:

1. The identity holds digests of keys under the pool's pepper, never a key; no message holds one.
2. A key stands for one tenant: the one with the older quota.
3. A key that is missing, weak or taken leaves all other keys as they are.
4. A quota that does not parse keeps the keys that it had; a key that is gone from its Secret is gone from the identity.
5. An identity that is too large to be stored is given to nobody: of the one before stays what is still wanted.
6. Keys follow the quotas also while pods are awaited: a key that is gone is gone at once, and a new one may come before
   its tenant's share does. A pod refuses a tenant without a share like an unknown key.

It does not know how a key is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from kvquota_api.meta import API_KEY_SECRET_TYPE
from kvquota_api.pod_config import PoolIdentity, encode, key_digest, sealed
from kvquota_api.resource import KeyRef
from kvquota_operator.reconcile.amounts import KIB
from kvquota_operator.reconcile.issuing import issuer_of
from kvquota_operator.reconcile.observed import KeyProblem, Observed
from kvquota_operator.reconcile.peering import peering_of
from kvquota_operator.reconcile.plan import SecretWanted
from kvquota_operator.reconcile.standing import Standing
from kvquota_operator.reconcile.strength import MINIMUM_BITS, strength_bits


@dataclass(frozen=True, slots=True)
class Credentials:
    """`secret`: the wanted content of the pool's Secret. `problems`: by a quota's name, what is wrong with its keys.

    `pool_problems`: what is wrong with what the pool itself says of its clients. `unread`: quotas with a value for a
    header that the pool does not have.
    """

    secret: SecretWanted | None
    problems: Mapping[str, tuple[KeyProblem, ...]]
    pool_problems: tuple[KeyProblem, ...] = ()
    unread: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Owner:
    tenant: str
    quota: str


def credentials_of(observed: Observed, standings: Iterable[Standing]) -> Credentials:
    """Who may use the pool; the order of `standings` decides who has a key or a value that two quotas name."""
    pepper = "" if observed.secret is None else observed.secret.pepper
    stored = _stored(observed)
    found = [each for each in standings if each.tenant is not None]
    keys, problems = _keys(observed, found, pepper, stored)
    issuer, problem = issuer_of(observed, stored)
    peering = peering_of(observed, pepper, stored, found)
    for quota, wrong in peering.problems.items():
        problems[quota] = (*problems.get(quota, ()), wrong)
    wanted = PoolIdentity(digest="", pepper=pepper, api_keys=keys, jwt=issuer, trusted_peer=peering.peer)
    too_large = _too_large(wanted, observed.max_identity_bytes)
    identity = wanted if too_large is None else _still_wanted(stored, wanted)
    wrong_of_pool = tuple(each for each in (too_large, problem, peering.problem) if each is not None)
    return Credentials(_secret(observed, identity), problems, wrong_of_pool, peering.unread)


def _too_large(identity: PoolIdentity, max_bytes: int | None) -> KeyProblem | None:
    size = 0 if max_bytes is None else len(encode(sealed(identity)))
    if max_bytes is None or size <= max_bytes:
        return None
    return KeyProblem(
        "IdentityTooLarge",
        f"the identity of the pool takes {-(-size // KIB):,} KiB, and a Secret that holds one can have"
        f" {max_bytes // KIB:,} KiB: the pods keep the keys and header values that they have, without those that were"
        " taken away since, and new ones do not count. Remove API keys or TenantQuotas of this pool, or give some of"
        " its tenants another pool",
    )


def _still_wanted(stored: PoolIdentity | None, wanted: PoolIdentity) -> PoolIdentity:
    """Of the identity so far, what is in the wanted one too."""
    if stored is None:
        return msgspec.structs.replace(wanted, api_keys={}, jwt=None, trusted_peer=None)
    peer, before = wanted.trusted_peer, stored.trusted_peer
    if peer is not None:
        peer = None if before is None else msgspec.structs.replace(peer, tenants=_common(before.tenants, peer.tenants))
    keys = _common(stored.api_keys, wanted.api_keys)
    jwt = None if wanted.jwt is None else stored.jwt
    return msgspec.structs.replace(wanted, api_keys=keys, jwt=jwt, trusted_peer=peer)


def _common(before: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    return {name: tenant for name, tenant in before.items() if wanted.get(name) == tenant}


def _stored(observed: Observed) -> PoolIdentity | None:
    """The identity so far; None where it is of another pepper."""
    seen = observed.secret
    return None if seen is None or seen.identity is None or seen.identity.pepper != seen.pepper else seen.identity


def _keys(
    observed: Observed, standings: Iterable[Standing], pepper: str, stored: PoolIdentity | None
) -> tuple[dict[str, str], dict[str, tuple[KeyProblem, ...]]]:
    """The tenants of all keys by their digests, and by a quota's name what is wrong with its own."""
    counted = [(each, _Owner(each.tenant or "", each.name)) for each in standings]
    owners = _kept(stored, {owner.tenant: owner for standing, owner in counted if standing.quota is None})
    problems: dict[str, tuple[KeyProblem, ...]] = {}
    for standing, owner in counted:
        found = [_judged(observed, ref, pepper, owner, owners) for ref in _refs(standing)]
        wrong = tuple(each for each in found if each is not None)
        if wrong:
            problems[standing.name] = wrong
    return {digest: owner.tenant for digest, owner in owners.items()}, problems


def _refs(standing: Standing) -> tuple[KeyRef, ...]:
    identity = None if standing.quota is None else standing.quota.spec.identity
    return () if identity is None else tuple(each.secret_ref for each in identity.api_keys)


def _kept(stored: PoolIdentity | None, unread: Mapping[str, _Owner]) -> dict[str, _Owner]:
    known = {} if stored is None else stored.api_keys
    return {digest: unread[tenant] for digest, tenant in known.items() if tenant in unread}


def _judged(
    observed: Observed, ref: KeyRef, pepper: str, claimant: _Owner, owners: dict[str, _Owner]
) -> KeyProblem | None:
    found = observed.keys.get((ref.name, ref.key)) or _not_found(ref)
    if isinstance(found, KeyProblem):
        return found
    bits = strength_bits(found.value)
    if bits < MINIMUM_BITS:
        return _weak(ref, bits)
    owner = owners.setdefault(key_digest(pepper, found.value), claimant)
    return None if owner == claimant else _conflict(ref, owner)


def _secret(observed: Observed, identity: PoolIdentity) -> SecretWanted | None:
    seen = observed.secret
    return None if seen is None else SecretWanted(seen.token, seen.pepper, sealed(identity))


def _not_found(ref: KeyRef) -> KeyProblem:
    return KeyProblem(
        "APIKeyNotFound",
        f"Secret {ref.name} with the key {ref.key} was not found: create it with the type {API_KEY_SECRET_TYPE}",
    )


def _weak(ref: KeyRef, bits: float) -> KeyProblem:
    return KeyProblem(
        "WeakAPIKey",
        f"the API key in Secret {ref.name}, key {ref.key}, has at most {int(bits)} bits of randomness, it needs"
        f" {MINIMUM_BITS}: make one with `kvquota keygen`",
    )


def _conflict(ref: KeyRef, owner: _Owner) -> KeyProblem:
    return KeyProblem(
        "APIKeyConflict",
        f"the API key in Secret {ref.name}, key {ref.key}, is already that of TenantQuota {owner.quota} and stands for"
        " its tenant: make another one with `kvquota keygen`",
    )
