"""Who the clients of the pool are.

Decides which API key stands for which tenant, and what is wrong with a key. Pure.

Invariants:

1. The identity holds digests of keys under the pool's pepper, never a key; no message holds one.
2. A key stands for one tenant: the one with the older quota.
3. A key that is missing, weak or taken leaves all other keys as they are.
4. A quota that does not parse keeps the keys that it had; a key that is gone from its Secret is gone from the identity.
5. Keys follow the quotas also while pods are awaited: a key that is gone is gone at once, and a new one may come before
   its tenant's share does. A pod refuses a tenant without a share like an unknown key.

It does not know how a key is read.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kvquota_api.meta import API_KEY_SECRET_TYPE
from kvquota_api.pod_config import PoolIdentity, key_digest, sealed
from kvquota_api.resource import KeyRef
from kvquota_operator.reconcile.observed import KeyProblem, Observed
from kvquota_operator.reconcile.plan import SecretWanted
from kvquota_operator.reconcile.standing import Standing

MINIMUM_BITS: Final = 128  # of a key, so that nobody finds one by trying
MINIMUM_VARIETY: Final = 8  # different characters: 32 random hexadecimal digits have fewer once in 20 million keys
KEY_PREFIX: Final = "kvq-"  # says what the key is for, and adds nothing to its strength


@dataclass(frozen=True, slots=True)
class Credentials:
    """`secret`: the wanted content of the pool's Secret. `problems`: by a quota's name, what is wrong with its keys."""

    secret: SecretWanted | None
    problems: Mapping[str, tuple[KeyProblem, ...]]


@dataclass(frozen=True, slots=True)
class _Owner:
    tenant: str
    quota: str


def credentials_of(observed: Observed, standings: Iterable[Standing]) -> Credentials:
    """Who may use the pool; the order of `standings` decides who has a key that two quotas name."""
    pepper = "" if observed.secret is None else observed.secret.pepper
    counted = [(each, _Owner(each.tenant, each.name)) for each in standings if each.tenant is not None]
    owners = _kept(observed, {owner.tenant: owner for standing, owner in counted if standing.quota is None})
    problems: dict[str, tuple[KeyProblem, ...]] = {}
    for standing, owner in counted:
        found = [_judged(observed, ref, pepper, owner, owners) for ref in _refs(standing)]
        wrong = tuple(each for each in found if each is not None)
        if wrong:
            problems[standing.name] = wrong
    return Credentials(_secret(observed, owners), problems)


def strength_bits(key: str) -> float:
    """Bits of randomness that a key of this length and alphabet can have at most; 0 where it hardly varies."""
    body = key.removeprefix(KEY_PREFIX)
    if len(set(body)) < MINIMUM_VARIETY:
        return 0.0
    return len(body) * math.log2(_alphabet(body))


def _alphabet(body: str) -> int:
    """How many characters the key could have been made of: the smallest alphabets that its characters are from."""
    kinds = (
        (string.digits,),
        (string.hexdigits[10:16], string.ascii_lowercase),
        (string.hexdigits[16:], string.ascii_uppercase),
        (string.punctuation,),
    )
    return sum(_smallest(kind, body) for kind in kinds)


def _smallest(alphabets: tuple[str, ...], body: str) -> int:
    found = set(body).intersection(alphabets[-1])
    return next(len(each) for each in alphabets if found.issubset(each)) if found else 0


def _refs(standing: Standing) -> tuple[KeyRef, ...]:
    identity = None if standing.quota is None else standing.quota.spec.identity
    return () if identity is None else tuple(each.secret_ref for each in identity.api_keys)


def _kept(observed: Observed, unread: Mapping[str, _Owner]) -> dict[str, _Owner]:
    seen = observed.secret
    if seen is None or seen.identity is None or seen.identity.pepper != seen.pepper:
        return {}
    return {digest: unread[tenant] for digest, tenant in seen.identity.api_keys.items() if tenant in unread}


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


def _secret(observed: Observed, owners: Mapping[str, _Owner]) -> SecretWanted | None:
    seen = observed.secret
    if seen is None:
        return None
    keys = {digest: owner.tenant for digest, owner in owners.items()}
    return SecretWanted(seen.token, seen.pepper, sealed(PoolIdentity(digest="", pepper=seen.pepper, api_keys=keys)))


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
