"""What weights take on one GPU."""

import dataclasses

import pytest

from kvquota_api.memory.architectures import DenseModel, read_architecture
from kvquota_api.memory.presets import load_preset
from kvquota_api.memory.weights import LINEAR_BYTES, weights_per_gpu, widest_stage

GIB = 2**30

# What engines logged when they had loaded the weights, in GiB per GPU.
LOGGED = [
    ("llama-3.1-8b", "bf16", 1, 14.9889),
    ("llama-3.1-8b", "bf16", 2, 7.48),
    ("llama-3.2-3b", "bf16", 1, 6.016),
    ("qwen2.5-7b", "bf16", 1, 14.2488),
    ("qwen2.5-7b", "bf16", 2, 7.1217),
    ("qwen3-0.6b", "bf16", 1, 1.12),
    ("qwen3-32b", "bf16", 1, 61.03),
    ("qwen3-32b", "bf16", 2, 30.59),
    ("llama-3.1-70b", "fp8", 1, 67.72),
    ("llama-3.1-70b", "fp8", 2, 33.88),
    ("llama-3.1-70b", "int4", 1, 37.09),
    ("qwen3-8b", "fp8", 1, 8.964),
]


def model(preset: str = "llama-3.1-8b") -> DenseModel:
    return read_architecture(load_preset(preset))


@pytest.mark.parametrize(
    ("preset", "dtype", "tensor", "logged"),
    [pytest.param(*row, id=f"{row[0]} {row[1]} on {row[2]} GPUs") for row in LOGGED],
)
def test_is_within_two_percent_of_what_engines_log(preset: str, dtype: str, tensor: int, logged: float) -> None:
    predicted = weights_per_gpu(model(preset), dtype, tensor, 1) / GIB

    assert abs(predicted / logged - 1) < 0.02


def test_counts_every_parameter_of_llama_3_1_8b() -> None:
    assert weights_per_gpu(model(), "bf16", 1, 1) == 2 * 8_030_261_248


def test_counts_tied_embeddings_once() -> None:
    assert weights_per_gpu(model("llama-3.2-1b"), "bf16", 1, 1) == 2 * 1_235_814_400


def test_counts_the_biases_and_norms_of_qwen2_5_7b() -> None:
    assert weights_per_gpu(model("qwen2.5-7b"), "bf16", 1, 1) == 2 * 7_615_616_512


@pytest.mark.parametrize(
    ("field", "parameters"),
    [
        pytest.param("qkv_bias", 32 * (32 + 2 * 8) * 128, id="a bias on q, k and v"),
        pytest.param("output_bias", 32 * 4096, id="a bias on the attention's output"),
        pytest.param("mlp_bias", 32 * (2 * 14336 + 4096), id="biases in the feed-forward part"),
        pytest.param("qk_norm", 32 * 2 * 128, id="norms of q and k"),
    ],
)
def test_adds(field: str, parameters: int) -> None:
    with_it = dataclasses.replace(model(), **{field: True})  # type: ignore[arg-type]

    assert weights_per_gpu(with_it, "bf16", 1, 1) - weights_per_gpu(model(), "bf16", 1, 1) == 2 * parameters


@pytest.mark.parametrize("dtype", sorted(set(LINEAR_BYTES) - {"fp32"}))
def test_keeps_embeddings_and_norms_in_16_bits(dtype: str) -> None:
    linear = 32 * (4096 * (2 * 32 * 128 + 2 * 8 * 128) + 3 * 4096 * 14336)
    plain = 2 * (8_030_261_248 - linear)

    assert weights_per_gpu(model(), dtype, 1, 1) == plain + -(-linear * LINEAR_BYTES[dtype] // 1)


def test_32_bits_hold_for_everything() -> None:
    assert weights_per_gpu(model(), "fp32", 1, 1) == 4 * 8_030_261_248


def test_pads_the_vocabulary_for_the_group() -> None:
    odd = dataclasses.replace(model(), vocabulary=128_257)

    assert weights_per_gpu(odd, "bf16", 1, 1) - weights_per_gpu(model(), "bf16", 1, 1) == 2 * 2 * 64 * 4096
    assert weights_per_gpu(odd, "bf16", 2, 1) - weights_per_gpu(model(), "bf16", 2, 1) == 2 * 2 * 64 * 4096


def test_does_not_split_a_kv_head() -> None:
    sixteen, eight = (weights_per_gpu(model(), "bf16", tensor, 1) for tensor in (16, 8))

    assert 2 * sixteen - eight > 2 * 32 * 2 * 4096 * 128


@pytest.mark.parametrize(
    ("layers", "stages", "widest"),
    [(32, 1, 32), (32, 4, 8), (33, 4, 9), (5, 2, 3), (3, 3, 1)],
    ids=["one stage", "even stages", "one layer too many", "an odd number", "a layer each"],
)
def test_counts_the_fullest_stage(layers: int, stages: int, widest: int) -> None:
    assert widest_stage(layers, stages) == widest


def test_a_stage_has_one_end_of_the_model_at_most() -> None:
    whole, half = (weights_per_gpu(model(), "bf16", 1, stages) for stages in (1, 2))
    embedding, layer_share = 2 * 128_256 * 4096, 2 * 4096

    assert 2 * half == whole + layer_share  # both have the last norm, each has one of embedding and head
    assert half > embedding
