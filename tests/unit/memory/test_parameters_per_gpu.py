"""What one GPU holds of a model's weights: what parallelism divides, and what it does not."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvquota_api.memory.errors import EngineUnknownError, ModelConfigError, PlanError, UnknownArchitectureError
from kvquota_api.memory.parameters import Weights, count_parameters, weights_per_gpu
from kvquota_api.memory.presets import load_preset

DATA = Path(__file__).resolve().parents[2] / "data" / "memory"
MODELS: dict[str, Any] = json.loads((DATA / "parameters.json").read_text())["models"]

# 4 layers; a layer's matrices: q 64 x 64, k and v 32 x 64, o 64 x 64, gate, up and down 96 x 64; two norms.
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 130,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QUERY, KEY, MLP = 64 * 64, 32 * 64, 96 * 64
MATRICES = 2 * QUERY + 2 * KEY + 3 * MLP
NORMS = 2 * 64
TABLE = 192 * 64  # the vocabulary is padded to a multiple of 64


def sized(config: dict[str, Any], weight_dtype: str = "auto", **how: Any) -> int:
    return weights_per_gpu(config, weight_dtype, **how).size


def test_a_whole_model_is_the_sum_of_its_tensors_in_16_bits() -> None:
    assert sized(LLAMA) == 2 * (4 * (MATRICES + NORMS) + 2 * TABLE + 64)


def test_tensor_parallelism_divides_matrices_and_vocabulary_but_no_norm() -> None:
    assert sized(LLAMA, tensor=2) == 2 * (4 * (MATRICES // 2 + NORMS) + TABLE + 64)


def test_a_key_value_head_is_never_split() -> None:
    own = (2 * QUERY + 3 * MLP) // 4 + 2 * KEY // 2

    assert sized(LLAMA, tensor=4) == 2 * (4 * (own + NORMS) + 2 * TABLE // 4 + 64)


def test_the_first_stage_holds_the_embedding_and_the_last_one_the_head_and_the_last_norm() -> None:
    assert sized(LLAMA, pipeline=2) == 2 * (2 * (MATRICES + NORMS) + TABLE + 64)


def test_of_uneven_stages_the_one_with_most_counts() -> None:
    five = {**LLAMA, "num_hidden_layers": 5, "vocab_size": 64}

    assert sized(five, pipeline=2) == 2 * (3 * (MATRICES + NORMS) + 64 * 64)


def test_a_stage_in_the_middle_holds_layers_alone() -> None:
    small = {**LLAMA, "vocab_size": 64}

    assert sized(small, pipeline=3) == 2 * 2 * (MATRICES + NORMS)


def test_a_tied_head_counts_once_but_again_on_a_last_stage_of_its_own() -> None:
    tied = {**LLAMA, "tie_word_embeddings": True}

    assert sized(tied) == 2 * (4 * (MATRICES + NORMS) + TABLE + 64)
    assert sized(tied, pipeline=2) == 2 * (2 * (MATRICES + NORMS) + TABLE + 64)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(EngineUnknownError, match="4 layers cannot be spread over 5 pipeline stages"):
        sized(LLAMA, pipeline=5)


@pytest.mark.parametrize(
    ("weight_dtype", "matrices", "rest"),
    [
        ("fp32", 4 * MATRICES, 4),
        ("bf16", 2 * MATRICES, 2),
        ("fp16", 2 * MATRICES, 2),
        ("fp8", MATRICES, 2),
        ("int8", MATRICES, 2),
        ("int4", MATRICES * 133 / 256, 2),
        ("nf4", MATRICES * (1 / 2 + 1 / 64 + 1 / 4096), 2),
        ("mxfp4", MATRICES * 17 / 32, 2),
        ("nvfp4", MATRICES * 9 / 16, 2),
    ],
)
def test_a_format_quantises_matrices_alone(weight_dtype: str, matrices: float, rest: int) -> None:
    assert sized(LLAMA, weight_dtype) == -(-4 * matrices // 1) + rest * (4 * NORMS + 2 * TABLE + 64)


def test_a_gguf_type_quantises_the_tables_too() -> None:
    assert sized(LLAMA, "q8_0") == (4 * MATRICES + 2 * TABLE) * 34 / 32 + 2 * (4 * NORMS + 64)


def test_a_type_of_mixed_gguf_files_is_refused_and_says_what_to_state() -> None:
    with pytest.raises(ModelConfigError, match=r"weightDtype: 'q4_k_m' is not known.*state the size of the file"):
        sized(LLAMA, "q4_k_m")


@pytest.mark.parametrize(
    ("dtype", "config", "expected"),
    [
        ("fp32", LLAMA, 4),
        ("bfloat16", {**LLAMA, "torch_dtype": "float32"}, 2),
        ("float32", LLAMA, 4),
        ("auto", {**LLAMA, "torch_dtype": None, "dtype": "float16"}, 2),
    ],
    ids=["a short name", "16 bits of a checkpoint in 32", "32 bits of one in 16", "the newer name of the field"],
)
def test_what_is_not_quantised_has_the_type_that_is_computed_in(
    dtype: str, config: dict[str, Any], expected: int
) -> None:
    assert weights_per_gpu(config, dtype=dtype) == Weights(expected * sized(LLAMA) // 2, ())  # type: ignore[arg-type]  # the table has texts


@pytest.mark.parametrize(("stated", "said"), [("float32", "float32"), (None, "nothing")], ids=["32 bits", "nothing"])
def test_what_the_config_leaves_open_is_assumed_to_be_16_bits_and_said(stated: str | None, said: str) -> None:
    weights = weights_per_gpu({**LLAMA, "torch_dtype": stated})

    assert weights.size == sized(LLAMA)
    assert weights.assumptions == (f"what is not quantised is loaded in 16 bits: the config says {said} of its type",)


def test_a_compute_type_that_is_not_known_is_refused() -> None:
    with pytest.raises(ModelConfigError, match="dtype: 'float7' is not known"):
        sized(LLAMA, dtype="float7")


def test_auto_follows_the_checkpoint_and_a_stated_type_does_not() -> None:
    quantised = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}

    assert sized(quantised) == sized(LLAMA, "fp8")
    assert sized(quantised, "bf16") == sized(LLAMA)


@pytest.mark.parametrize(
    ("quantisation", "says"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 1),
        ({"quantization": {"quant_algo": "FP8"}}, 1),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}, 0),
        ({"quant_method": "fp8"}, 0),
    ],
    ids=["ModelOpt without a list", "in a file of its own", "with a list", "another method"],
)
def test_a_checkpoint_that_does_not_say_what_it_left_unquantised_is_said(
    quantisation: dict[str, Any], says: int
) -> None:
    weights = weights_per_gpu({**LLAMA, "quantization_config": quantisation})

    assert weights.size == sized(LLAMA, "fp8")
    assert [each[:32] for each in weights.assumptions] == ["the quantization_config names nothin"[:32]] * says


def test_a_scale_for_each_output_is_shared_out_with_the_outputs() -> None:
    rows = {**LLAMA, "quantization_config": {"quant_method": "fbgemm_fp8"}}
    outputs = 64 + 32 + 32 + 96 + 96  # that are shared out; o and down keep theirs: scaled with their inputs

    assert sized(rows) - sized(LLAMA, "fp8") == 4 * 4 * (outputs + 2 * 64)


SEEING = {
    "model_type": "mistral3",
    "text_config": {**LLAMA, "model_type": "mistral"},
    "torch_dtype": "bfloat16",
}


def test_a_model_that_sees_is_counted_without_its_tower_only_with_a_word() -> None:
    weights = weights_per_gpu(SEEING)

    assert weights.size == sized(LLAMA)
    assert weights.assumptions == ("the vision tower is not counted among the weights: vision_config is missing",)


def test_the_language_part_has_the_checkpoints_quantisation_where_it_stands_there() -> None:
    text = {**LLAMA, "model_type": "mistral", "quantization_config": {"quant_method": "fp8"}}

    assert sized({**SEEING, "text_config": text}) == sized(LLAMA, "fp8")


def test_an_older_model_that_sees_has_its_language_part_in_the_config_itself() -> None:
    flat = {**LLAMA, "model_type": "qwen2_vl"}

    assert sized(flat) == sized({**LLAMA, "model_type": "qwen2"})


def test_experts_of_gpt_oss_are_padded_for_the_kernels_of_the_card() -> None:
    config = {**MODELS["openai--gpt-oss-20b"]["config"], "num_hidden_layers": 1, "num_local_experts": 1}
    whole, inputs, both = 3 * 2880 * 2880, 3 * 2880 * 3072, 3 * 3072 * 2944
    unpadded = sized(config, "bf16") - 2 * whole

    assert sized(config, "mxfp4") == pytest.approx(unpadded + inputs * 17 / 32, abs=1)
    assert sized(config, "mxfp4", platform="cuda-sm80") == pytest.approx(unpadded + both * 17 / 32, abs=1)


def test_experts_are_padded_after_they_are_shared_out() -> None:
    config = {**MODELS["openai--gpt-oss-20b"]["config"], "num_hidden_layers": 1, "num_local_experts": 1}
    unpadded = sized(config, "bf16", tensor=4) - 2 * 3 * 2880 * 720

    assert sized(config, "mxfp4", tensor=4, platform="cuda-sm80") == pytest.approx(
        unpadded + 3 * 3072 * 768 * 17 / 32, abs=1
    )


def test_vllm_keeps_the_way_up_from_a_latent_once_more_in_16_bits() -> None:
    model = MODELS["deepseek-ai--DeepSeek-V3"]
    config = {**model["config"], "quantization_config": model["quantization_config"]}
    heads, layers = 128, 61

    extra = sized(config, tensor=8) - sized(config, tensor=8, engine="SGLang")

    assert extra == layers * (heads // 8) * (128 + 128) * 512 * 2


def test_draft_layers_count_only_where_they_are_asked_for() -> None:
    config = MODELS["deepseek-ai--DeepSeek-V3"]["config"]
    drafts = count_parameters(config).draft
    own = sum(tensor.shard(8) for tensor in drafts[0])
    again = 16 * 256 * 512  # what goes up from the latent

    assert len(drafts) == 1
    assert sized(config, tensor=8, drafts="WithDraft") - sized(config, tensor=8) == 2 * (own + again)


def test_draft_layers_are_on_the_last_stage() -> None:
    config = MODELS["deepseek-ai--DeepSeek-V3"]["config"]

    assert sized(config, pipeline=4, drafts="WithDraft") > sized(config, pipeline=4)


def test_what_a_checkpoint_says_of_its_drafter_by_another_name_holds() -> None:
    model = MODELS["nvidia--Qwen3.6-27B-NVFP4"]
    quantisation = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["mtp*"]}
    config = {**model["config"], "quantization_config": quantisation}
    plain = sum(tensor.parameters for layer in count_parameters(config).draft for tensor in layer)

    assert sized(config, drafts="WithDraft") - sized(config) == 2 * plain


def test_drafts_of_a_model_without_draft_layers_are_refused() -> None:
    with pytest.raises(ModelConfigError, match="num_nextn_predict_layers: the config has no layers"):
        sized(LLAMA, drafts="WithDraft")


def test_experts_of_deepseek_v4_are_4_bit_floats_by_a_field_of_their_own() -> None:
    config = {**MODELS["deepseek-ai--DeepSeek-V4-Flash"]["config"], "expert_dtype": "fp4"}
    experts = 43 * 256 * 3 * 4096 * 2048

    saved = sized({**config, "expert_dtype": None}) - sized(config)

    assert saved == pytest.approx(experts * (2 - 17 / 32), abs=1)


REFUSED: dict[str, tuple[dict[str, Any], type[PlanError], str]] = {
    "no model type": ({}, UnknownArchitectureError, "model_type: the planner cannot count the weights of None"),
    "a model type that is no name": ({"model_type": ["llama"]}, UnknownArchitectureError, "of ['llama']"),
    "a family that is not known": ({"model_type": "rwkv"}, UnknownArchitectureError, "state their size on one GPU"),
    "a language part that is not known": (
        {"model_type": "gemma3", "text_config": {"model_type": "rwkv"}},
        UnknownArchitectureError,
        "text_config.model_type: the planner cannot count the weights of 'rwkv'",
    ),
    "an audio tower": (
        {"model_type": "gemma4", "audio_config": {"x": 1}},
        UnknownArchitectureError,
        "audio_config: the planner cannot count",
    ),
    "a size that is missing": (
        {name: value for name, value in LLAMA.items() if name != "intermediate_size"},
        ModelConfigError,
        "intermediate_size: None is not a whole number",
    ),
    "heads that do not divide": (
        {**LLAMA, "num_attention_heads": 3},
        ModelConfigError,
        "num_attention_heads: 3 does not divide hidden_size 64",
    ),
    "experts of DeepSeek V4 in a type that is not known": (
        {**MODELS["deepseek-ai--DeepSeek-V4-Flash"]["config"], "expert_dtype": "fp2"},
        ModelConfigError,
        "expert_dtype: 'fp2' is not known",
    ),
}


@pytest.mark.parametrize(("config", "error", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_known_is_an_error(config: dict[str, Any], error: type[PlanError], says: str) -> None:
    with pytest.raises(error) as raised:
        weights_per_gpu(config)

    assert says in str(raised.value)


@pytest.mark.parametrize("name", ["layers.2.mlp.up_proj", r"re:.*layers\.[23]\.mlp\.up_proj"])
def test_a_layer_that_is_stored_in_another_way_than_its_likes_is_counted_apart(name: str) -> None:
    quantised = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head", name]}
    spared = 1 if "re:" not in name else 2

    every = sized({**LLAMA, "quantization_config": {**quantised, "modules_to_not_convert": ["lm_head"]}})
    assert sized({**LLAMA, "quantization_config": quantised}) == every + spared * MLP


def test_qwen_next_has_a_layer_for_multi_token_prediction_that_its_config_leaves_out() -> None:
    config = load_preset("qwen3-next-80b-a3b")
    said = weights_per_gpu({**config, "num_nextn_predict_layers": 1}, drafts="WithDraft").size
    without = weights_per_gpu(config).size

    assert weights_per_gpu(config, drafts="WithDraft").size == said > without
    with pytest.raises(ModelConfigError, match="num_nextn_predict_layers: the config has no layers"):
        weights_per_gpu({**config, "num_nextn_predict_layers": 0}, drafts="WithDraft")
