"""What one cell, and one sequence, take in the layers of a model in llama.cpp.

Decides bytes per cell. Pure.

Invariants:

1. Layers that keep every token, sliding layers and recurrent layers are never mixed: each has its own buffer.
2. A kind of cache that llama.cpp is not known to keep is an error that names it.
3. Recurrent state is fp32 whatever the types of K and V.
4. A file without the tensors of latent attention (made before April 2025) keeps K and V of every head.

Source: src/llama-kv-cache.cpp, llama-kv-cache-{iswa,dsa,msa}.cpp, llama-memory-recurrent.cpp, llama-hparams.cpp of
build 11434.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from kvquota_api.memory.build_dates import date_of
from kvquota_api.memory.errors import EngineUnknownError, UnknownArchitectureError
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.llamacpp.types import CacheTypes
from kvquota_api.memory.models.layers import (
    Attention,
    Cache,
    GatedDeltaState,
    Indexer,
    KimiDeltaState,
    Latent,
    Layer,
    Mamba1State,
    Mamba2State,
    ModelShape,
    ShortConvState,
    StateCache,
)
from kvquota_api.quoting import quoted

_STATE_BYTES: Final = 4  # GGML_TYPE_F32, of the state and of the convolution's past inputs

# The first build that keeps no V beside a latent, as it is a part of K (#19067, January 2026).
_LATENT_WITHOUT_VALUES: Final = 7837
_LATENT_WITHOUT_VALUES_SINCE: Final = "2026-01-25"
_BUILD: Final = re.compile(r"(?:build\s*:?\s*)?b?(\d{3,6})(?:\s*\([0-9a-f]+\))?")

# Architectures whose sliding or chunked layers keep only their window (src/models: swa_type); all others keep every
# token in these layers too.
_WINDOWED: Final = frozenset(
    {
        "AfmoeForCausalLM",
        "Cohere2ForCausalLM",
        "Cohere2MoeForCausalLM",
        "Exaone4ForCausalLM",
        "Exaone4_5_ForConditionalGeneration",
        "ExaoneMoEForCausalLM",
        "ExaoneMoeForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
        "Gemma3nForCausalLM",
        "Gemma3nForConditionalGeneration",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "GptOssForCausalLM",
        "GraniteSWAForCausalLM",
        "LagunaForCausalLM",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "Llama4ForCausalLM",
        "Llama4ForConditionalGeneration",
        "MellumForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM",
        "MuseGlimmerForCausalLM",
        "MuseGlimmerForConditionalGeneration",
        "Olmo2ForCausalLM",
        "Olmo3ForCausalLM",
        "PLaMo3ForCausalLM",
        "Plamo3ForCausalLM",
        "SmallThinkerForCausalLM",
        "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration",
    }
)

# Architectures whose recurrent state can be rolled back (src/llama-arch.cpp: llm_arch_supports_rs_rollback).
_ROLLED_BACK: Final = frozenset(
    {
        "BailingMoeV3ForCausalLM",
        "KimiK3ForConditionalGeneration",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "NemotronHForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    }
)


@dataclass(frozen=True, slots=True)
class Cells:
    """What the layers of a model keep.

    Bytes: `full` of a cell in the layers that keep every token, `sliding` in those that keep `window` tokens, `state`
    of a sequence; and the layers of each.
    """

    full: int
    sliding: int
    state: int
    full_layers: int
    sliding_layers: int
    state_layers: int
    window: int


def cells_of(model: ModelShape, inputs: EngineInputs, types: CacheTypes) -> Cells:
    """The cells of the model with its draft layers. Raises EngineUnknownError, UnknownArchitectureError."""
    if not inputs.latent:
        model = _with_whole_heads(model)
    _check(model, inputs, types)
    full = [layer for layer in model.layers if _keeps_tokens(layer) and not _windowed(model, inputs, layer)]
    sliding = [layer for layer in model.layers if _windowed(model, inputs, layer)]
    states = [cache for cache in _caches(model.layers) if isinstance(cache, StateCache)]
    values = _latent_values(inputs.version)
    drafted = full + [_drafted(full)] * inputs.draft_layers if inputs.draft_layers else full
    return Cells(
        full=sum(_layer_bytes(layer, types, latent_values=values) for layer in drafted),
        sliding=sum(_layer_bytes(layer, types, latent_values=values) for layer in sliding),
        state=sum(state_elements(cache) for cache in states) * _STATE_BYTES * _snapshots(model, inputs),
        full_layers=len(drafted),
        sliding_layers=len(sliding),
        state_layers=len(states),
        window=_window_of(model, sliding),
    )


def _with_whole_heads(model: ModelShape) -> ModelShape:
    return replace(model, layers=tuple(tuple(_whole(model, cache) for cache in layer) for layer in model.layers))


def _whole(model: ModelShape, cache: Cache) -> Cache:
    if not isinstance(cache, Latent):
        return cache
    if cache.whole is None:
        raise EngineUnknownError(
            f"no MLA: what {model.architecture} keeps without latents is not known (num_attention_heads,"
            " qk_nope_head_dim, v_head_dim): plan it with them"
        )
    return cache.whole


def state_elements(cache: StateCache) -> int:
    """Elements of one layer's state of one sequence, with the past inputs of its convolution (n_embd_r + n_embd_s)."""
    match cache:
        case Mamba1State(inner=inner, state=state, conv=conv):
            return (conv - 1) * inner + inner * state
        case Mamba2State(heads=heads, head_dim=head_dim, state=state, groups=groups, conv=conv):
            return (conv - 1) * (heads * head_dim + 2 * groups * state) + heads * head_dim * state
        case GatedDeltaState(key_heads=keys, value_heads=values, key_dim=key_dim, value_dim=value_dim, conv=conv):
            return (conv - 1) * (values * value_dim + 2 * keys * key_dim) + values * value_dim * key_dim
        case KimiDeltaState(heads=heads, head_dim=head_dim, conv=conv):
            return 3 * (conv - 1) * heads * head_dim + heads * head_dim * head_dim
        case ShortConvState(channels=channels, conv=conv):
            return (conv - 1) * channels
        case _:
            return cache.heads * cache.head_dim * cache.head_dim


