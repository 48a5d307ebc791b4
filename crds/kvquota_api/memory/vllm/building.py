"""The cache of every layer on one GPU, with the pipeline stage that it is on.

Decides the specs of all layers of a model and its drafter. Pure.

Invariants:

1. KV heads are split over the GPUs of tensor parallelism, at least one on each; latents are whole on every GPU.
2. Draft layers come last, on the last stage.

Source: the layers' `get_kv_cache_spec` in vllm/model_executor/layers of 0.32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.layers import (
    Attention,
    Cache,
    CompressorState,
    CrossAttention,
    Indexer,
    KimiDeltaState,
    Latent,
    Layer,
    Mamba2State,
    ModelShape,
    PoolTail,
    Record,
    StateCache,
)
from kvquota_api.memory.stages import stages_of
from kvquota_api.memory.vllm.backends import Choosing, Kernel, distinct_kernels, kernels_of
from kvquota_api.memory.vllm.block_size import Blocks, blocks_of
from kvquota_api.memory.vllm.heads import local_heads
from kvquota_api.memory.vllm.packed_specs import compressor_spec, indexer_spec, record_spec, tail_spec
from kvquota_api.memory.vllm.resolving import Settings
from kvquota_api.memory.vllm.specs import LayerSpec
from kvquota_api.memory.vllm.states import StateTypes, state_bytes

_SPARSE_PAGE: Final = 64  # tokens that FlashMLA reads of packed latents at once (FlashMLASparseBackend.customize_spec)
_ATTENTION_FIRST: Final = frozenset({"Zamba2ForCausalLM"})  # the attention that layers share is built before them
_FLASH_KDA_DIM: Final = 128  # head width that FlashKDA takes (_resolve_kda_prefill_backend)


@dataclass(frozen=True, slots=True)
class PlacedSpec:
    """The spec of one layer's cache and the pipeline stage that it is on."""

    stage: int
    spec: LayerSpec


@dataclass(frozen=True, slots=True)
class _Building:
    settings: Settings
    tensor: int
    choosing: Choosing
    blocks: Blocks
    state_types: StateTypes


def place_specs(model: ModelShape, inputs: EngineInputs, settings: Settings) -> tuple[PlacedSpec, ...]:
    """The caches of all layers, in the order in which vLLM registers them."""
    on_stage: list[list[Layer]] = [[] for _ in range(inputs.pipeline)]
    for stage, layer in zip(stages_of(len(model.layers), inputs.pipeline, "vLLM"), model.layers, strict=True):
        on_stage[stage].append(layer)
    if model.architecture in _ATTENTION_FIRST:
        on_stage = [_attention_first(layers) for layers in on_stage]
    on_stage[-1] += settings.speculation.layers
    return tuple(
        PlacedSpec(stage, spec)
        for stage, layers in enumerate(on_stage)
        for building in (_prepare(model, inputs, settings, layers),)
        for layer in layers
        for spec in _specs_of(layer, building)
    )


def _attention_first(layers: Sequence[Layer]) -> list[Layer]:
    shared: list[Layer] = [tuple(cache for cache in layer if isinstance(cache, Attention)) for layer in layers]
    own: list[Layer] = [tuple(cache for cache in layer if not isinstance(cache, Attention)) for layer in layers]
    return shared + own


def _prepare(model: ModelShape, inputs: EngineInputs, settings: Settings, layers: Sequence[Layer]) -> _Building:
    """What the layers of one stage are built with: each worker settles its blocks by its own layers."""
    choosing = _choosing(model, settings)
    types = StateTypes(settings.compute, settings.recurrent, inputs.tensor, settings.speculation.tokens)
    blocks = blocks_of(model, settings, distinct_kernels(layers, choosing), types)
    return _Building(settings, inputs.tensor, choosing, blocks, types)


