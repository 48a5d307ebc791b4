"""What a quota says once its tier and the defaults are filled in.

Decides, for one quota, which value holds: its own, else the tier's, else the default. Pure.

Invariants:

1. A value is taken as a whole: an own soft of 20,000 tokens replaces the tier's 5 percent, nothing of both is mixed.
2. soft and hard are two values: an own soft leaves the tier's hard in place.

It does not know how much a share is in blocks (`blocks`), nor the other quotas of the pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvquota_api.model_pool import Tier
from kvquota_api.quota import Enforcement, KvQuota, Share
from kvquota_api.tenant_quota import Scope, TenantQuota

DEFAULT_PRIORITY: Final = 0  # of 0 to 1000: who says nothing comes last
_NO_TIER: Final = Tier(name="none")


@dataclass(frozen=True, slots=True)
class EffectiveQuota:
    """One tenant's quota with nothing left open. `tenant` is "namespace/tenant", `quota` the TenantQuota's name.

    `soft` None: no guarantee. `hard` None: the whole pool. The two limits None: no limit of the tenant's own.
    """

    tenant: str
    quota: str
    priority: int
    scope: Scope
    soft: Share | None
    hard: Share | None
    max_concurrent_requests: int | None
    max_context_tokens: int | None
    enforcement: Enforcement


@dataclass(frozen=True, slots=True)
class UnknownTier:
    """The quota names a tier that the pool does not have; `known` are those it has, by name."""

    tier: str
    known: tuple[str, ...]


def tenant_id(quota: TenantQuota) -> str:
    """The tenant's identity everywhere: "namespace/tenant"."""
    return f"{quota.metadata.namespace}/{quota.spec.tenant}"


def effective_quota(quota: TenantQuota, tiers: Iterable[Tier]) -> EffectiveQuota | UnknownTier:
    """The quota with the values of its tier and the defaults filled in."""
    spec = quota.spec
    by_name = {tier.name: tier for tier in tiers}
    if spec.tier is not None and spec.tier not in by_name:
        return UnknownTier(spec.tier, tuple(sorted(by_name)))
    tier = by_name[spec.tier] if spec.tier is not None else _NO_TIER
    own, shared = spec.kv or KvQuota(), tier.kv or KvQuota()
    priority = spec.priority if spec.priority is not None else tier.priority
    return EffectiveQuota(
        tenant=tenant_id(quota),
        quota=quota.metadata.name,
        priority=DEFAULT_PRIORITY if priority is None else priority,
        scope=spec.scope,
        soft=own.soft or shared.soft,
        hard=own.hard or shared.hard,
        max_concurrent_requests=spec.max_concurrent_requests or tier.max_concurrent_requests,
        max_context_tokens=spec.max_context_tokens or tier.max_context_tokens,
        enforcement=spec.enforcement,
    )
