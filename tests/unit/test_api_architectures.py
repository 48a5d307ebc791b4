"""Which models are plainly dense, and what is refused instead of guessed."""

from typing import Any

import pytest

from kvquota_api.memory.architectures import DenseModel, read_architecture
from kvquota_api.memory.errors import ModelConfigError, PlanError, UnknownArchitectureError

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


def config(**changes: Any) -> dict[str, Any]:
    """Llama-3.1-8B with fields changed; None takes one out."""
    return {key: value for key, value in {**LLAMA_8B, **changes}.items() if value is not None}


def test_reads_a_dense_model() -> None:
    assert read_architecture(LLAMA_8B) == DenseModel(
        model_type="llama",
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        intermediate=14336,
        vocabulary=128256,
        tied_embeddings=False,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        max_positions=131072,
        dtype="bf16",
        checkpoint_quantised=False,
        kv_scheme_declared=False,
    )


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        pytest.param({"head_dim": 64}, "head_dim", 64, id="a head_dim that is stated wins over hidden / heads"),
        pytest.param({"num_key_value_heads": None}, "kv_heads", 32, id="a llama without KV heads has one per head"),
        pytest.param({"num_key_value_heads": 1}, "kv_heads", 1, id="one KV head for all"),
        pytest.param({"model_type": "qwen2"}, "qkv_bias", True, id="qwen2 has a bias that its config does not say"),
        pytest.param({"model_type": "qwen3", "head_dim": 128}, "qk_norm", True, id="qwen3 normalises q and k"),
        pytest.param({"attention_bias": True}, "output_bias", True, id="an attention bias is on the output too"),
        pytest.param({"mlp_bias": True}, "mlp_bias", True, id="a bias of the feed-forward part"),
        pytest.param({"tie_word_embeddings": True}, "tied_embeddings", True, id="tied embeddings"),
        pytest.param({"torch_dtype": None, "dtype": "float16"}, "dtype", "fp16", id="the newer name of the type"),
        pytest.param({"torch_dtype": None}, "dtype", None, id="no type"),
        pytest.param({"max_position_embeddings": None}, "max_positions", None, id="no longest context"),
        pytest.param({"quantization_config": {"bits": 4}}, "checkpoint_quantised", True, id="quantised weights"),
        pytest.param(
            {"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, "kv_scheme_declared", True, id="a KV scheme"
        ),
        pytest.param(
            {"quantization_config": {"kv_cache_quant_algo": "FP8"}}, "kv_scheme_declared", True, id="a KV algorithm"
        ),
    ],
)
def test_reads(changes: dict[str, Any], field: str, value: object) -> None:
    assert getattr(read_architecture(config(**changes)), field) == value


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {"model_type": "qwen2", "sliding_window": 131072, "use_sliding_window": False}, id="a window not in use"
        ),
        pytest.param({"sliding_window": None, "use_sliding_window": True}, id="a switch without a window"),
        pytest.param({"layer_types": ["full_attention"] * 32}, id="layers that are all full"),
        pytest.param({"num_experts": 0, "kv_lora_rank": None, "is_encoder_decoder": False}, id="fields that say no"),
    ],
)
def test_what_changes_nothing_is_dense(changes: dict[str, Any]) -> None:
    assert read_architecture(config(**changes)).layers == 32


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"model_type": "deepseek_v3"}, "model_type: 'deepseek_v3' is not known", id="another model type"),
        pytest.param({"model_type": None}, "model_type: None is not known", id="no model type"),
        pytest.param(
            {"model_type": ["llama"]}, r"model_type: \['llama'\] is not known", id="a model type that is no word"
        ),
        pytest.param({"model_type": "mistral", "sliding_window": 4096}, "sliding_window: ", id="a window in use"),
        pytest.param({"kv_lora_rank": 512}, "kv_lora_rank: ", id="latent attention"),
        pytest.param({"num_kv_shared_layers": 18}, "num_kv_shared_layers: ", id="layers without a cache of their own"),
        pytest.param({"num_experts": 128}, "num_experts: ", id="experts"),
        pytest.param({"n_routed_experts": 256}, "n_routed_experts: ", id="routed experts"),
        pytest.param({"mamba_d_state": 128}, "mamba_d_state: ", id="state layers"),
        pytest.param({"attention_chunk_size": 8192}, "attention_chunk_size: ", id="chunked attention"),
        pytest.param({"v_head_dim": 192}, "v_head_dim: ", id="values of another width"),
        pytest.param({"text_config": {"num_hidden_layers": 32}}, "text_config: ", id="a model within a model"),
        pytest.param(
            {"layer_types": ["full_attention", "sliding_attention", "linear_attention", "sliding_attention"]},
            "layer_types: the planner knows full_attention only, not linear_attention, sliding_attention",
            id="layers of several kinds",
        ),
    ],
)
def test_what_is_not_plainly_dense_is_an_error_that_names_the_field(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnknownArchitectureError, match=f"^{says}"):
        read_architecture(config(**changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"num_hidden_layers": None}, "num_hidden_layers: None is not a whole number", id="no layers"),
        pytest.param({"hidden_size": "4096"}, "hidden_size: '4096' is not a whole number", id="a number as text"),
        pytest.param({"vocab_size": True}, "vocab_size: True is not a whole number", id="a switch for a number"),
        pytest.param(
            {"hidden_size": 2**31 + 1}, "hidden_size: 2147483649 is not a whole number", id="a size of no model"
        ),
        pytest.param({"intermediate_size": 0}, "intermediate_size: 0 is not a whole number", id="nothing for a number"),
        pytest.param({"num_key_value_heads": [8] * 32}, r"num_key_value_heads: \[8, 8", id="KV heads by layer"),
        pytest.param(
            {"num_key_value_heads": 5}, "num_key_value_heads: 5 does not divide", id="KV heads that do not divide"
        ),
        pytest.param(
            {"model_type": "mistral", "num_key_value_heads": None},
            "num_key_value_heads: None is not a whole number",
            id="KV heads that only a llama may leave out",
        ),
        pytest.param(
            {"num_attention_heads": 24}, "head_dim: missing, and num_attention_heads 24 does not", id="odd heads"
        ),
        pytest.param({"model_type": "qwen3"}, "head_dim: None is not a whole number", id="a qwen3 without head_dim"),
        pytest.param({"torch_dtype": "int8"}, "torch_dtype: 'int8' is none of float32", id="a type that is none"),
        pytest.param({"torch_dtype": ["bfloat16"]}, r"torch_dtype: \['bfloat16'\] is none of", id="a list of types"),
        pytest.param(
            {"quantization_config": "fp8"}, "quantization_config: 'fp8' is not an object", id="a word for an object"
        ),
        pytest.param({"layer_types": 3}, "layer_types: 3 is not a list", id="a number for a list"),
    ],
)
def test_a_config_that_makes_no_sense_is_an_error_that_names_the_field(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelConfigError, match=f"^{says}"):
        read_architecture(config(**changes))


@pytest.mark.parametrize(
    ("tensor", "heads"),
    [(1, 8), (2, 4), (8, 1), (16, 1)],
    ids=["one GPU keeps all", "two share", "eight keep one each", "sixteen keep a whole one each"],
)
def test_a_kv_head_is_never_split(tensor: int, heads: int) -> None:
    assert read_architecture(LLAMA_8B).kv_heads_per_gpu(tensor) == heads


def test_errors_are_one_tree_with_reasons() -> None:
    kinds = [PlanError, *PlanError.__subclasses__()]

    assert sorted(kind.reason for kind in kinds) == [
        "EngineUnknown",
        "ModelConfigInvalid",
        "PartitionTooLarge",
        "PlanInvalid",
        "PoolTooSmall",
        "UnknownArchitecture",
    ]