def _choosing(model: ModelShape, settings: Settings) -> Choosing:
    layers = (*model.layers, *settings.speculation.layers)
    attention = [cache for layer in layers for cache in layer if isinstance(cache, Attention)]
    return Choosing(
        platform=settings.platform,
        kv=settings.kv,
        block=settings.block,
        compute=settings.compute,
        widest_head=max((cache.key_dim for cache in attention), default=0),
        query_heads=max((model.heads // cache.kv_heads for cache in attention), default=1),
    )


def _specs_of(layer: Layer, building: _Building) -> list[LayerSpec]:
    kernels = kernels_of(layer, building.choosing)
    return [_spec(cache, kernel, layer, building) for cache, kernel in zip(layer, kernels, strict=True)]


def _spec(cache: Cache, kernel: Kernel, layer: Layer, building: _Building) -> LayerSpec:
    match cache:
        case Attention() | CrossAttention():
            return _attention(cache, kernel, building)
        case Latent():
            return _latent(cache, kernel, layer, building)
        case Indexer() | Record() | CompressorState() | PoolTail():
            return _packed(cache, kernel, layer, building)
        case _:
            return _state(cache, building)


def _attention(cache: Attention | CrossAttention, kernel: Kernel, building: _Building) -> LayerSpec:
    settings, block = building.settings, building.blocks.attention
    heads = local_heads(cache.kv_heads, building.tensor)
    row = heads * settings.kv.head_bytes(cache.key_dim, cache.value_dim)
    spec = LayerSpec("Full", block, row, (heads, cache.key_dim, cache.value_dim), stride_block=kernel.split_block)
    if isinstance(cache, CrossAttention):
        return replace(spec, kind="Cross")
    if cache.window is not None and settings.rules.hybrid_manager:
        retained = settings.speculation.retained_tokens
        tokens = kernel.largest_within(block)
        return replace(spec, kind="Sliding", block_tokens=tokens, window=cache.window, retained=retained)
    if cache.chunk is not None and settings.rules.hybrid_manager:
        return replace(spec, kind="Chunked", chunk=cache.chunk)
    return spec


def _latent(cache: Latent, kernel: Kernel, layer: Layer, building: _Building) -> LayerSpec:
    width = cache.rank + cache.rope
    kv = building.settings.kv
    return LayerSpec(
        kind="Latent" if cache.window is None else "SlidingLatent",
        block_tokens=building.blocks.attention,
        row_bytes=kv.latent_bytes(width),
        identity=("latent", width, any(isinstance(other, Indexer) for other in layer)),
        window=cache.window,
        retained=0 if cache.window is None else building.settings.speculation.retained_tokens,
        stride_rows=1 if cache.sparse and not kv.quantised else None,
        stride_block=_SPARSE_PAGE if cache.sparse and kv.quantised else kernel.split_block,
    )


def _packed(
    cache: Indexer | Record | CompressorState | PoolTail, kernel: Kernel, layer: Layer, building: _Building
) -> LayerSpec:
    match cache:
        case Indexer():
            return indexer_spec(cache, kernel, layer, building.blocks.attention)
        case Record():
            return record_spec(cache, kernel, building.blocks.attention)
        case CompressorState():
            return compressor_spec(cache)
        case _:
            return tail_spec(cache, building.settings.speculation.tokens)


def _state(cache: StateCache, building: _Building) -> LayerSpec:
    settings, page = building.settings, building.blocks.state_page
    size = state_bytes(cache, building.state_types)
    aligned = 1 + _checkpoints(cache, settings) if settings.aligned_states else 0
    return LayerSpec(
        kind="State",
        block_tokens=building.blocks.state,
        row_bytes=size,
        identity=(cache,),
        fixed_blocks=1 + settings.speculation.tokens + aligned,
        padded=None if page == size else page,
        sharded=False,
    )


def _checkpoints(cache: StateCache, settings: Settings) -> int:
    """Blocks more for a checkpoint inside a prefill: Mamba-2 always, KDA where FlashKDA runs."""
    if not settings.rules.caches_state_prefixes:
        return 0
    if isinstance(cache, Mamba2State):
        return 1
    flash = settings.platform in ("cuda-sm90", "cuda-sm100") and settings.compute == "bfloat16"
    suited = isinstance(cache, KimiDeltaState) and cache.bounded and cache.head_dim == _FLASH_KDA_DIM
    return int(flash and suited)
