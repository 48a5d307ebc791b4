"""What one token and one sequence take in the layers of a pipeline stage of SGLang, on one GPU.

Decides the bytes of a cell. Pure.

Invariants:

1. Layers that keep every token, layers that keep a window and recurrent layers are never mixed: each has its own pool.
2. A kind of cache that SGLang is not known to keep is an error that names it.

Source: model_executor/pool_configurator.py and mem_cache/kv_cache_configurator.py of 0.5.23.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from kvquota_api.memory.errors import EngineUnknownError, UnknownArchitectureError
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.layers import Attention, Cache, Indexer, Latent, Layer, ModelShape, StateCache
from kvquota_api.memory.sglang.dtypes import KvDtype
from kvquota_api.memory.sglang.releases import Rules
from kvquota_api.memory.sglang.states import StateTypes, state_bytes
from kvquota_api.memory.stages import stages_of

_QUANT_BLOCK: Final = 128  # values that share one fp32 scale in a sparse MLA cache (DSATokenToKVPool.quant_block_size)
_ROPE_BYTES: Final = 2  # the position part of a sparse MLA cache stays in bf16
_SCALE_BYTES: Final = 4
_SPARSE_TYPES: Final = ("bfloat16", "fp8_e4m3")  # of the cache of sparse attention (_dsa_kv_cache_dtype_default)


@dataclass(frozen=True, slots=True)
class Kept:
    """What decides the bytes of a cell: the model, the flags, the type of the cache, of the state, and the version."""

    model: ModelShape
    inputs: EngineInputs
    dtype: KvDtype
    state: StateTypes
    rules: Rules

    @property
    def sliding_pool(self) -> bool:
        """Whether sliding layers have a pool of their own."""
        return self.inputs.hybrid_manager and self.rules.sliding_pool(self.model.architecture)


@dataclass(frozen=True, slots=True)
class Cells:
    """What the layers of one stage keep.

    Bytes on one GPU: `full` of a token in the layers that keep every token, `indexer` of its keys for choosing,
    `sliding` of a token in the layers that keep a window, `state` of a sequence; and the layers of each. `window`:
    tokens that the widest sliding layer looks back.
    """

    full: int = 0
    indexer: int = 0
    sliding: int = 0
    state: int = 0
    full_layers: int = 0
    sliding_layers: int = 0
    state_layers: int = 0
    window: int = 0


def stages(kept: Kept) -> tuple[Cells, ...]:
    """The cells of each pipeline stage. Raises EngineUnknownError, UnknownArchitectureError."""
    _check_spread(kept)
    parts = tuple(_cells(kept, layers) for layers in _stages(kept))
    return tuple(_with_draft(kept, part) for part in parts) if kept.inputs.draft_layers else parts


def _check_spread(kept: Kept) -> None:
    tensor, inputs = kept.inputs.tensor, kept.inputs
    if kept.model.heads % tensor:
        raise EngineUnknownError(
            f"tensor-parallel: {tensor} GPUs cannot share {kept.model.heads} heads evenly: choose a divisor"
        )
    if inputs.decode_context > 1:
        raise EngineUnknownError("decode context parallelism is not known for SGLang: set it to 1")
    if inputs.draft_layers and inputs.pipeline > 1:
        raise EngineUnknownError("draft layers with pipeline parallelism are not known for SGLang: use one of them")


def _stages(kept: Kept) -> Iterator[tuple[Layer, ...]]:
    """The layers of each pipeline stage."""
    layers, count = kept.model.layers, kept.inputs.pipeline
    of = stages_of(len(layers), count, "SGLang")
    return (tuple(layer for layer, at in zip(layers, of, strict=True) if at == stage) for stage in range(count))


def _cells(kept: Kept, layers: tuple[Layer, ...]) -> Cells:
    states = [cache for layer in layers for cache in layer if isinstance(cache, StateCache)]
    full = [cache for layer in layers for cache in layer if isinstance(cache, Attention | Latent)]
    sliding = [cache for cache in full if isinstance(cache, Attention) and kept.sliding_pool and _window(cache)]
    whole = [cache for cache in full if cache not in sliding]
    _check_known(kept, layers)
    return Cells(
        full=sum(_token_bytes(kept, cache) for cache in whole),
        indexer=_indexer_bytes(kept, layers),
        sliding=sum(_token_bytes(kept, cache) for cache in sliding),
        state=sum(state_bytes(cache, kept.inputs.tensor, kept.state) for cache in states),
        full_layers=len(whole),
        sliding_layers=len(sliding),
        state_layers=len(states),
        window=max((_window(cache) for cache in sliding), default=0),
    )


def _with_draft(kept: Kept, cells: Cells) -> Cells:
    """The cells with those of the drafter: its layers keep every token like the model's own full ones, and keys for
    choosing in each of them."""
    if not cells.full_layers:
        raise EngineUnknownError("draft layers of a model without full attention are not known for SGLang: set none")
    draft = kept.inputs.draft_layers
    indexer = next((_indexer_width(cache) for cache in _caches(kept.model.layers) if isinstance(cache, Indexer)), 0)
    return replace(
        cells,
        full=cells.full + cells.full * draft // cells.full_layers,
        indexer=cells.indexer + indexer * draft,
        full_layers=cells.full_layers + draft,
    )


def _check_known(kept: Kept, layers: tuple[Layer, ...]) -> None:
    known = Attention | Latent | Indexer | StateCache
    for cache in _caches(layers):
        if not isinstance(cache, known) or (isinstance(cache, Latent) and cache.window):
            raise UnknownArchitectureError(
                f"architectures: SGLang's cache of {kept.model.architecture} ({type(cache).__name__}) is not known:"
                " plan another engine, or state the pool in tokens"
            )
    for layer in layers:
        if any(isinstance(cache, Indexer) for cache in layer) and not any(isinstance(cache, Latent) for cache in layer):
            raise UnknownArchitectureError(
                f"architectures: SGLang's indexer without latent attention ({kept.model.architecture}) is not known"
            )
    if any(not layer for layer in layers) and not any(isinstance(cache, StateCache) for cache in _caches(layers)):
        raise EngineUnknownError(
            f"layers of {kept.model.architecture} that share or skip the cache are not known for SGLang:"
            " plan another engine"
        )


def _caches(layers: tuple[Layer, ...]) -> Iterator[Cache]:
    return (cache for layer in layers for cache in layer)


def _window(cache: Attention) -> int:
    """Tokens that a layer looks back, 0: all."""
    return cache.window or cache.chunk or 0


def _token_bytes(kept: Kept, cache: Attention | Latent) -> int:
    if isinstance(cache, Attention):
        heads = max(1, cache.kv_heads // kept.inputs.tensor)
        return kept.dtype.size(heads * (cache.key_dim + cache.value_dim))
    if cache.sparse and kept.dtype.name not in _SPARSE_TYPES:
        raise EngineUnknownError(
            f"kv-dtype: sparse attention in SGLang takes {' or '.join(_SPARSE_TYPES)}, not {kept.dtype.name}"
        )
    if cache.sparse and kept.dtype.name == "fp8_e4m3" and not _plain_sparse(kept):
        return cache.rank + cache.rank // _QUANT_BLOCK * _SCALE_BYTES + cache.rope * _ROPE_BYTES
    return kept.dtype.size(cache.rank + cache.rope)


def _plain_sparse(kept: Kept) -> bool:
    """Whether the kernels of the platform read fp8 latents without scales (calculate_mla_kv_cache_dim)."""
    return kept.rules.plain_sparse_fp8 and kept.inputs.platform == "cuda-sm100"


def _indexer_bytes(kept: Kept, layers: tuple[Layer, ...]) -> int:
    widths = [_indexer_width(cache) for cache in _caches(layers) if isinstance(cache, Indexer)]
    if not widths or kept.rules.spares_shared_indexers:
        return sum(widths)
    return widths[0] * sum(isinstance(cache, Latent) for cache in _caches(layers))


def _indexer_width(cache: Indexer) -> int:
    return -(-(cache.head_dim + cache.head_dim // _QUANT_BLOCK * _SCALE_BYTES) // cache.ratio)
