"""The resource ModelPool: one model on one kind of GPU pod, and how its card is divided.

Decides its fields, their bounds and what one pool can decide about itself. Pure. Whether a partition fits is decided by
`kvquota_api.memory.plan`, what it means for pods and tenants by the operator; both are said in `status.conditions`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictInt

from kvquota_api.ladder import PoolDegradation
from kvquota_api.list_map import ListMap
from kvquota_api.memory_spec import Gpu, Memory
from kvquota_api.pool_status import ModelPoolStatus
from kvquota_api.quota import Enforcement, KvQuota, MaxConcurrentRequests, MaxContextTokens, Priority
from kvquota_api.resource import KeyRef, Metadata, Model, Port, TokenCount, json_only, readable_or_none
from kvquota_api.rules import Rule, exactly_one_of
from kvquota_api.sidecar_spec import Sidecar
from kvquota_api.words import ContainerName, LabelKey, LabelValue, PresetName, Printable, TierName

MAX_TIERS: Final = 32  # of one pool: a table that a person keeps in mind; bounds the cost of the rules in it

EngineType = Literal["vLLM", "SGLang", "LlamaCpp", "TensorRTLLM", "OpenAI"]
WeightDtype = Literal["auto", "fp32", "bf16", "fp16", "fp8", "int8", "int4", "nf4", "mxfp4", "nvfp4"]
KvCacheDtype = Literal["auto", "fp32", "bf16", "fp16", "fp8"]
FreeForm = Annotated[dict[str, Any], AfterValidator(json_only)]
Devices = Annotated[StrictInt, Field(ge=1, le=1024)]


class LabelRequirement(Model):
    """One requirement on a pod's labels."""

    key: LabelKey
    """The label's key."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label's value relates to values."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=32)] = ()
    """Values for In and NotIn; empty for Exists and DoesNotExist."""

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
    """Labels that a pod must have."""
    match_expressions: Annotated[tuple[LabelRequirement, ...], Field(max_length=32)] = ()
    """Further requirements on a pod's labels."""

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


class ModelConfig(Model):
    """Where the model's Hugging Face config.json is: exactly one of preset, configMapRef, inline."""

    preset: PresetName | None = None
    """Name of a config that kvquota carries: llama-3.1-8b."""
    config_map_ref: KeyRef | None = None
    """Key of a ConfigMap of the same namespace that holds the config.json."""
    inline: FreeForm | None = None
    """The config.json itself."""

    rules = (exactly_one_of("preset", "configMapRef", "inline"),)


class ServedModel(Model):
    """The model, as far as its memory depends on it. A change asks for a review of the quotas."""

    name: Printable
    """What clients send as "model"."""
    revision: Printable | None = None
    """Any text that names the revision of the weights; a change asks for a review of the quotas."""
    config: ModelConfig
    """Where the model's Hugging Face config.json is."""
    weight_dtype: WeightDtype = "auto"
    """Type in which the weights are stored; auto: what the config says (torch_dtype)."""
    kv_cache_dtype: KvCacheDtype = "auto"
    """Type of the KV cache; auto: the model's own type."""
    max_model_len: TokenCount | None = None
    """Longest request in tokens of prompt and output. Default: what the config says (max_position_embeddings)."""


class Parallelism(Model):
    """How the model is spread over GPUs."""

    tensor: Devices = 1
    """GPUs that share each layer."""
    pipeline: Devices = 1
    """Stages that the layers are divided into."""
    data: Devices = 1
    """Copies of the model in one pod, each with a KV pool of its own."""
    decode_context: Devices = 1
    """GPUs of one tensor group that share the tokens of a sequence; divides tensor."""

    @property
    def gpus(self) -> int:
        """GPUs that one pod needs."""
        return self.tensor * self.pipeline * self.data

    rules = (
        Rule(
            cel="self.tensor % self.decodeContext == 0",
            message="decodeContext must divide tensor: lower decodeContext or raise tensor",
            holds=lambda each: each.tensor % each.decode_context == 0,
            field="decodeContext",
        ),
    )


class Speculation(Model):
    """Speculative decoding."""

    tokens: Annotated[StrictInt, Field(ge=0, le=64)] = 0
    """Tokens that are guessed per step; 0: none."""
    draft_layers: Annotated[StrictInt, Field(ge=0, le=256)] = 0
    """Layers of the draft model that keep KV of their own."""


class Engine(Model):
    """The engine that serves the model, as it is or will be started."""

    type: EngineType
    """Kind of engine. OpenAI: any other that speaks the OpenAI protocol; nothing is known of its memory."""
    version: Printable | None = None
    """Version of the engine, as in "0.32". Default: the newest that kvquota knows."""
    container: ContainerName | None = None
    """Name of the engine's container. Default: the pod's only container."""
    port: Port = 8000
    """Port that the engine serves on, as the pod's spec says."""
    block_size: Annotated[StrictInt, Field(ge=1, le=65536)] | None = None
    """Tokens in one KV block. Default: that of the engine."""
    parallelism: Parallelism = Parallelism()
    """How the model is spread over GPUs."""
    max_num_seqs: Annotated[StrictInt, Field(ge=1, le=65536)] | None = None
    """Sequences in one step. Default: that of the engine."""
    max_num_batched_tokens: TokenCount | None = None
    """Tokens in one step. Default: that of the engine."""
    prefix_caching: StrictBool = True
    """Whether the engine keeps blocks of finished requests for prefix hits."""
    speculation: Speculation = Speculation()
    """Speculative decoding."""
    plugin: Literal["Off", "Measure", "Enforce"] = "Off"
    """kvquota inside vLLM. "Off" (with quotes): nothing runs there. Measure: exact accounting. Enforce: quotas hold in
    its scheduler."""

    rules = (
        Rule(
            cel="self.plugin == 'Off' || self.type == 'vLLM'",
            message='the plugin runs inside vLLM only: set plugin "Off" (with quotes) or type vLLM',
            holds=lambda engine: engine.plugin == "Off" or engine.type == "vLLM",
            field="plugin",
        ),
    )


class ContextShare(Model):
    """A length of request and how common it is."""

    context_tokens: TokenCount
    """Tokens of prompt and output."""
    weight: Annotated[StrictInt, Field(ge=1, le=1_000_000)]
    """How common it is, relative to the other lines."""


class Workload(Model):
    """The assumption under which capacity numbers are stated."""

    context_mix: Annotated[tuple[ContextShare, ...], Field(max_length=32), ListMap("contextTokens")] = ()
    """Lengths of requests and how common each is."""


class Tier(Model):
    """Values that a TenantQuota takes by the tier's name; an own value of the quota replaces the tier's as a whole."""

    name: TierName
    """The name that a TenantQuota refers to."""
    priority: Priority | None = None
    """Higher is more important. Default: 0."""
    kv: KvQuota | None = None
    """The share of the KV cache."""
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
    """The assumption under which capacity numbers are stated."""
    tiers: Annotated[tuple[Tier, ...], Field(max_length=MAX_TIERS), ListMap("name")] = ()
    """Named values for TenantQuotas of this pool."""
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
