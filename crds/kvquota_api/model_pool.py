"""The resource ModelPool: one model on one kind of GPU pod, and how its card is divided.

Decides its fields, their bounds and what one pool can decide about itself. Pure. Whether a partition fits is decided by
`kvquota_api.memory.plan`, what it means for pods and tenants by the operator; both are said in `status.conditions`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StrictInt

from kvquota_api.engine_spec import Engine
from kvquota_api.ladder import PoolDegradation
from kvquota_api.list_map import ListMap
from kvquota_api.memory_spec import Gpu, Memory
from kvquota_api.pool_status import ModelPoolStatus
from kvquota_api.quota import Enforcement, KvQuota, MaxConcurrentRequests, MaxContextTokens, Priority
from kvquota_api.resource import Metadata, Model, TokenCount, readable_or_none
from kvquota_api.rules import Rule
from kvquota_api.served_model import ServedModel
from kvquota_api.sidecar_spec import Sidecar
from kvquota_api.words import LabelKey, LabelValue, TierName

MAX_TIERS: Final = 32  # of one pool: a table that a person keeps in mind; bounds the cost of the rules in it


class LabelRequirement(Model):
    """One requirement on a pod's labels."""

    key: LabelKey
    """The label's key."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label's value relates to values: In and NotIn them; Exists and DoesNotExist ask for the key alone."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=32)] = ()
    """Values for In and NotIn. Default: none, as Exists and DoesNotExist ask for."""

    rules = (
        Rule(
            cel="(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
            message="In and NotIn need values, Exists and DoesNotExist must not have any",
            holds=lambda each: (each.operator in ("In", "NotIn")) == bool(each.values),
            field="values",
        ),
    )


class PodSelector(Model):
    """Which pods of the namespace the pool consists of. All requirements must hold."""

    match_labels: dict[str, LabelValue] = Field(default_factory=dict, max_length=32)
    """Labels that a pod must have. Default: none."""
    match_expressions: Annotated[tuple[LabelRequirement, ...], Field(max_length=32)] = ()
    """Further requirements on a pod's labels. Default: none."""

    one_value = True
    rules = (
        Rule(
            cel=(
                "(has(self.matchLabels) && self.matchLabels.size() > 0)"
                " || (has(self.matchExpressions) && self.matchExpressions.size() > 0)"
            ),
            message="the selector would match every pod: set matchLabels or matchExpressions",
            holds=lambda selector: bool(selector.match_labels or selector.match_expressions),
        ),
    )


class ContextShare(Model):
    """A length of request and how common it is."""

    context_tokens: TokenCount
    """Tokens of prompt and output."""
    weight: Annotated[StrictInt, Field(ge=1, le=1_000_000)]
    """How common it is, as a number of requests relative to the other lines."""


class Workload(Model):
    """The assumption under which capacity numbers are stated."""

    context_mix: Annotated[tuple[ContextShare, ...], Field(max_length=32), ListMap("contextTokens")] = ()
    """Lengths of requests and how common each is. Default: none."""


class Tier(Model):
    """Values that a TenantQuota takes by the tier's name; an own value of the quota replaces the tier's as a whole."""

    name: TierName
    """The name that a TenantQuota refers to."""
    priority: Priority | None = None
    """Higher is more important. Default: 0."""
    kv: KvQuota | None = None
    """The share of the KV cache. Default: soft nothing, hard the whole pool."""
    max_concurrent_requests: MaxConcurrentRequests | None = None
    """Sequences in flight at the same time. Default: no limit."""
    max_context_tokens: MaxContextTokens | None = None
    """Tokens of prompt and output of one sequence. Default: the model's maximum."""


class ModelPoolSpec(Model):
    """One model on one kind of GPU pod: the plan of its memory and how the KV part is shared."""

    selector: PodSelector
    """Which pods of the namespace the pool consists of."""
    model: ServedModel
    """The model."""
    engine: Engine
    """The engine that serves it."""
    gpu: Gpu
    """The GPUs of one pod."""
    memory: Memory = Memory()
    """The partition of one card; applied to the engine."""
    workload: Workload = Workload()
    """The assumption under which capacity numbers are stated. Default: none."""
    tiers: Annotated[tuple[Tier, ...], Field(max_length=MAX_TIERS), ListMap("name")] = ()
    """Named values for TenantQuotas of this pool. Default: none."""
    degradation: PoolDegradation = PoolDegradation()
    """What is done, in which order, when memory runs short."""
    cache_isolation: Literal["Tenant", "Shared"] = "Tenant"
    """Tenant: prefix hits only within a tenant. Shared: across tenants, who can then tell what others have sent."""
    sidecar: Sidecar = Sidecar()
    """How the sidecar stands before the engine."""
    enforcement: Enforcement = "Enforce"
    """Enforce: refuse and end what passes quotas. Shadow: only count it, for a first roll-out."""

    rules = (
        Rule(
            cel=(
                "self.gpu.count >= self.engine.parallelism.tensor * self.engine.parallelism.pipeline"
                " * self.engine.parallelism.data"
            ),
            message="tensor times pipeline times data is more than gpu.count: raise it or lower engine.parallelism",
            holds=lambda spec: spec.gpu.count >= spec.engine.parallelism.gpus,
            field="gpu.count",
        ),
        Rule(
            cel="!has(self.model.valueCacheDtype) || self.engine.type == 'LlamaCpp'",
            message="valueCacheDtype is llama.cpp's: leave it out or set engine.type LlamaCpp",
            holds=lambda spec: spec.model.value_cache_dtype is None or spec.engine.type == "LlamaCpp",
            field="model.valueCacheDtype",
        ),
        Rule(
            cel="self.sidecar.takeover != 'Port' || self.engine.port >= 1024",
            message="the sidecar cannot take a port below 1024: serve on a higher one, or set sidecar.takeover None",
            holds=lambda spec: spec.sidecar.takeover != "Port" or spec.engine.port >= 1024,
            field="engine.port",
        ),
        Rule(
            cel=(
                "self.engine.port != self.sidecar.adminPort"
                " && (!has(self.sidecar.port) || self.engine.port != self.sidecar.port)"
            ),
            message="engine.port is taken by the sidecar: change sidecar.adminPort or sidecar.port",
            holds=lambda spec: spec.engine.port not in (spec.sidecar.admin_port, spec.sidecar.port),
            field="sidecar",
        ),
    )


class ModelPool(Model):
    """One model on one kind of GPU pod: how its card is divided, and how its KV cache is shared between tenants."""

    api_version: Literal["kvquota.dev/v1alpha1"] = "kvquota.dev/v1alpha1"
    kind: Literal["ModelPool"] = "ModelPool"
    metadata: Metadata
    spec: ModelPoolSpec
    """The plan that the administrator makes."""
    status: Annotated[ModelPoolStatus | None, readable_or_none] = None
    """What the operator says of it."""

    rules = (
        Rule(
            cel=(
                "!has(self.spec.degradation.fallback) || !has(self.spec.degradation.fallback.modelPoolRef)"
                " || self.spec.degradation.fallback.modelPoolRef.name != self.metadata.name"
            ),
            message="a pool cannot fall back to itself: name another ModelPool in degradation.fallback.modelPoolRef",
            holds=lambda pool: pool.metadata.name != pool.spec.degradation.fallback_pool,
            field="spec.degradation.fallback.modelPoolRef",
        ),
    )
