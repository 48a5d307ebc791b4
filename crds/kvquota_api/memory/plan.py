"""The plan of a pool: how many KV blocks of which size one engine gets, and how its card is divided.

Decides what a ModelPool asks for, and the hard cap and the cost of a request that follow from it. Pure; the answer is a
plan that fits, or a PlanError.

Invariants:

1. Everything is of one GPU of one engine; `cap_blocks` counts the blocks that the engine never hands out.
2. cap_blocks x bytes_per_block is at most what `memory.kvPool` states (tokens: rounded up to a block; TensorRT-LLM
   rounds all up to a block); the parts never sum to more than the card.
3. One request of `max_model_len` fits in the usable blocks.
4. What was assumed and not stated is in `assumptions`, one sentence each.

It does not know what the engine measured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kvquota_api.amounts import Blocks, Bytes, Tokens
from kvquota_api.engine_spec import Speculation
from kvquota_api.memory.advice import FIELDS, Advice, advise, in_order
from kvquota_api.memory.blocks import LayerGroup, blocks_for
from kvquota_api.memory.cache_plan import CachePlan
from kvquota_api.memory.errors import (
    EngineUnknownError,
    ModelConfigError,
    PartitionTooLargeError,
    PlanError,
    UnknownArchitectureError,
)
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.partition import Partition
from kvquota_api.memory.planning import (
    Card,
    CardPlan,
    KvBytes,
    KvPercent,
    KvRemainder,
    KvSize,
    KvTokens,
    PlanRequest,
    plan_card,
)
from kvquota_api.memory.presets import load_preset
from kvquota_api.memory_spec import KvPool
from kvquota_api.model_pool import ModelPool, ModelPoolSpec
from kvquota_api.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """`bytes_per_token`, `bytes_per_block`: of all layers on one GPU. `plan_hash` names what quotas depend on;
    `warnings`: what the engine would refuse or change by itself; `advice`: what would hold more."""

    cap_blocks: Blocks
    null_blocks: Blocks
    block_tokens: Tokens
    bytes_per_block: Bytes
    bytes_per_token: Bytes
    max_model_len: Tokens
    groups: tuple[LayerGroup, ...]
    partition: Partition
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    advice: tuple[Advice, ...]
    plan_hash: str

    @property
    def usable_blocks(self) -> Blocks:
        """Blocks that the engine can hand out under the cap."""
        return Blocks(self.cap_blocks - self.null_blocks)

    def requests_of(self, context: Tokens) -> int:
        """Requests of `context` tokens (at least 1) that fit at the same time."""
        return self.usable_blocks // blocks_for(self.groups, context)


def plan_pool(pool: ModelPool, model_config: Mapping[str, Any] | None = None) -> PoolPlan:
    """The plan of a pool. `model_config`: what its configMapRef holds, else not looked at. Raises PlanError."""
    config = model_config_of(pool.spec, model_config)
    request = request_of(pool, config)
    try:
        plan = plan_card(request)
    except PlanError as error:
        raise type(error)(f"{_blamed(request)}{error}") from error
    if plan.undivided is not None:
        raise plan.undivided
    if plan.problem is not None or plan.cache is None or plan.partition is None:
        raise _does_not_fit(plan)
    return _pool_plan(pool.spec, config, plan, plan.cache, plan.partition)


def request_of(pool: ModelPool, config: Mapping[str, Any]) -> PlanRequest:
    """What a pool, with the config.json of its model, asks to be planned. Raises UnknownArchitectureError,
    EngineUnknownError."""
    spec = pool.spec
    return PlanRequest(
        config=config,
        inputs=_inputs(spec),
        kv=_kv_size(spec.memory.kv_pool),
        card=Card(
            memory=spec.gpu.memory_bytes,
            weights=spec.memory.weight_bytes,
            activation=spec.memory.activation_bytes,
            other=spec.memory.other_bytes,
            margin_percent=spec.memory.safety_margin_percent,
        ),
        platform=spec.gpu.platform,
    )


def model_config_of(spec: ModelPoolSpec, from_config_map: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The config.json that a pool names. Raises ModelConfigError where its preset or its ConfigMap is not there."""
    source = spec.model.config
    if source.preset is not None:
        return load_preset(source.preset)
    if source.inline is not None:
        return source.inline
    if from_config_map is None:
        named = source.config_map_ref
        where = f"ConfigMap {named.name}, or its key {named.key}," if named else "the ConfigMap"
        raise ModelConfigError(f"spec.model.config.configMapRef: {where} is not there: create it")
    return from_config_map