def _snapshots(model: ModelShape, inputs: EngineInputs) -> int:
    """States kept per sequence: one more for each drafted token where they can be rolled back (n_rs_seq)."""
    return 1 + inputs.speculative_tokens if model.architecture in _ROLLED_BACK else 1


def _check(model: ModelShape, inputs: EngineInputs, types: CacheTypes) -> None:
    if inputs.tensor * inputs.pipeline * inputs.decode_context * inputs.data > 1:
        raise EngineUnknownError(
            "how llama.cpp spreads the cache over GPUs depends on their free memory: set tensor-parallel and"
            " pipeline-parallel to 1; the plan is of all its GPUs together"
        )
    for cache in _caches(model.layers):
        if not isinstance(cache, Attention | Latent | Indexer | StateCache):
            _refuse(model, cache)
        if isinstance(cache, Latent) and cache.window is not None:
            _refuse(model, cache)
        if isinstance(cache, Indexer) and cache.ratio != 1:
            _refuse(model, cache)
        if isinstance(cache, Latent) and types.key != types.value:
            raise EngineUnknownError("kv-dtype: with latent attention K and V are one tensor: give one type")


def _refuse(model: ModelShape, cache: Cache) -> None:
    raise UnknownArchitectureError(
        f"architectures: llama.cpp's cache of {model.architecture} ({type(cache).__name__}) is not known:"
        " plan another engine, or state the pool in tokens"
    )


def _keeps_tokens(layer: Layer) -> bool:
    return any(isinstance(cache, Attention | Latent) for cache in layer)


def _windowed(model: ModelShape, inputs: EngineInputs, layer: Layer) -> bool:
    if not inputs.hybrid_manager or model.architecture not in _WINDOWED:
        return False
    return any(isinstance(cache, Attention) and (cache.window or cache.chunk) for cache in layer)


def _window_of(model: ModelShape, layers: list[Layer]) -> int:
    windows = {cache.window or cache.chunk or 0 for cache in _caches(tuple(layers)) if isinstance(cache, Attention)}
    if len(windows) > 1:
        raise UnknownArchitectureError(
            f"sliding_window: llama.cpp has one window for all layers, {model.architecture} has {sorted(windows)}"
        )
    return windows.pop() if windows else 0


def _drafted(full: list[Layer]) -> Layer:
    """A layer of the drafter: like the last one that keeps every token, without an indexer of its own."""
    if not full:
        raise EngineUnknownError("draft layers of a model without full attention are not known for llama.cpp: set none")
    return tuple(cache for cache in full[-1] if not isinstance(cache, Indexer))


def _layer_bytes(layer: Layer, types: CacheTypes, *, latent_values: bool) -> int:
    """Bytes of one cell in one layer; the rows of K and V are of whole heads."""
    total = 0
    for cache in layer:
        match cache:
            case Attention(kv_heads=heads, key_dim=key_dim, value_dim=value_dim):
                total += heads * (types.key.row(key_dim) + types.value.row(value_dim))
            case Latent(rank=rank, rope=rope):
                total += types.key.row(rank + rope) + (types.value.row(rank) if latent_values else 0)
            case Indexer(head_dim=head_dim):
                total += types.key.row(head_dim) + _indexer_values(layer, types)
    return total


def _indexer_values(layer: Layer, types: CacheTypes) -> int:
    """Beside plain attention the indexer's buffer has room for one head of V, beside a latent it has none."""
    return sum(types.value.row(cache.value_dim) for cache in layer if isinstance(cache, Attention))


def _latent_values(version: str | None) -> bool:
    """Whether this build keeps V beside the latent. Raises EngineUnknownError."""
    if version is None:
        return False
    date = date_of(version)
    if date is not None:
        return date < _LATENT_WITHOUT_VALUES_SINCE
    found = _BUILD.fullmatch(version.strip().lower())
    if found is None:
        raise EngineUnknownError(
            f"llama.cpp version {quoted(version)} cannot be read: write its build, like b10107, or date"
        )
    return int(found.group(1)) < _LATENT_WITHOUT_VALUES


def _caches(layers: tuple[Layer, ...]) -> Iterator[Cache]:
    return (cache for layer in layers for cache in layer)
