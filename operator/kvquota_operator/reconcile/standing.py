"""Which quotas count, and as what.

Decides for every quota of the pool whether it is granted as it says, as an earlier config has it, or not at all. Pure.

Invariants:

1. A tenant has at most one quota that counts: the oldest, by creation and then by name.
2. A quota that cannot be understood any more keeps the share that the pods have of it, and comes first: what is in
   force gives way to nobody until a person decides.
3. One bad quota never takes another one's share.

It does not know how large a share is, nor anything of API keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from kvquota_api.model_pool import ModelPool
from kvquota_api.pod_config import MAX_TENANTS, PodConfig, TenantShare
from kvquota_api.tenant_quota import TenantQuota
from kvquota_operator.planning.effective import EffectiveQuota, UnknownTier, effective_quota, tenant_id
from kvquota_operator.reconcile.basis import INVALID_SPEC
from kvquota_operator.reconcile.observed import InvalidSeen, Observed, QuotaSeen
from kvquota_operator.reconcile.verdicts import Verdict

_ALWAYS: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Standing:
    """How one quota stands. `tenant`: whose share it is, None where it has none.

    `effective`: what is granted as the quota says; None with a tenant: the share of the pods' configs stays.
    `problem`: why the quota does not count as it is written. `quota`: None where it does not parse.
    """

    name: str
    uid: str
    generation: int
    status: Mapping[str, Any]
    tenant: str | None = None
    effective: EffectiveQuota | None = None
    problem: Verdict | None = None
    quota: TenantQuota | None = None

    @property
    def kept(self) -> bool:
        """Whether the share is that of the pods' configs."""
        return self.tenant is not None and self.effective is None


def standings(observed: Observed, configs: Iterable[PodConfig]) -> tuple[Standing, ...]:
    """All quotas of the pool: those that do not parse by name, then by age. `configs`: durable ones, newest first."""
    return tuple(_in_turn(observed, latest_shares(configs)))


def _in_turn(observed: Observed, shares: Mapping[str, TenantShare]) -> Iterator[Standing]:
    claimed: dict[str, str] = {}
    for invalid in sorted(observed.invalid, key=lambda each: each.name):
        yield _claim(claimed, _invalid(invalid, claimed, shares))
    for seen in sorted(observed.quotas, key=lambda each: age(each.quota)):
        yield _claim(claimed, _valid(seen, observed, claimed, shares))


def latest_shares(configs: Iterable[PodConfig]) -> dict[str, TenantShare]:
    """By a quota's name, its share in the first of `configs` that has one."""
    shares: dict[str, TenantShare] = {}
    for config in configs:
        for share in config.tenants:
            shares.setdefault(share.quota, share)
    return shares


def age(quota: TenantQuota) -> tuple[datetime, str]:
    """What quotas are ordered by: creation, then name; one without a creation time counts as the oldest."""
    return quota.metadata.creation_timestamp or _ALWAYS, quota.metadata.name


def _claim(claimed: dict[str, str], standing: Standing) -> Standing:
    if standing.tenant is not None:
        claimed[standing.tenant] = standing.name
    return standing


def _invalid(seen: InvalidSeen, claimed: Mapping[str, str], shares: Mapping[str, TenantShare]) -> Standing:
    tenant = _kept_tenant(seen.name, claimed, shares)
    return Standing(
        seen.name,
        seen.uid,
        seen.generation,
        seen.status,
        tenant=tenant,
        problem=Verdict("False", INVALID_SPEC, f"{seen.message}. {_meanwhile(tenant)}"),
    )


def _valid(
    seen: QuotaSeen, observed: Observed, claimed: Mapping[str, str], shares: Mapping[str, TenantShare]
) -> Standing:
    quota, meta = seen.quota, seen.quota.metadata
    if isinstance(observed.pool, InvalidSeen):
        tenant = _kept_tenant(meta.name, claimed, shares)
        return _with_problem(seen, tenant, _pool_invalid(observed, tenant))
    taken = _taken(quota, claimed)
    if taken is not None:
        return _with_problem(seen, None, taken)
    effective = effective_quota(quota, observed.pool.spec.tiers)
    if isinstance(effective, UnknownTier):
        tenant = _kept_tenant(meta.name, claimed, shares)
        return _with_problem(seen, tenant, _tier_not_found(observed.pool, effective, tenant))
    return Standing(
        meta.name, meta.uid, meta.generation, seen.status, tenant=effective.tenant, effective=effective, quota=quota
    )


def _with_problem(seen: QuotaSeen, tenant: str | None, problem: Verdict) -> Standing:
    meta = seen.quota.metadata
    return Standing(meta.name, meta.uid, meta.generation, seen.status, tenant=tenant, problem=problem, quota=seen.quota)


def _kept_tenant(name: str, claimed: Mapping[str, str], shares: Mapping[str, TenantShare]) -> str | None:
    share = shares.get(name)
    return share.id if share is not None and share.id not in claimed else None


def _meanwhile(tenant: str | None) -> str:
    if tenant is None:
        return "It has no share of the pool until this is corrected"
    return "The share that the pods have of it stays in force until this is corrected"


def _pool_invalid(observed: Observed, tenant: str | None) -> Verdict:
    message = f"ModelPool {observed.key.name} cannot be read: correct it as its condition PlanValid says"
    return Verdict("False", "PoolInvalid", f"{message}. {_meanwhile(tenant)}")


def _taken(quota: TenantQuota, claimed: Mapping[str, str]) -> Verdict | None:
    holder = claimed.get(tenant_id(quota))
    if holder is not None:
        return Verdict(
            "False",
            "DuplicateTenant",
            f"tenant {quota.spec.tenant} already has a share of ModelPool {quota.spec.model_pool_ref.name} by the older"
            f" TenantQuota {holder}, which stays in force: change that one, or delete one of the two",
        )
    if len(claimed) >= MAX_TENANTS:
        return Verdict(
            "False",
            "TooManyTenants",
            f"ModelPool {quota.spec.model_pool_ref.name} has {MAX_TENANTS} older quotas, the most that a pool can have:"
            " delete some, or make another pool",
        )
    return None


def _tier_not_found(pool: ModelPool, unknown: UnknownTier, tenant: str | None) -> Verdict:
    known = ", ".join(unknown.known) or "none"
    message = (
        f"spec.tier: ModelPool {pool.metadata.name} has no tier {unknown.tier} (it has: {known}): name one of those,"
        " or add the tier to the pool"
    )
    return Verdict("False", "TierNotFound", f"{message}. {_meanwhile(tenant)}")
