"""Which block sizes attention kernels take, by kind of cache, platform and type."""

from dataclasses import replace

import pytest

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.inputs import Platform
from kvquota_api.memory.models.layers import (
    Attention,
    Cache,
    Indexer,
    Latent,
    Mamba1State,
    PoolTail,
    Record,
)
from kvquota_api.memory.vllm.backends import (
    UNREAD,
    Choosing,
    Kernel,
    distinct_kernels,
    kernels_of,
    preferred_block,
)
from kvquota_api.memory.vllm.dtypes import kv_format

ATTENTION = Attention(8, 128, 128)
WIDE = Attention(8, 512, 512)
LATENT = Latent(512, 64)
ODD_LATENT = Latent(256, 32)
SPARSE = Latent(512, 64, sparse=True)


def choosing(
    platform: Platform = "cuda-sm90", kv: str = "bfloat16", block: int | None = None, head: int = 128
) -> Choosing:
    return Choosing(platform, kv_format(kv), block, widest_head=head, query_heads=1)


def kernel(cache: Cache, by: Choosing) -> Kernel:
    return kernels_of((cache,), by)[0]


@pytest.mark.parametrize(
    ("cache", "by", "name", "sizes"),
    [
        pytest.param(ATTENTION, choosing(), "FLASH_ATTN", (16,), id="FlashAttention takes multiples of 16"),
        pytest.param(ATTENTION, choosing("cpu"), "CPU_ATTN", (32,), id="the CPU takes multiples of 32"),
        pytest.param(ATTENTION, choosing("cuda-sm100"), "FLASHINFER", (16, 32, 64), id="Blackwell takes FlashInfer"),
        pytest.param(
            ATTENTION,
            replace(choosing("cuda-sm100"), query_heads=4),
            "FLASHINFER",
            (16, 32, 64, 128, 256, 512, 1024),
            id="with grouped queries also large pages",
        ),
        pytest.param(
            ATTENTION, choosing("cuda-sm100", "int8_per_token_head"), "FLASH_ATTN", (16,), id="scaled types elsewhere"
        ),
        pytest.param(Attention(8, 80, 80), choosing("cuda-sm100"), "FLASH_ATTN", (16,), id="but not for all widths"),
        pytest.param(ATTENTION, choosing("cuda-sm100", "nvfp4"), "FLASHINFER", (16, 32, 64), id="nvfp4 on Blackwell"),
        pytest.param(WIDE, choosing(kv="fp8", head=512), "FLASH_ATTN", (64,), id="heads of 512 in fp8 need a tile"),
        pytest.param(ATTENTION, choosing(kv="fp8", head=512), "FLASH_ATTN", (16,), id="their narrow neighbours do not"),
        pytest.param(
            WIDE,
            choosing(kv="fp8", head=512, block=16),
            "TRITON_ATTN",
            (16,),
            id="a block that is no tile goes to Triton",
        ),
        pytest.param(WIDE, choosing(kv="fp8", head=512, block=128), "FLASH_ATTN", (64,), id="one of tiles does not"),
        pytest.param(LATENT, choosing(), "FLASH_ATTN_MLA", (16,), id="latents on Hopper"),
        pytest.param(LATENT, choosing(kv="fp8"), "FLASHMLA", (64,), id="latents in fp8 on Hopper"),
        pytest.param(LATENT, choosing(kv="fp8", block=48), "TRITON_MLA", (16,), id="in blocks that FlashMLA refuses"),
        pytest.param(ODD_LATENT, choosing(), "TRITON_MLA", (16,), id="latents of another width"),
        pytest.param(LATENT, choosing("cuda-sm80"), "TRITON_MLA", (16,), id="latents on Ampere"),
        pytest.param(LATENT, choosing("cuda-sm100"), "FLASHINFER_MLA", (32, 64), id="latents on Blackwell"),
        pytest.param(LATENT, choosing("cpu"), "CPU_MLA", (16,), id="latents on the CPU"),
        pytest.param(SPARSE, choosing(), "FLASH_ATTN_MLA_SPARSE", (64,), id="sparse latents on Hopper"),
        pytest.param(SPARSE, choosing(kv="fp8_ds_mla"), "FLASHMLA_SPARSE", (64,), id="packed sparse latents"),
        pytest.param(
            SPARSE, choosing("cuda-sm100", "fp8"), "FLASHINFER_MLA_SPARSE", (32,), id="sparse latents on Blackwell"
        ),
        pytest.param(Indexer(128), choosing(), "DEEPSEEK_V32_INDEXER", (64,), id="an indexer"),
        pytest.param(Indexer(128, 16), choosing(), "GLM5_NEXT_INDEXER", (512, 1024), id="a pooled indexer"),
        pytest.param(PoolTail(128, 16), choosing(), "KPOOL_TAIL", (1,), id="its open pool"),
        pytest.param(Mamba1State(1, 1, 4), choosing(), "", (1,), id="state has none"),
    ],
)
def test_backend_and_its_sizes(cache: Cache, by: Choosing, name: str, sizes: tuple[int, ...]) -> None:
    chosen = kernel(cache, by)
    assert (chosen.name, chosen.sizes) == (name, sizes)


