"""Model shapes for tests of the engines' planners: small ones, and the layers of well-known models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from kvquota_api.memory.models.layers import Attention, Cache, Indexer, Latent, Layer, Mamba2State, ModelShape

DENSE: Final = Attention(8, 128, 128)  # 8 KV heads of 128: 4096 bytes per token in 16 bits
LATENT: Final = Latent(512, 64)
SPARSE: Final[Layer] = (Indexer(128), Latent(512, 64, sparse=True))
MAMBA2: Final = Mamba2State(heads=64, head_dim=64, state=128, groups=8, conv=4)


def shape(*layers: Cache | Layer, **changes: Any) -> ModelShape:
    """A model of these layers, with fields changed. A cache alone is a layer of its own."""
    made = ModelShape(
        architecture="LlamaForCausalLM",
        model_type="llama",
        layers=tuple(layer if isinstance(layer, tuple) else (layer,) for layer in layers),
        draft_layers=(),
        heads=32,
        vocabulary=128256,
        max_positions=131072,
        dtype="bf16",
    )
    return replace(made, **changes)
