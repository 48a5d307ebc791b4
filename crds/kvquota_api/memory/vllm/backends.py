"""Which block sizes the attention kernels take: chosen as vLLM chooses its attention backends.

Decides the kernel of each kind of cache, and the block size that all of them take. Pure.

Invariants:

1. A block size that no backend takes is an error, never rounded.
2. The order of the tables is vLLM's order of preference; the first backend that takes type and block is used.

It does not know whether the kernels are installed: FlashAttention 2-4, FlashMLA and Triton are assumed on CUDA,
FlashInfer only on sm100, no AMX on the CPU. Sources: vllm/platforms/cuda.py `_get_backend_priorities`, `interface.py`
`_preferred_block_size_for_backends`, vllm/v1/attention/backends/** of 0.32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.inputs import Platform
from kvquota_api.memory.models.layers import Attention, Cache, CrossAttention, Indexer, Latent, Layer, PoolTail, Record
from kvquota_api.memory.vllm.dtypes import KvFormat

DEFAULT_BLOCK: Final = 16  # tokens; CacheConfig.DEFAULT_BLOCK_SIZE
_FA4_TILE: Final = 64  # tokens that the fp8 kernel for heads of 512 reads at once on sm90
_FA4_HEAD: Final = 512  # head width that only FlashAttention 4 takes
_INDEXER_PAGES: Final = (32, 64)  # rows of a page of the paged MQA kernel (get_paged_mqa_page_sizes)
_MLA_WIDTHS: Final = frozenset({320, 512, 576})  # MLACommonBackend.get_supported_head_sizes
_FLASHINFER_WIDTHS: Final = frozenset({64, 128, 256, 512})  # FlashInferBackend.get_supported_head_sizes
_HALF: Final = frozenset({"float16", "bfloat16"})


@dataclass(frozen=True, slots=True)
class Kernel:
    """Block sizes of one attention backend: `exact` sizes, and multiples of `multiples`, in tokens.

    `strict`: only the sizes themselves, no block of several of them.
    """

    name: str
    exact: tuple[int, ...] = ()
    multiples: tuple[int, ...] = ()
    strict: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        return (*self.exact, *self.multiples)

    @property
    def smallest(self) -> int:
        return min(self.sizes)

    @property
    def split_block(self) -> int | None:
        """Blocks larger than this are read in parts, which their distance has to allow (customize_attention_spec)."""
        return None if self.multiples else max(self.exact)

    def takes(self, block: int) -> bool:
        if self.strict:
            return block in self.sizes
        return any(block % size == 0 for size in self.sizes)

    def largest_within(self, block: int) -> int:
        """The largest that is no larger than `block`, the smallest where none is (_largest_kernel_block_within)."""
        candidates = [*self.exact, *(max(base, block // base * base) for base in self.multiples)]
        fitting = [size for size in candidates if size <= block]
        return max(fitting) if fitting else min(candidates)


@dataclass(frozen=True, slots=True)
class Choosing:
    """What the choice of a backend depends on.

    `compute`: the model's type; `block`: the block size asked for, None: not given; `widest_head`: elements of the
    widest head of attention; `query_heads`: query heads per KV head.
    """

    platform: Platform
    kv: KvFormat
    block: int | None
    widest_head: int
    compute: str = "bfloat16"
    query_heads: int = 1


UNREAD: Final = Kernel("", multiples=(1,))  # of recurrent state, which no attention kernel reads
FLASH: Final = Kernel("FLASH_ATTN", multiples=(16,))
_FLASH_FP8: Final = Kernel("FLASH_ATTN", exact=(_FA4_TILE,))
TRITON: Final = Kernel("TRITON_ATTN", multiples=(16,))
_CPU: Final = Kernel("CPU_ATTN", multiples=(32,))
_FLASHINFER: Final = Kernel("FLASHINFER", exact=(16, 32, 64))
_FLASHINFER_LARGE: Final = Kernel("FLASHINFER", exact=(16, 32, 64, 128, 256, 512, 1024))
_CPU_MLA: Final = Kernel("CPU_MLA", exact=(16,), strict=True)
_FLASH_MLA_ATTN: Final = Kernel("FLASH_ATTN_MLA", multiples=(16,))
_FLASHMLA: Final = Kernel("FLASHMLA", exact=(64,))
_TRITON_MLA: Final = Kernel("TRITON_MLA", multiples=(16,))
_FLASHINFER_MLA: Final = Kernel("FLASHINFER_MLA", exact=(32, 64))
_FLASH_MLA_SPARSE: Final = Kernel("FLASH_ATTN_MLA_SPARSE", multiples=(64,))
_FLASHMLA_SPARSE: Final = Kernel("FLASHMLA_SPARSE", multiples=(64,))
_FLASHINFER_MLA_SPARSE: Final = Kernel("FLASHINFER_MLA_SPARSE", multiples=(32,))
_INDEXER: Final = Kernel("DEEPSEEK_V32_INDEXER", exact=(64,))
_TAIL: Final = Kernel("KPOOL_TAIL", multiples=(1,))
_PACKED: Final = Kernel("DEEPSEEK_V4", exact=(256,))


def kernels_of(layer: Layer, choosing: Choosing) -> tuple[Kernel, ...]:
    """The backend of each cache of a layer; UNREAD for recurrent state."""
    if any(isinstance(cache, Record) for cache in layer):
        return (_PACKED,) * len(layer)
    return tuple(_kernel_of(cache, choosing) for cache in layer)


def distinct_kernels(layers: Iterable[Layer], choosing: Choosing) -> tuple[Kernel, ...]:
    """The backends of a model, in the order of its layers (_find_non_ssm_backends)."""
    found = (kernel for layer in layers for kernel in kernels_of(layer, choosing))
    return tuple(dict.fromkeys(kernel for kernel in found if kernel is not UNREAD))


def preferred_block(kernels: Sequence[Kernel], default: int) -> int:
    """The smallest block that all backends take: `default` where they do (_preferred_block_size_for_backends)."""
    if all(kernel.takes(default) for kernel in kernels):
        return default
    candidates = sorted({math.lcm(*sizes) for sizes in itertools.product(*(kernel.sizes for kernel in kernels))})
    for candidate in candidates:
        if all(kernel.takes(candidate) for kernel in kernels):
            return candidate
    named = "; ".join(f"{kernel.name}: {kernel.sizes}" for kernel in kernels)
    raise EngineUnknownError(
        f"the attention backends share no KV cache block size ({named}): this model cannot be served"
    )


def _kernel_of(cache: Cache, choosing: Choosing) -> Kernel:
    match cache:
        case Attention() | CrossAttention():
            return _attention(cache.key_dim, choosing)
        case Latent():
            choose = _sparse_latent if cache.sparse else _latent
            return choose(cache.rank + cache.rope, choosing)
        case Indexer():
            pooled = Kernel("GLM5_NEXT_INDEXER", exact=tuple(cache.ratio * rows for rows in _INDEXER_PAGES))
            return pooled if cache.ratio > 1 else _INDEXER
        case PoolTail():
            return _TAIL
        case _:
            return UNREAD


def _attention(width: int, choosing: Choosing) -> Kernel:
    if choosing.platform == "cpu":
        return _CPU
    if choosing.kv.name.startswith("nvfp4") or choosing.kv.name.endswith("ds_mla"):
        return _only_on_sm100(choosing)
    suited = width in _FLASHINFER_WIDTHS and choosing.kv.name in {*_HALF, "fp8", "fp8_e4m3", "fp8_e5m2"}
    if choosing.platform == "cuda-sm100" and suited:
        return _checked((_FLASHINFER_LARGE if choosing.query_heads > 1 else _FLASHINFER,), choosing)
    if not _wants_tile(choosing):
        return _checked((FLASH, TRITON), choosing)
    tiled = choosing.block is None or choosing.block % _FA4_TILE == 0
    if not tiled:
        return _checked((TRITON,), choosing)
    return _FLASH_FP8 if width == _FA4_HEAD else FLASH


def _wants_tile(choosing: Choosing) -> bool:
    """Heads of 512 in fp8 on sm90 (_get_sm90_fa4_fp8_kv_block_size)."""
    fp8 = choosing.kv.name in ("fp8", "fp8_e4m3")
    return choosing.platform == "cuda-sm90" and fp8 and choosing.widest_head == _FA4_HEAD


def _only_on_sm100(choosing: Choosing) -> Kernel:
    if choosing.platform == "cuda-sm100" and not choosing.kv.name.endswith("ds_mla"):
        return _checked((_FLASHINFER,), choosing)
    raise EngineUnknownError(
        f"no attention backend of {choosing.platform} takes the KV cache dtype {choosing.kv.name}: use auto or fp8"
    )


def _latent(width: int, choosing: Choosing) -> Kernel:
    if choosing.platform == "cpu":
        return _CPU_MLA
    plain = choosing.kv.name in _HALF
    fp8 = choosing.kv.name in ("fp8", "fp8_e4m3")
    if choosing.compute not in _HALF or not (plain or fp8):
        raise EngineUnknownError(
            f"no MLA backend of {choosing.platform} takes the KV cache dtype {choosing.kv.name} with a model in "
            f"{choosing.compute}: use auto or fp8, and bfloat16 or float16"
        )
    candidates: list[Kernel] = []
    if choosing.platform == "cuda-sm90" and width in _MLA_WIDTHS:
        candidates = [_FLASH_MLA_ATTN] if plain else [_FLASHMLA]
    if choosing.platform == "cuda-sm100" and width in _MLA_WIDTHS:
        candidates = [_FLASHINFER_MLA]
    return _checked((*candidates, _TRITON_MLA), choosing)


def _sparse_latent(width: int, choosing: Choosing) -> Kernel:
    plain = choosing.kv.name in _HALF
    packed = choosing.kv.name == "fp8_ds_mla"
    if choosing.platform == "cuda-sm90" and plain:
        return _checked((_FLASH_MLA_SPARSE,), choosing)
    if choosing.platform in ("cuda-sm90", "cuda-sm100") and packed:
        return _checked((_FLASHMLA_SPARSE,), choosing)
    if choosing.platform == "cuda-sm100" and choosing.kv.name in {*_HALF, "fp8", "fp8_e4m3"}:
        return _checked((_FLASHINFER_MLA_SPARSE,), choosing)
    raise EngineUnknownError(
        f"no sparse MLA backend of {choosing.platform} takes a latent of {width} elements in the KV cache dtype "
        f"{choosing.kv.name}: use auto or fp8 on cuda-sm90 or cuda-sm100"
    )


def _checked(candidates: Sequence[Kernel], choosing: Choosing) -> Kernel:
    """The first that takes the block asked for."""
    for kernel in candidates:
        if choosing.block is None or kernel.takes(choosing.block):
            return kernel
    taken = " or ".join(f"{kernel.name}: multiples of {kernel.smallest}" for kernel in candidates)
    raise EngineUnknownError(
        f"block size {choosing.block} is refused by every attention backend of {choosing.platform} for this model "
        f"({taken}): change the block size or leave it out"
    )
