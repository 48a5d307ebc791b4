"""The KV cache that vLLM makes of given bytes: the plan of one engine on one GPU.

Decides by the engine's own steps: settings, caches of the layers, groups, blocks. Pure.

Invariants:

1. The plan is the one that vLLM 0.32 computes, to the block; for older versions the rules of `versions` apply.
2. What vLLM refuses of the inputs is an error, a request that does not fit a warning; both say what to do.

It does not know where the bytes come from: that is the partition of the card.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvquota_api.memory.cache_plan import CacheGroup, CachePlan
from kvquota_api.memory.errors import EngineUnknownError, PoolTooSmallError
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.layers import ModelShape
from kvquota_api.memory.vllm.building import PlacedSpec, place_specs
from kvquota_api.memory.vllm.capacity import NULL_BLOCKS, Pool, pool_of, stage_layers
from kvquota_api.memory.vllm.grouping import Group, groups_of, layout_of, without_locality
from kvquota_api.memory.vllm.heads import check_parallel
from kvquota_api.memory.vllm.resolving import Settings, settle
from kvquota_api.memory.vllm.specs import Demand

_GIB = 1 << 30
_MORE_MEMORY = "give more memory, or spread the model over more GPUs"
_EVERY_TOKEN = ("Full", "Latent")  # kinds that keep every token of a sequence
_WINDOWED = ("Sliding", "SlidingLatent", "Chunked")  # kinds that keep those of a window or a chunk


def plan_cache(model: ModelShape, inputs: EngineInputs, kv_bytes: int) -> CachePlan:
    """The KV cache of `model` in `kv_bytes` on each GPU; PlanError where vLLM would refuse, or a rule is not known."""
    settings = settle(model, inputs)
    check_parallel(model, inputs)
    placed = place_specs(model, inputs, settings)
    if not placed:
        raise EngineUnknownError(f"{model.architecture} keeps no KV cache: there is nothing to divide")
    if not settings.hybrid_manager:
        placed = without_locality(placed)
    _check_windows(placed, inputs)
    layout = layout_of(placed)
    groups = groups_of(placed, layout)
    demand = Demand(settings.in_flight, settings.encoder_tokens, inputs.decode_context)
    pool = pool_of(groups, inputs.pipeline, demand, layout)
    return _plan(_Engine(groups, pool, settings, inputs), kv_bytes)


@dataclass(frozen=True, slots=True)
class _Engine:
    groups: tuple[Group, ...]
    pool: Pool
    settings: Settings
    inputs: EngineInputs


def _plan(engine: _Engine, kv_bytes: int) -> CachePlan:
    groups, pool, settings = engine.groups, engine.pool, engine.settings
    length = _length(pool, settings, kv_bytes)
    blocks = max(0, pool.blocks(kv_bytes))
    concurrency = Fraction(blocks, pool.blocks_of(length))
    stage = pool.stage_bytes.index(pool.widest)
    tokens = _tokens(concurrency, length)
    return CachePlan(
        blocks=blocks,
        null_blocks=NULL_BLOCKS,
        block_tokens=min(group.leader.block_tokens for group in groups),
        bytes_per_token=_bytes_per_token(groups, stage),
        bytes_per_block=pool.widest,
        kv_bytes=blocks * pool.widest,
        tokens=tokens,
        logged_tokens=tokens if settings.rules.logs_capacity else _old_size(groups, blocks, engine.inputs),
        concurrency=concurrency,
        max_model_len=length,
        min_bytes=pool.min_bytes(length),
        groups=_cache_groups(groups, pool, stage),
        assumptions=settings.assumptions,
        warnings=_warnings(pool, settings, kv_bytes, length),
    )


def _tokens(concurrency: Fraction, length: int) -> int:
    """As vLLM rounds it: the concurrency is a float before it is multiplied (get_kv_cache_capacity)."""
    return int(float(concurrency) * length)


def _old_size(groups: tuple[Group, ...], blocks: int, inputs: EngineInputs) -> int:
    """The size printed up to 0.20.1, which says little of models with several groups."""
    smallest = min(group.leader.block_tokens for group in groups)
    return blocks // len(groups) * smallest * inputs.decode_context


def _bytes_per_token(groups: tuple[Group, ...], stage: int) -> int:
    """Bytes that one more token takes on that stage, in the layers that keep every token; where no layer of the model
    does, inside the window."""
    every = any(member.spec.kind in _EVERY_TOKEN for group in groups for member in group.members)
    kinds = _EVERY_TOKEN if every else _WINDOWED
    kept = [spec for group in groups for spec in stage_layers(group, stage) if spec.kind in kinds]
    return -(-sum((Fraction(spec.page_bytes, spec.block_tokens) for spec in kept), Fraction()) // 1)


def _cache_groups(groups: tuple[Group, ...], pool: Pool, stage: int) -> tuple[CacheGroup, ...]:
    return tuple(
        CacheGroup(group.leader.kind, len(layers), sum(spec.page_bytes for spec in layers), cost)
        for group, cost in zip(groups, pool.costs, strict=True)
        for layers in (stage_layers(group, stage),)
    )


def _length(pool: Pool, settings: Settings, kv_bytes: int) -> int:
    """The max_model_len that is planned for; PoolTooSmallError where the longest is wanted and not a token fits."""
    if not settings.fit_longest:
        return settings.max_model_len
    fitting = pool.longest(kv_bytes, settings.max_model_len)
    if fitting:
        return fitting
    raise PoolTooSmallError(
        f"not even one token fits: {pool.min_bytes(1)} bytes of KV cache are needed, there are {kv_bytes}: "
        f"{_MORE_MEMORY}"
    )


def _warnings(pool: Pool, settings: Settings, kv_bytes: int, length: int) -> tuple[str, ...]:
    """What vLLM would refuse, first of all that one request does not fit."""
    needs = pool.min_bytes(length)
    if needs <= kv_bytes:
        return settings.warnings
    fitting = pool.longest(kv_bytes, length)
    way = f"set max_model_len to {fitting}, the longest that fits, or {_MORE_MEMORY}" if fitting else _MORE_MEMORY
    return (
        f"one request of max_model_len {length} needs {needs / _GIB:.2f} GiB of KV cache, "
        f"there are {kv_bytes / _GIB:.2f} GiB: {way}",
        *settings.warnings,
    )


def _check_windows(placed: tuple[PlacedSpec, ...], inputs: EngineInputs) -> None:
    if inputs.decode_context > 1 and any(member.spec.kind in ("Sliding", "SlidingLatent") for member in placed):
        raise EngineUnknownError(
            "decode context parallelism does not support sliding windows: use a decode context parallel size of 1"
        )
