"""The resource TenantQuota: one tenant's share of one pool.

Decides its fields, their bounds and what one quota can decide about itself. Pure. What a quota means beside the other
quotas of its pool is decided by the operator and said in `status.conditions`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import Field, StrictBool

from kvquota_api.conditions import Condition
from kvquota_api.list_map import ListMap
from kvquota_api.quota import (
    Enforcement,
    KvAmount,
    KvQuota,
    MaxConcurrentRequests,
    MaxContextTokens,
    Priority,
    RecentCounts,
)
from kvquota_api.resource import Count, KeyRef, LocalRef, Metadata, Model, StatusModel, readable_or_none
from kvquota_api.rules import Rule, immutable
from kvquota_api.words import HeaderValue, ReasonWord, TenantName, TierName

Scope = Literal["PerReplica", "Pool"]

MAX_API_KEYS: Final = 16  # of one quota: enough to rotate keys of several clients, few enough to look each up


class ApiKey(Model):
    """One API key of the tenant."""

    secret_ref: KeyRef
    """The Secret (of type kvquota.dev/api-key) and its key that holds the API key: at least 128 random bits."""


class TenantIdentity(Model):
    """How requests of this tenant are told from others."""

    api_keys: Annotated[tuple[ApiKey, ...], Field(max_length=MAX_API_KEYS)] = ()
    """API keys that clients of this tenant send; several, so that they can be rotated. Default: none."""
    header_value: HeaderValue | None = None
    """What the pool's trusted header says for this tenant; read only from a peer that proves itself.
    Default: the tenant's name."""

    rules = (
        Rule(
            cel="has(self.headerValue) || (has(self.apiKeys) && self.apiKeys.size() > 0)",
            message="name at least one API key or a headerValue, or leave identity out",
            holds=lambda identity: identity.header_value is not None or bool(identity.api_keys),
        ),
    )


class TenantDegradation(Model):
    """What may be done to this tenant's requests when memory is short. Nothing, unless it is allowed here."""

    allow_truncation: StrictBool = False
    """Long requests may lose their oldest turns or get a smaller output limit; the answer says so."""
    allow_smaller_model: StrictBool = False
    """Requests may be answered by the pool's fallback, a shorter context, then the smaller model, and are told."""
    instead_of_refusal: StrictBool = False
    """A request that would be refused for now gets what is allowed above instead."""

    rules = (
        Rule(
            cel="!self.insteadOfRefusal || self.allowTruncation || self.allowSmallerModel",
            message="insteadOfRefusal needs something to do instead: set allowTruncation or allowSmallerModel",
            holds=lambda each: not each.instead_of_refusal or each.allow_truncation or each.allow_smaller_model,
            field="insteadOfRefusal",
        ),
    )


class TenantQuotaSpec(Model):
    """One tenant's share of one pool. What is not set here comes from the tier, else from the default."""

    tenant: TenantName
    """Name of the tenant; its identity everywhere is namespace/tenant. Cannot be changed."""
    model_pool_ref: LocalRef
    """The ModelPool (kvmp) of the same namespace that this is a share of. Cannot be changed."""
    tier: TierName | None = None
    """Name of a tier of the pool, whose values hold where this quota has none of its own. Default: no tier."""
    priority: Priority | None = None
    """Higher is more important: over-soft work of the lowest priority goes first. Never reaches into anyone's soft.
    Default: that of the tier, else 0."""
    scope: Scope = "PerReplica"
    """PerReplica: hard and maxConcurrentRequests hold on each pod. Pool: they hold over all pods together. soft is
    always per pod."""
    kv: KvQuota | None = None
    """The tenant's share of the KV cache. Default: that of the tier, else soft nothing and hard the whole pool."""
    max_concurrent_requests: MaxConcurrentRequests | None = None
    """Sequences in flight at the same time; a request with n: 4 counts 4. Default: that of the tier, else no limit."""
    max_context_tokens: MaxContextTokens | None = None
    """Tokens of prompt and output of one sequence. Default: that of the tier, else the model's maximum."""
    degradation: TenantDegradation = TenantDegradation()
    """What may be done to this tenant's requests when memory is short."""
    identity: TenantIdentity | None = None
    """How requests of this tenant are told from others. Default: nothing tells them, so only the pool's anonymousTenant
    can be it."""
    enforcement: Enforcement = "Enforce"
    """Enforce: refuse what passes the quota. Shadow: only count it (wouldReject); a Shadow tenant has no guarantee."""

    change_rules = (
        immutable("tenant", "tenant", "tenant cannot be changed: create a new TenantQuota and delete this one"),
        immutable(
            "modelPoolRef",
            "model_pool_ref",
            "modelPoolRef cannot be changed: create a new TenantQuota for the other pool and delete this one",
        ),
    )


