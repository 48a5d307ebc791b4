"""The model configs that kvquota carries."""

from collections import Counter

import pytest

from kvquota_api.memory.errors import ModelConfigError
from kvquota_api.memory.models.layers import (
    Attention,
    Cache,
    CompressorState,
    CrossAttention,
    GatedDeltaState,
    Indexer,
    KimiDeltaState,
    Latent,
    Mamba2State,
    Record,
)
from kvquota_api.memory.models.reading import read_model
from kvquota_api.memory.presets import load_preset, preset_names


def full(kv_heads: int, dim: int, window: int | None = None) -> Attention:
    """Attention with keys and values of one size."""
    return Attention(kv_heads, dim, dim, window)


MLA = Latent(512, 64)
DSA = Latent(512, 64, sparse=True)
DSA_78: dict[Cache, int] = {DSA: 78, Indexer(128): 78}
GLM_5_2: dict[Cache, int] = {DSA: 78, Indexer(128): 21}
WINDOW = Record(512, 64, window=128)
COARSE = (Record(512, 64, 128), CompressorState(1024, 128, 128))
FINE = (Record(512, 64, 4), CompressorState(2048, 4, 8), Indexer(128, 4), CompressorState(512, 4, 8))
LLAMA_4: dict[Cache, int] = {Attention(8, 128, 128, chunk=8192): 36, full(8, 128): 12}


def each(caches: tuple[Cache, ...], layers: int) -> dict[Cache, int]:
    """Caches that stand side by side in that many layers."""
    return dict.fromkeys(caches, layers)


def delta(value_heads: int) -> GatedDeltaState:
    """The state of a Qwen gated delta net."""
    return GatedDeltaState(16, value_heads, 128, 128, 4)


