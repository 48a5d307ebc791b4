"""The KV cache that TensorRT-LLM makes of its memory: one pool of blocks for all layers.

Decides blocks and bytes. Pure.

    tokens  =  bytes / bytes of a token, rounded down;   blocks  =  tokens / tokens of a block, rounded up

Invariants:

1. The last block may pass the bytes given by less than one block: that is how TensorRT-LLM rounds.
2. Sliding layers keep every token, as `max_attention_window` is not set by default.
3. Every pipeline stage has the same number of blocks; the stage with the widest tokens decides it.

It does not know: attention windows that are set, pools on the host, beams, caches of recurrent layers and of cross
attention, `kv_cache_config.max_tokens`, and attention split by data.

Source: cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp (calculateMaxNumBlocks),
tensorrt_llm/_torch/pyexecutor/resource_manager.py (get_cache_bytes_per_token).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Final

from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.memory.cache_plan import CacheGroup, CachePlan
from kvquota_api.memory.errors import EngineUnknownError, PoolTooSmallError, UnknownArchitectureError
from kvquota_api.memory.inputs import LONGEST, EngineInputs
from kvquota_api.memory.lengths import length_asked, positions_of
from kvquota_api.memory.models.layers import Attention, Cache, Indexer, Latent, Layer, ModelShape
from kvquota_api.memory.stages import stages_of
from kvquota_api.quoting import quoted

BLOCK_TOKENS: Final = 32  # of one block (KvCacheConfig.tokens_per_block)
OLD_BLOCK_TOKENS: Final = 64  # before _SMALLER_BLOCKS
_SMALLER_BLOCKS: Final = (0, 18)
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(?:[.+-]?[a-z0-9.+-]*)?")

_INDEXER_BLOCK: Final = 128  # values of an indexer's key that share one fp32 scale
_SCALE_BYTES: Final = 4

# Bytes of one element; nvfp4: two values per byte and one fp8 scale for 16 of them.
_BYTES: Final[Mapping[str, Fraction]] = {
    "float32": Fraction(4),
    "bfloat16": Fraction(2),
    "float16": Fraction(2),
    "fp8": Fraction(1),
    "int8": Fraction(1),
    "nvfp4": Fraction(1, 2) + Fraction(1, 16),
}

_ALIASES: Final[Mapping[str, str]] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "fp8_e4m3": "fp8",
}


def plan_cache(model: ModelShape, inputs: EngineInputs, kv_bytes: int) -> CachePlan:
    """The cache that TensorRT-LLM makes of `kv_bytes` per GPU (free memory x free_gpu_memory_fraction).

    Raises PoolTooSmallError where LONGEST is asked for and nothing fits, and EngineUnknownError,
    UnknownArchitectureError, ModelConfigError for what is not known.
    """
    _check(model, inputs)
    element, dtype_notes = _element_bytes(model, inputs)
    block, block_notes = _block_tokens(inputs)
    token = max(sum(_layer_bytes(model, inputs, layer, element) for layer in stage) for stage in _stages(model, inputs))
    blocks = -(-(max(0, kv_bytes) // token) // block)
    length, length_notes = _length(model, inputs, blocks * block)
    plan = _plan(model, block=block, token=token, blocks=blocks, length=length)
    notes = (*_version_notes(inputs), *dtype_notes, *block_notes, *length_notes, *_window_notes(model))
    return replace(plan, assumptions=notes)


def _version_notes(inputs: EngineInputs) -> tuple[str, ...]:
    if inputs.version is not None:
        return ()
    oldest = ".".join(map(str, _SMALLER_BLOCKS))
    return (f"engine-version: {oldest} of TensorRT-LLM or newer, for which the same rules are known",)


def _check(model: ModelShape, inputs: EngineInputs) -> None:
    if model.heads % inputs.tensor:
        raise EngineUnknownError(
            f"tensor-parallel: {inputs.tensor} GPUs cannot share {model.heads} heads evenly: choose a divisor"
        )
    if inputs.decode_context > 1:
        raise EngineUnknownError("context parallelism is not known for TensorRT-LLM: set it to 1")
    for cache in _caches(model.layers):
        _check_kind(model, cache)


def _check_kind(model: ModelShape, cache: Cache) -> None:
    plain = isinstance(cache, Attention) and cache.key_dim == cache.value_dim
    latent = isinstance(cache, Latent) and cache.window is None
    indexer = (
        isinstance(cache, Indexer) and cache.ratio == 1 and any(isinstance(c, Latent) for c in _caches(model.layers))
    )
    if not (plain or latent or indexer):
        raise UnknownArchitectureError(
            f"architectures: TensorRT-LLM's cache of {model.architecture} ({type(cache).__name__}) is not known:"
            " plan another engine, or state the pool in tokens"
        )


def _element_bytes(model: ModelShape, inputs: EngineInputs) -> tuple[Fraction, tuple[str, ...]]:
    if inputs.kv_dtype != "auto":
        return _bytes_of(inputs.kv_dtype), ()
    declared = model.quantisation.kv_scheme if model.quantisation is not None else None
    name = declared or ("bfloat16" if inputs.dtype == "auto" else inputs.dtype)
    return _bytes_of(name), (f"kv-dtype: {name}, what TensorRT-LLM makes of auto",)


def _bytes_of(name: str) -> Fraction:
    spelt = _ALIASES.get(name, name)
    if spelt not in _BYTES:
        raise EngineUnknownError(
            f"KV cache dtype {quoted(name)} is not known for TensorRT-LLM: use auto, {', '.join(sorted(_BYTES))}"
        )
    return _BYTES[spelt]


def _block_tokens(inputs: EngineInputs) -> tuple[int, tuple[str, ...]]:
    if inputs.block_tokens is not None:
        return inputs.block_tokens, ()
    block = OLD_BLOCK_TOKENS if _release(inputs.version) < _SMALLER_BLOCKS else BLOCK_TOKENS
    return block, (f"block-size: {block} tokens, TensorRT-LLM's default",)


def _release(version: str | None) -> tuple[int, int]:
    """(major, minor) of a version like "1.2.0rc3"; the newest where none is given."""
    if version is None:
        return _SMALLER_BLOCKS
    found = _VERSION.fullmatch(version.strip())
    if found is None:
        raise EngineUnknownError(f"TensorRT-LLM version {quoted(version)} cannot be read: write it like 1.2.0")
    return int(found.group(1)), int(found.group(2))


def _stages(model: ModelShape, inputs: EngineInputs) -> Iterator[tuple[Layer, ...]]:
    """The layers of each pipeline stage; drafters' layers are on the last."""
    of = stages_of(len(model.layers), inputs.pipeline, "TensorRTLLM")
    for stage in range(inputs.pipeline):
        drafts = inputs.draft_layers if stage == inputs.pipeline - 1 else 0
        own = tuple(layer for layer, at in zip(model.layers, of, strict=True) if at == stage)
        yield own + (model.layers[-1],) * drafts