def _inputs(spec: ModelPoolSpec) -> EngineInputs:
    model, engine, spread = spec.model, spec.engine, spec.engine.parallelism
    if engine.type == "OpenAI":
        raise UnknownArchitectureError(
            "spec.engine.type: OpenAI stands for any engine, so nothing is known of its memory: quotas work on the pool"
            " that the engine reports"
        )
    return EngineInputs(
        engine=engine.type,
        version=engine.version,
        tensor=spread.tensor,
        pipeline=spread.pipeline,
        data=spread.data,
        decode_context=spread.decode_context,
        dtype=model.dtype,
        weight_dtype=model.weight_dtype,
        kv_dtype=_kv_dtype(model),
        state_dtype=model.state_dtype,
        block_tokens=engine.block_size,
        max_model_len=_context(spec),
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        prefix_caching=engine.prefix_caching,
        async_scheduling=engine.async_scheduling,
        hybrid_manager=engine.hybrid_kv_cache_manager is not False,
        speculative_tokens=_speculative_tokens(engine.speculation),
        draft_layers=engine.speculation.draft_layers,
        speculative=engine.speculation.config,
        slots=(engine.slots or 1) if engine.type == "LlamaCpp" else None,
        unified=bool(engine.unified_kv_cache) if engine.type == "LlamaCpp" else None,
    )


def _kv_dtype(model: ServedModel) -> str:
    """llama.cpp may keep K and V in two types, written K/V."""
    if model.value_cache_dtype is None:
        return model.kv_cache_dtype
    keys = "fp16" if model.kv_cache_dtype == "auto" else model.kv_cache_dtype
    return f"{keys}/{model.value_cache_dtype}"


def _speculative_tokens(speculation: Speculation) -> int:
    described = (speculation.config or {}).get("num_speculative_tokens")
    if not isinstance(described, int) or described == speculation.tokens:
        return speculation.tokens
    if speculation.tokens:
        raise EngineUnknownError(
            f"spec.engine.speculation.tokens: {speculation.tokens}, and speculation.config says {described}: keep one"
        )
    return described


def _context(spec: ModelPoolSpec) -> int | None:
    """llama.cpp divides its context over the slots, and each is to hold a longest request; slots that share one cache
    hold it together."""
    longest, slots = spec.model.max_model_len, spec.engine.slots
    return longest if longest is None or slots is None or spec.engine.unified_kv_cache else longest * slots


def _kv_size(pool: KvPool) -> KvSize:
    if pool.hundredths is not None:
        return KvPercent(pool.hundredths)
    if pool.byte_count is not None:
        return KvBytes(pool.byte_count)
    if pool.token_count is not None:
        return KvTokens(pool.token_count)
    return KvRemainder()


# What of a pool can be wrong for an engine, and the field of its inputs that says it.
_BLAMED: Final = (
    ("spec.engine.version", "version"),
    ("spec.model.kvCacheDtype", "kv_dtype"),
    ("spec.model.weightDtype", "weight_dtype"),
    ("spec.model.dtype", "dtype"),
    ("spec.model.stateDtype", "state_dtype"),
    ("spec.engine.parallelism.decodeContext", "decode_context"),
    ("spec.engine.parallelism.tensor", "tensor"),
    ("spec.engine.parallelism.pipeline", "pipeline"),
    ("spec.engine.blockSize", "block_tokens"),
    ("spec.engine.speculation.config", "speculative"),
    ("spec.engine.speculation.draftLayers", "draft_layers"),
    ("spec.engine.speculation.tokens", "speculative_tokens"),
    ("spec.engine.asyncScheduling", "async_scheduling"),
    ("spec.engine.slots", "slots"),
    ("spec.model.maxModelLen", "max_model_len"),
)


def _blamed(request: PlanRequest) -> str:
    """The field without which the pool could be planned, as a beginning of the sentence; empty where there is none."""
    default = EngineInputs(request.inputs.engine)
    for path, name in _BLAMED:
        without = replace(request.inputs, **{name: getattr(default, name)})
        if without != request.inputs and _can_be_planned(replace(request, inputs=without)):
            return f"{path}: "
    return ""


def _can_be_planned(request: PlanRequest) -> bool:
    try:
        plan_card(request)
    except PlanError:
        return False
    return True


def _does_not_fit(plan: CardPlan) -> PlanError:
    problem = plan.problem or PartitionTooLargeError("nothing of the card is left for the KV cache")
    return type(problem)(f"{problem}. {in_order(advise(plan, FIELDS))}")


def _pool_plan(
    spec: ModelPoolSpec, config: Mapping[str, Any], plan: CardPlan, cache: CachePlan, partition: Partition
) -> PoolPlan:
    return PoolPlan(
        cap_blocks=Blocks(cache.blocks),
        null_blocks=Blocks(cache.null_blocks),
        block_tokens=Tokens(cache.block_tokens),
        bytes_per_block=Bytes(cache.bytes_per_block),
        bytes_per_token=Bytes(cache.bytes_per_token),
        max_model_len=Tokens(cache.max_model_len),
        groups=tuple(group.cost for group in cache.groups),
        partition=partition,
        assumptions=plan.assumptions,
        warnings=cache.warnings,
        advice=advise(plan, FIELDS),
        plan_hash=_plan_hash(spec, config, cache.max_model_len),
    )


def _plan_hash(spec: ModelPoolSpec, config: Mapping[str, Any], max_model_len: int) -> str:
    """First 16 hex digits of the SHA-256 of what a tenant's share in tokens depends on."""
    inputs = {
        "model": spec.model.model_copy(update={"config": None, "media": None}).as_written(),
        "config": config,
        "maxModelLen": max_model_len,
        "parallelism": spec.engine.parallelism.as_written(),
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]