CACHES: dict[str, dict[Cache, int]] = {
    "deepseek-r1": {MLA: 61},
    "deepseek-v2-lite": {MLA: 27},
    "deepseek-v3": {MLA: 61},
    "deepseek-v3.2": {DSA: 61, Indexer(128): 61},
    "deepseek-v3.2-nvfp4": {DSA: 61, Indexer(128): 61},
    "deepseek-v4-flash": {WINDOW: 43, **each(COARSE, 20), **each(FINE, 21)},
    "deepseek-v4-pro": {WINDOW: 61, **each(COARSE, 31), **each(FINE, 30)},
    "gemma-2-9b": {full(8, 256, 4096): 21, full(8, 256): 21},
    "gemma-3-12b": {full(8, 256, 1024): 40, full(8, 256): 8},
    "gemma-3-1b": {full(1, 256, 512): 22, full(1, 256): 4},
    "gemma-3-27b": {full(16, 128, 1024): 52, full(16, 128): 10},
    "gemma-3-4b": {full(4, 256, 1024): 29, full(4, 256): 5},
    "gemma-4-26b-a4b": {full(8, 256, 1024): 25, full(2, 512): 5},
    "gemma-4-31b-nvfp4": {full(16, 256, 1024): 50, full(4, 512): 10},
    "glm-4.5-air": {full(8, 128): 46},
    "glm-4.7-flash": {MLA: 47},
    "glm-5": DSA_78,
    "glm-5.1": DSA_78,
    "glm-5.1-fp8": DSA_78,
    "glm-5.2": GLM_5_2,
    "glm-5.2-fp8": GLM_5_2,
    "gpt-oss-120b": {full(8, 64, 128): 18, full(8, 64): 18},
    "gpt-oss-20b": {full(8, 64, 128): 12, full(8, 64): 12},
    "kimi-k2": {MLA: 61},
    "kimi-k2.5": {MLA: 61},
    "kimi-k3": {KimiDeltaState(96, 128, 4, bounded=True): 69, MLA: 24},
    "kimi-linear-48b-a3b": {KimiDeltaState(32, 128, 4): 20, MLA: 7},
    "llama-2-7b": {full(32, 128): 32},
    "llama-3.1-405b": {full(8, 128): 126},
    "llama-3.1-70b": {full(8, 128): 80},
    "llama-3.1-70b-fp8": {full(8, 128): 80},
    "llama-3.1-8b": {full(8, 128): 32},
    "llama-3.2-1b": {full(8, 64): 16},
    "llama-3.2-3b": {full(8, 128): 28},
    "llama-3.3-70b": {full(8, 128): 80},
    "llama-3.3-nemotron-super-49b": {full(8, 128): 49},
    "llama-4-maverick": LLAMA_4,
    "llama-4-scout": LLAMA_4,
    "mimo-7b": {full(8, 128): 36},
    "mimo-v2-flash": {Attention(8, 192, 128, 128): 39, Attention(4, 192, 128): 9},
    "minimax-m2.5": {full(8, 128): 62},
    "minimax-m2.7": {full(8, 128): 62},
    "mistral-7b": {full(8, 128): 32},
    "mistral-nemo-12b": {full(8, 128): 40},
    "mistral-small-3.2-24b": {full(8, 128): 40},
    "mixtral-8x22b": {full(8, 128): 56},
    "mixtral-8x7b": {full(8, 128): 32},
    "nemotron-3-nano-30b-a3b": {Mamba2State(64, 64, 128, 8, 4): 23, full(2, 128): 6},
    "nemotron-3-super-120b-a12b-fp8": {Mamba2State(128, 64, 128, 8, 4): 40, full(2, 128): 8},
    "nemotron-3-super-120b-a12b-nvfp4": {Mamba2State(128, 64, 128, 8, 4): 40, full(2, 128): 8},
    "nemotron-3-ultra-550b-a55b": {Mamba2State(256, 64, 128, 8, 4): 48, full(2, 128): 12},
    "nemotron-h-56b": {Mamba2State(256, 64, 256, 8, 4): 54, full(8, 128): 10},
    "phi-4": {full(10, 128): 40},
    "qwen2.5-0.5b": {full(2, 64): 24},
    "qwen2.5-1.5b": {full(2, 128): 28},
    "qwen2.5-14b": {full(8, 128): 48},
    "qwen2.5-32b": {full(8, 128): 64},
    "qwen2.5-3b": {full(2, 128): 36},
    "qwen2.5-72b": {full(8, 128): 80},
    "qwen2.5-7b": {full(4, 128): 28},
    "qwen3-0.6b": {full(8, 128): 28},
    "qwen3-1.7b": {full(8, 128): 28},
    "qwen3-14b": {full(8, 128): 40},
    "qwen3-235b-a22b": {full(4, 128): 94},
    "qwen3-235b-a22b-fp8": {full(4, 128): 94},
    "qwen3-30b-a3b": {full(4, 128): 48},
    "qwen3-30b-a3b-fp8": {full(4, 128): 48},
    "qwen3-32b": {full(8, 128): 64},
    "qwen3-32b-fp8": {full(8, 128): 64},
    "qwen3-4b": {full(8, 128): 36},
    "qwen3-8b": {full(8, 128): 36},
    "qwen3-coder-480b-a35b": {full(8, 128): 62},
    "qwen3-next-80b-a3b": {delta(32): 36, full(2, 256): 12},
    "qwen3-vl-235b-a22b": {full(4, 128): 94},
    "qwen3-vl-2b": {full(8, 128): 28},
    "qwen3-vl-30b-a3b": {full(4, 128): 48},
    "qwen3-vl-32b": {full(8, 128): 64},
    "qwen3-vl-4b": {full(8, 128): 36},
    "qwen3-vl-8b": {full(8, 128): 36},
    "qwen3.5-122b-a10b": {delta(64): 36, full(2, 256): 12},
    "qwen3.5-27b": {delta(48): 48, full(4, 256): 16},
    "qwen3.5-35b-a3b": {delta(32): 30, full(2, 256): 10},
    "qwen3.5-397b-a17b": {delta(64): 45, full(2, 256): 15},
    "qwen3.6-27b-nvfp4": {delta(48): 48, full(4, 256): 16},
    "qwen3.6-35b-a3b-nvfp4": {delta(32): 30, full(2, 256): 10},
    "whisper-large-v3": {full(20, 64): 32, CrossAttention(20, 64, 64): 32},
}


def test_every_preset_keeps_what_is_known_of_it() -> None:
    read = {
        name: Counter(cache for layer in read_model(load_preset(name)).layers for cache in layer) for name in CACHES
    }

    assert read == CACHES
    assert preset_names() == tuple(sorted(CACHES))


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_says_its_longest_context(name: str) -> None:
    assert read_model(load_preset(name)).max_positions is not None


def test_a_name_that_is_close_is_suggested() -> None:
    with pytest.raises(
        ModelConfigError, match=r"llama-3-8b is not one of .*; did you mean llama-3\.1-8b\? For any other"
    ):
        load_preset("llama-3-8b")


@pytest.mark.parametrize("name", ["zzz", "../presets/llama-3.1-8b", "__init__.py", ""])
def test_a_name_that_is_none_lists_the_presets(name: str) -> None:
    with pytest.raises(ModelConfigError, match=r"is not one of deepseek-r1, .*, llama-3\.1-8b, .*whisper-large-v3"):
        load_preset(name)
