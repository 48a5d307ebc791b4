"""Caches of the models that pack pages of several sizes into a block: DeepSeek-V4 and GLM-5-next.

Decides their rows, blocks and pages. Pure.

Invariants:

1. Pages of packed records are multiples of what the decode kernel strides by.
2. A width or ratio that vLLM has no packing for is an error naming it.

Sources: vllm/models/deepseek_v4/attention.py, compressor.py, vllm/v1/attention/backends/mla/sparse_swa.py,
vllm/models/glm5next/common/attention.py of 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.models.layers import CompressorState, Indexer, Layer, PoolTail, Record
from kvquota_api.memory.vllm.backends import Kernel
from kvquota_api.memory.vllm.specs import LayerSpec

_WINDOW_BLOCK: Final = 64  # tokens; DeepseekV4SWACache
_RECORD_BYTES: Final = 584  # of one record in fp8: 448 + 64 x 2 + 8 scales (DeepseekV4Attention.get_kv_cache_spec)
_RECORD_DIM: Final = 512  # elements; the only width that is packed
_ALIGN: Final = 576  # bytes; FlashMLA's stride between pages of packed records
_COMPRESSOR_BLOCKS: Final[Mapping[int, int]] = {4: 4, 128: 8}  # tokens by ratio; CompressorStateCache
_COMPRESSOR_BYTES: Final = 4  # fp32
_SCALE_GROUP: Final = 128  # elements of an indexer's key for one fp32 scale
_TAIL_BYTES: Final = 2 * 2  # a key and a gate in bfloat16


def indexer_spec(cache: Indexer, kernel: Kernel, layer: Layer, block: int) -> LayerSpec:
    """Keys in fp8 with fp32 scales, whatever the type of the latents."""
    packed = any(isinstance(other, Record) for other in layer)
    _check_ratio(cache.ratio, block)
    return LayerSpec(
        kind="Latent",
        block_tokens=block,
        row_bytes=cache.head_dim + cache.head_dim // _SCALE_GROUP * 4,
        identity=("indexer", cache.head_dim),
        tokens_per_row=cache.ratio,
        row_align=_ALIGN if packed else 1,
        stride_block=kernel.split_block,
    )


def record_spec(cache: Record, kernel: Kernel, block: int) -> LayerSpec:
    """Records in packed fp8: of the last tokens of a window, or of every `ratio` tokens."""
    if cache.dim != _RECORD_DIM:
        raise EngineUnknownError(f"records of {cache.dim} elements are not known for vLLM: it packs {_RECORD_DIM}")
    if cache.window is not None:
        return LayerSpec(
            "SlidingLatent", _WINDOW_BLOCK, _RECORD_BYTES, ("record",), window=cache.window, row_align=_ALIGN
        )
    _check_ratio(cache.ratio, block)
    return LayerSpec(
        kind="Latent",
        block_tokens=block,
        row_bytes=_RECORD_BYTES,
        identity=("record",),
        tokens_per_row=cache.ratio,
        row_align=_ALIGN,
        stride_block=kernel.split_block,
    )


def compressor_spec(cache: CompressorState) -> LayerSpec:
    """Partial sums of the tokens that are not compressed yet."""
    block = _COMPRESSOR_BLOCKS.get(cache.ratio)
    if block is None:
        known = " or ".join(str(ratio) for ratio in _COMPRESSOR_BLOCKS)
        raise EngineUnknownError(f"a compressor of {cache.ratio} tokens is not known for vLLM: it has {known}")
    return LayerSpec(
        kind="SlidingLatent",
        block_tokens=block,
        row_bytes=cache.width * _COMPRESSOR_BYTES,
        identity=("compressor", cache.width),
        window=cache.window,
        row_align=_ALIGN,
    )


def tail_spec(cache: PoolTail, drafted: int) -> LayerSpec:
    """A ring of whole pools for the open one and `drafted` tokens more (Glm5NextTailCache)."""
    pools = -(-(cache.pool + drafted) // cache.pool)
    return LayerSpec(
        kind="Ring",
        block_tokens=cache.pool * (1 << (pools - 1).bit_length()),
        row_bytes=cache.head_dim * _TAIL_BYTES,
        identity=("tail", cache.head_dim),
        fixed_blocks=1,
        sharded=False,
    )


def _check_ratio(ratio: int, block: int) -> None:
    """A block holds at least one record."""
    if block < ratio:
        raise EngineUnknownError(
            f"a block of {block} tokens does not hold a record of {ratio}: choose a larger block size, or leave it out"
        )
