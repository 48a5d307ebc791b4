"""What a model's weights take on one GPU.

Decides the parameter count of a dense model from its config and the bytes by stored type (docs/memory.md §4). Pure.

Invariants:

1. Embeddings and norms stay in 16 bits when the linear layers are quantised; tied embeddings count once.
2. Tensor parallelism divides the linear layers and the vocabulary, never the norms; a KV head is never split.
3. The result is that of the GPU that holds most: of the pipeline stage with most layers and the larger end.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from kvquota_api.amounts import Bytes
from kvquota_api.memory.architectures import DenseModel

# Bytes per parameter of a linear layer (docs/memory.md §4): the stored number and the scales that go with it.
LINEAR_BYTES: Final = {
    "fp32": Fraction(4),
    "bf16": Fraction(2),
    "fp16": Fraction(2),
    "fp8": Fraction(1),
    "int8": Fraction(1),
    "int4": Fraction(1, 2) + Fraction(5, 2 * 128),  # 4 bits; per group of 128 a 16-bit scale and a 4-bit zero
    "nf4": Fraction(1, 2) + Fraction(1, 64) + Fraction(4, 16384),  # double quantised: 8 bits per 64, 32 per 16384
    "mxfp4": Fraction(17, 32),  # 17 bytes per 32
    "nvfp4": Fraction(9, 16),  # 4 bits and an 8-bit scale per 16
}
PLAIN_BYTES: Final = {"fp32": 4}  # of what stays unquantised; all other types: 2
VOCABULARY_PADDING: Final = 64  # entries; vLLM pads the vocabulary to a multiple of this times the tensor group


def weights_per_gpu(model: DenseModel, dtype: str, tensor: int, pipeline: int) -> Bytes:
    """Bytes of weights on the fullest GPU. `dtype`: one of LINEAR_BYTES; `tensor`, `pipeline` at least 1."""
    plain = PLAIN_BYTES.get(dtype, 2)
    layers = widest_stage(model.layers, pipeline)
    linear = LINEAR_BYTES[dtype] * layers * _linear_parameters(model, tensor)
    others = plain * (layers * _other_parameters(model, tensor) + model.hidden)
    return Bytes(-(-linear // 1) + others + plain * _end_parameters(model, tensor, pipeline))


def widest_stage(layers: int, pipeline: int) -> int:
    """Layers of the pipeline stage that has most (docs/memory.md R8)."""
    return -(-layers // pipeline)


def _linear_parameters(model: DenseModel, tensor: int) -> int:
    """Of one layer on one GPU: q and o, k and v, and the three matrices of the gated feed-forward part."""
    attention = 2 * model.heads // tensor * model.head_dim + 2 * model.kv_heads_per_gpu(tensor) * model.head_dim
    return model.hidden * (attention + 3 * -(-model.intermediate // tensor))


def _other_parameters(model: DenseModel, tensor: int) -> int:
    """Of one layer on one GPU: norms and biases."""
    qkv = (model.heads // tensor + 2 * model.kv_heads_per_gpu(tensor)) * model.head_dim
    mlp = 2 * -(-model.intermediate // tensor) + model.hidden
    return (
        2 * model.hidden
        + (2 * model.head_dim if model.qk_norm else 0)
        + (qkv if model.qkv_bias else 0)
        + (model.hidden if model.output_bias else 0)
        + (mlp if model.mlp_bias else 0)
    )


def _end_parameters(model: DenseModel, tensor: int, pipeline: int) -> int:
    """The embedding at the first stage and the head at the last: both where one GPU has both and they are not tied."""
    step = VOCABULARY_PADDING * tensor
    entries = -(-model.vocabulary // step) * step // tensor
    return entries * model.hidden * (1 if model.tied_embeddings or pipeline > 1 else 2)