def _layer_bytes(model: ModelShape, inputs: EngineInputs, layer: Layer, element: Fraction) -> int:
    """Bytes of one token in one layer on one GPU. KV heads that tensor parallelism does not divide are rounded up; the
    keys of an indexer are kept in every layer with a latent."""
    indexer = next((cache.head_dim for cache in _caches(model.layers) if isinstance(cache, Indexer)), 0)
    total = 0
    for cache in layer:
        if isinstance(cache, Attention):
            heads = -(-cache.kv_heads // inputs.tensor)
            total += int(element * heads * 2 * cache.key_dim)
        elif isinstance(cache, Latent):
            total += int(element * (cache.rank + cache.rope)) + indexer + indexer // _INDEXER_BLOCK * _SCALE_BYTES
    return total


def _length(model: ModelShape, inputs: EngineInputs, tokens: int) -> tuple[int, tuple[str, ...]]:
    length, notes = length_asked(model, inputs)
    if length != LONGEST:
        return length, notes
    if not tokens:
        raise PoolTooSmallError("the KV cache holds no block of tokens: give more memory")
    return min(tokens, positions_of(model)), notes


def _window_notes(model: ModelShape) -> tuple[str, ...]:
    slides = any(isinstance(c, Attention) and (c.window or c.chunk) for c in _caches(model.layers))
    return ("max_attention_window: not set, so that sliding layers keep every token",) * slides


def _plan(model: ModelShape, *, block: int, token: int, blocks: int, length: int) -> CachePlan:
    layers = sum(1 for layer in model.layers if layer)
    need = -(-length // block)
    shorter = f"requests longer than {blocks * block} tokens are refused: max_seq_len is lowered to what the pool holds"
    return CachePlan(
        blocks=blocks,
        null_blocks=0,
        block_tokens=block,
        bytes_per_token=token,
        bytes_per_block=token * block,
        kv_bytes=blocks * block * token,
        tokens=blocks * block,
        logged_tokens=blocks * block,
        concurrency=Fraction(blocks, need),
        max_model_len=length,
        min_bytes=need * block * token,
        groups=(CacheGroup("Full", layers, token * block, LayerGroup(kind="Full", block_tokens=block)),),
        warnings=(shorter,) * (length > blocks * block),
    )


def _caches(layers: tuple[Layer, ...]) -> Iterator[Cache]:
    return (cache for layer in layers for cache in layer)