class LastRefusal(StatusModel):
    """The refusal that a client of this tenant saw last."""

    code: Annotated[str, Field(min_length=1, max_length=64)]
    """Its code, as in the answer."""
    message: Annotated[str, Field(max_length=1024)]
    """Its sentence, as in the answer."""
    time: datetime
    """When it was sent."""


class ReviewedShare(StatusModel):
    """What the quota was worth by the plan that it was last reviewed for."""

    plan_hash: Annotated[str, Field(max_length=64)]
    """Names that plan."""
    generation: Count
    """The generation of the quota at that time: one that was edited since counts as reviewed."""
    soft: KvAmount | None = None
    """The guarantee on each pod by that plan."""
    hard: KvAmount | None = None
    """The ceiling by that plan."""


class TenantQuotaStatus(StatusModel):
    """What is in force and what was observed. A number that nobody measured is missing, never 0."""

    observed_generation: Count | None = None
    """The generation of the spec that this status is about."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), ListMap("type")] = ()
    """Ready, QuotaWithinCapacity, UsageObserved, GuaranteeKept, Degraded."""
    state: ReasonWord | None = None
    """The conditions in one word, for kubectl get."""
    priority: Priority | None = None
    """The priority in force, from the quota, its tier or the default."""
    soft: KvAmount | None = None
    """The guarantee on each pod, by the plan that planHash names."""
    hard: KvAmount | None = None
    """The ceiling by that plan: on each pod with scope PerReplica, over all pods with scope Pool."""
    plan_hash: Annotated[str, Field(max_length=64)] | None = None
    """Names the pool's plan by which soft and hard were worked out. A pod that was started by an earlier one has the
    shares by that; the pool's condition PartitionApplied names it."""
    reviewed: ReviewedShare | None = None
    """What soft and hard were before the pool's plan changed, until somebody has reviewed that."""
    reserved: KvAmount | None = None
    """Promised to this tenant's running requests, over all pods that report."""
    used: KvAmount | None = None
    """Filled by this tenant's running requests so far, over all pods that report."""
    over_soft: KvAmount | None = None
    """Reserved beyond the guarantee: borrowed, first to go."""
    in_flight: Count | None = None
    """Sequences that run now."""
    recent: RecentCounts | None = None
    """What happened in the last ten minutes."""
    prefix_hit_rate_percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """Percent of this tenant's prompt tokens that the engine found in its prefix cache, in the last ten minutes."""
    last_refusal: LastRefusal | None = None
    """The refusal that a client of this tenant saw last."""


class TenantQuota(Model):
    """One tenant's share of one pool's KV cache: a guarantee (soft), a ceiling (hard), and what to do when it is short.

    `kubectl get tq` shows SOFT, HARD and USED in tokens.
    """

    api_version: Literal["kvquota.dev/v1alpha1"] = "kvquota.dev/v1alpha1"
    kind: Literal["TenantQuota"] = "TenantQuota"
    metadata: Metadata
    spec: TenantQuotaSpec
    """The share that the administrator grants."""
    status: Annotated[TenantQuotaStatus | None, readable_or_none] = None
    """What the operator says of it."""