@pytest.mark.parametrize(
    ("cache", "by", "text"),
    [
        pytest.param(ATTENTION, choosing(block=20), "block size 20 is refused .*multiples of 16", id="a block of 20"),
        pytest.param(
            SPARSE, choosing(block=48), "block size 48 is refused .*multiples of 64", id="a sparse block of 48"
        ),
        pytest.param(
            ATTENTION, choosing("cuda-sm100", "fp8_ds_mla"), "dtype fp8_ds_mla: use", id="packed latents' type"
        ),
        pytest.param(ATTENTION, choosing(kv="nvfp4"), "takes the KV cache dtype nvfp4: use auto", id="nvfp4 on Hopper"),
        pytest.param(
            LATENT, choosing(kv="fp8_e5m2"), "no MLA backend .* fp8_e5m2 .*: use auto or fp8", id="e5m2 latents"
        ),
        pytest.param(
            LATENT, replace(choosing(), compute="float32"), "with a model in float32: use auto", id="latents in float32"
        ),
        pytest.param(SPARSE, choosing(kv="fp8_e4m3"), "no sparse MLA backend .*576.* fp8_e4m3", id="sparse e4m3"),
        pytest.param(SPARSE, choosing("cpu"), "no sparse MLA backend of cpu", id="sparse latents on the CPU"),
    ],
)
def test_what_no_backend_takes_is_refused(cache: Cache, by: Choosing, text: str) -> None:
    with pytest.raises(EngineUnknownError, match=text):
        kernel(cache, by)


def test_all_caches_of_a_layer_with_records_share_a_backend() -> None:
    layer = (Record(512, 64, window=128), Indexer(128, 4))
    assert {each.name for each in kernels_of(layer, choosing(kv="fp8_ds_mla"))} == {"DEEPSEEK_V4"}


def test_backends_of_a_model_are_named_once_and_without_state() -> None:
    layers = [(Mamba1State(1, 1, 4),), (Indexer(128), SPARSE), (Indexer(128), SPARSE)]
    assert [each.name for each in distinct_kernels(layers, choosing())] == [
        "DEEPSEEK_V32_INDEXER",
        "FLASH_ATTN_MLA_SPARSE",
    ]


@pytest.mark.parametrize(
    ("kernels", "block"),
    [
        pytest.param([Kernel("a", multiples=(16,))], 16, id="the default where it is taken"),
        pytest.param([Kernel("a", exact=(64,))], 64, id="else the smallest"),
        pytest.param(
            [Kernel("a", exact=(64,)), Kernel("b", multiples=(48,))], 192, id="the least common multiple of two"
        ),
        pytest.param([], 16, id="the default without any"),
    ],
)
def test_preferred_block_is_taken_by_all(kernels: list[Kernel], block: int) -> None:
    assert preferred_block(kernels, 16) == block


def test_backends_without_a_common_block_are_refused() -> None:
    kernels = [Kernel("A", exact=(16,), strict=True), Kernel("B", exact=(64,))]
    with pytest.raises(EngineUnknownError, match=r"share no KV cache block size \(A: \(16,\); B: \(64,\)\)"):
        preferred_block(kernels, 16)


@pytest.mark.parametrize(
    ("taking", "block", "largest"),
    [
        pytest.param(Kernel("a", multiples=(16,)), 50, 48, id="the multiple below"),
        pytest.param(Kernel("a", multiples=(32,)), 16, 32, id="the smallest where none is below"),
        pytest.param(Kernel("a", exact=(16, 32, 64)), 128, 64, id="the largest of exact sizes"),
    ],
)
def test_sliding_layers_take_the_largest_block_within(taking: Kernel, block: int, largest: int) -> None:
    assert taking.largest_within(block) == largest


def test_only_kernels_of_exact_sizes_split_blocks() -> None:
    assert (Kernel("a", exact=(16, 64)).split_block, UNREAD.split_block) == (64, None)
