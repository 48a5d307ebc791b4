"""The plan of a pool: how many KV blocks of which size one engine gets, and how its card is divided.

Decides the hard cap and the cost of a request, by the engine's own rules. Pure; the answer is a plan that fits, or a
PlanError.

Invariants:

1. Everything is of one GPU of one engine; `cap_blocks` counts the blocks that the engine never hands out.
2. cap_blocks x bytes_per_block is at most what `memory.kvPool` states (tokens: rounded up to a block); the parts never
   sum to more than the card.
3. One request of `max_model_len` fits in the usable blocks.
4. What was assumed and not stated is in `assumptions`, one sentence each.

It does not know what the engine measured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvquota_api.amounts import WHOLE, Blocks, Bytes, Tokens, format_bytes
from kvquota_api.memory.architectures import DenseModel, read_architecture
from kvquota_api.memory.blocks import LayerGroup, blocks_for
from kvquota_api.memory.dtypes import kv_element_bytes, weight_dtype
from kvquota_api.memory.engines import block_tokens, check_parallelism, null_blocks
from kvquota_api.memory.errors import ModelConfigError, PoolTooSmallError
from kvquota_api.memory.partition import (
    Partition,
    check_fits,
    default_max_num_seqs,
    estimated_activation,
    estimated_other,
)
from kvquota_api.memory.presets import load_preset
from kvquota_api.memory.weights import weights_per_gpu, widest_stage
from kvquota_api.memory_spec import KvPool
from kvquota_api.model_pool import ModelPool, ModelPoolSpec


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """`bytes_per_token`, `bytes_per_block`: of all layers on one GPU. `plan_hash` names what quotas depend on."""

    cap_blocks: Blocks
    null_blocks: Blocks
    block_tokens: Tokens
    bytes_per_block: Bytes
    bytes_per_token: Bytes
    max_model_len: Tokens
    groups: tuple[LayerGroup, ...]
    partition: Partition
    assumptions: tuple[str, ...]
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
    spec = pool.spec
    config = model_config_of(spec, model_config)
    model = read_architecture(config)
    check_parallelism(spec.engine, model)
    per_token, tokens = _bytes_per_token(spec, model), block_tokens(spec.engine)
    per_block = Bytes(per_token * tokens)
    partition = _partition(spec, model, per_block, tokens)
    max_model_len = _max_model_len(spec, model)
    plan = PoolPlan(
        cap_blocks=Blocks(partition.kv_pool // per_block),
        null_blocks=null_blocks(spec.engine),
        block_tokens=tokens,
        bytes_per_block=per_block,
        bytes_per_token=per_token,
        max_model_len=max_model_len,
        groups=(LayerGroup(kind="Full", block_tokens=tokens),),
        partition=partition,
        assumptions=_assumptions(spec, model, partition),
        plan_hash=_plan_hash(spec, config, max_model_len),
    )
    _check_longest_request(plan, _ways_out(spec, model))
    return plan


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


def _bytes_per_token(spec: ModelPoolSpec, model: DenseModel) -> Bytes:
    spread = spec.engine.parallelism
    element = kv_element_bytes(spec.model, model)
    return model.kv_bytes_per_token(spread.tensor, widest_stage(model.layers, spread.pipeline), element)


def _partition(spec: ModelPoolSpec, model: DenseModel, per_block: Bytes, tokens: Tokens) -> Partition:
    spread, card = spec.engine.parallelism, spec.gpu.memory_bytes
    stated = spec.memory.activation_bytes
    sequences = spec.engine.max_num_seqs or default_max_num_seqs(card)
    rest = Partition(
        card=card,
        weights=weights_per_gpu(model, weight_dtype(spec.model, model), spread.tensor, spread.pipeline),
        activation=estimated_activation(model.vocabulary, sequences) if stated is None else stated,
        kv_pool=Bytes(0),
        safety_margin=Bytes(card * spec.memory.safety_margin_percent // 100),
        other=estimated_other(spread.tensor),
    )
    asked = _kv_bytes(spec.memory.kv_pool, rest, per_block, tokens)
    partition = replace(rest, kv_pool=Bytes(asked // per_block * per_block))
    check_fits(partition, _ways_out(spec, model))
    return partition


def _kv_bytes(pool: KvPool, rest: Partition, per_block: Bytes, tokens: Tokens) -> int:
    if pool.hundredths is not None:
        return rest.card * pool.hundredths // WHOLE
    if pool.byte_count is not None:
        return pool.byte_count
    if pool.token_count is not None:
        return -(-pool.token_count // tokens) * per_block
    return max(0, rest.free)


def _max_model_len(spec: ModelPoolSpec, model: DenseModel) -> Tokens:
    longest = spec.model.max_model_len or model.max_positions
    if longest is None:
        raise ModelConfigError("max_position_embeddings: missing: set spec.model.maxModelLen")
    return Tokens(longest)


def _check_longest_request(plan: PoolPlan, ways_out: str) -> None:
    needed = blocks_for(plan.groups, plan.max_model_len)
    if needed <= plan.usable_blocks:
        return
    raise PoolTooSmallError(
        f"the KV pool of {format_bytes(plan.partition.kv_pool)} has {max(0, plan.usable_blocks)} usable blocks of"
        f" {plan.block_tokens} tokens, and one request of {plan.max_model_len} tokens needs {needed}, so the engine"
        f" would not start: raise spec.memory.kvPool, or: {ways_out}"
    )


def _ways_out(spec: ModelPoolSpec, model: DenseModel) -> str:
    spread = spec.engine.parallelism
    dtype = weight_dtype(spec.model, model)
    now = weights_per_gpu(model, dtype, spread.tensor, spread.pipeline)
    saved = now - weights_per_gpu(model, "fp8", spread.tensor, spread.pipeline)
    quantise = f"fp8 saves {format_bytes(saved)}" if saved > 0 else f"a smaller type than {dtype}"
    cache = (
        "quantise the KV cache (spec.model.kvCacheDtype: fp8) and " if kv_element_bytes(spec.model, model) > 1 else ""
    )
    return (
        f"Ways out, in this order: 1. quantise the weights (spec.model.weightDtype: {quantise});"
        f" 2. {cache}lower spec.memory.kvPool, or shorten the context (spec.model.maxModelLen);"
        " 3. more GPUs (spec.engine.parallelism.tensor and spec.gpu.count)"
    )


def _assumptions(spec: ModelPoolSpec, model: DenseModel, partition: Partition) -> tuple[str, ...]:
    stated, known = spec.model.max_model_len, model.max_positions
    sequences = spec.engine.max_num_seqs or default_max_num_seqs(partition.card)
    sentences = {
        f"activation is estimated at {format_bytes(partition.activation)} for {sequences} sequences in a step"
        f" and {model.vocabulary} entries of the vocabulary": spec.memory.activation is None,
        f"CUDA context, communication and graphs are estimated at {format_bytes(partition.other)}": True,
        f"the engine is told to allow more tokens than the model's config says ({known})": (
            stated is not None and known is not None and stated > known
        ),
    }
    return tuple(sentence for sentence, holds in sentences.items() if holds)


def _plan_hash(spec: ModelPoolSpec, config: Mapping[str, Any], max_model_len: Tokens) -> str:
    """First 16 hex digits of the SHA-256 of what a tenant's share in tokens depends on."""
    inputs = {
        "model": spec.model.model_copy(update={"config": None}).as_written(),
        "config": config,
        "maxModelLen": max_model_len,
        "parallelism": spec.engine.parallelism.as_written(),
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]
