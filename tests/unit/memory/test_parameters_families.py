"""Families whose configs say more than sizes: what is read, and what is refused by its name."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvquota_api.memory.errors import ModelConfigError, PlanError, UnknownArchitectureError
from kvquota_api.memory.models.fields import MAX_LAYERS
from kvquota_api.memory.parameters import count_parameters

DATA = Path(__file__).resolve().parents[2] / "data" / "memory"
MODELS: dict[str, Any] = json.loads((DATA / "parameters.json").read_text())["models"]


def model(name: str, **changes: Any) -> dict[str, Any]:
    return {**MODELS[name]["config"], **changes}


def block(attention: dict[str, Any], ffn: dict[str, Any]) -> dict[str, Any]:
    return {"attention": attention, "ffn": ffn}


def nas(*blocks: object) -> dict[str, Any]:
    return {
        "model_type": "nemotron-nas",
        "num_hidden_layers": len(blocks),
        "hidden_size": 512,
        "num_attention_heads": 8,
        "vocab_size": 1000,
        "tie_word_embeddings": False,
        "block_configs": list(blocks),
    }


NOTHING = {"no_op": True}
GROUPED = {"n_heads_in_group": 4}
WIDE = {"ffn_mult": 2.625}  # 2 x 2.625 x 512 / 3 = 896, rounded up to 1024


def test_each_block_of_a_searched_model_has_its_own_sizes() -> None:
    whole = count_parameters(
        nas(block(GROUPED, WIDE), block(NOTHING, {"intermediate_size": 100}), block(GROUPED, NOTHING))
    )
    attention = 2 * 512 * 512 + 2 * 2 * 64 * 512

    assert dict(whole.by_part()) == {
        "embedding": 1000 * 512,
        "head": 1000 * 512,
        "attention": 2 * attention,
        "mlp": 3 * 512 * 1024 + 3 * 512 * 100,
        "norm": 5 * 512,
    }


def test_layers_of_qwen_hybrids_without_a_list_follow_their_interval() -> None:
    listed = model("Qwen--Qwen3.5-35B-A3B")
    text = {name: value for name, value in listed["text_config"].items() if name != "layer_types"}

    assert count_parameters({**listed, "text_config": text}) == count_parameters(listed)


ERNIE: dict[str, Any] = {
    "model_type": "ernie4_5_moe",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "moe_num_experts": 8,
    "moe_num_shared_experts": 2,
}


def test_experts_of_ernie_end_at_a_stated_layer() -> None:
    until_last = count_parameters({**ERNIE, "moe_layer_end_index": -1})
    until_second = count_parameters({**ERNIE, "moe_layer_end_index": 1})

    assert [len(layer) for layer in until_last.layers] == [
        len(until_last.layers[0]),
        *[len(until_last.layers[1])] * 3,
    ]
    assert until_second.layers == (*until_last.layers[:2], until_last.layers[0], until_last.layers[0])


NEMOTRON = "nvidia--Nemotron-H-56B-Base-8K"
FLASH = "deepseek-ai--DeepSeek-V4-Flash"
GEMMA4 = MODELS["google--gemma-4-26B-A4B"]["config"]["text_config"]
REFUSED: dict[str, tuple[dict[str, Any], type[PlanError], str]] = {
    "a head size that nothing else tells": (
        {name: value for name, value in GEMMA4.items() if name != "head_dim"},
        ModelConfigError,
        "head_dim: None is not a whole number",
    ),
    "experts of Gemma 4 that may be there or not": (
        {name: value for name, value in GEMMA4.items() if name != "enable_moe_block"},
        ModelConfigError,
        "enable_moe_block: missing, though the config has num_experts",
    ),
    "a block that is no object": (nas(4), ModelConfigError, "block_configs: 4 is not an object"),
    "a block that is one matrix": (
        nas(block({"replace_with_linear": True}, WIDE)),
        ModelConfigError,
        "block_configs[0].attention.replace_with_linear: the planner does not know",
    ),
    "a factor that is no number": (
        nas(block(GROUPED, {"ffn_mult": "x"})),
        ModelConfigError,
        "block_configs[0].ffn.ffn_mult: 'x' is not a number",
    ),
    "a pattern with a letter that is not known": (
        model(NEMOTRON, hybrid_override_pattern="M-X"),
        UnknownArchitectureError,
        "hybrid_override_pattern: 'X' is not a known kind of layer",
    ),
    "a pattern that is missing": (
        model(NEMOTRON, hybrid_override_pattern=None),
        ModelConfigError,
        "hybrid_override_pattern: missing",
    ),
    "a pattern of more layers than any model has": (
        model(NEMOTRON, hybrid_override_pattern="M" * (MAX_LAYERS + 1)),
        ModelConfigError,
        "hybrid_override_pattern: has 4097 letters",
    ),
    "a compression that is not known": (
        model(FLASH, compress_ratios=[8] * 44),
        ModelConfigError,
        "compress_ratios: 8 is not known",
    ),
    "too few compressions": (model(FLASH, compress_ratios=[4]), ModelConfigError, "compress_ratios: has 1 entries"),
    "groups of outputs that do not divide": (
        model(FLASH, o_groups=7),
        ModelConfigError,
        "o_groups: 7 does not divide",
    ),
    "a factor of LFM2 that is no number": (
        model("shape of lfm2", block_ffn_dim_multiplier="x"),
        ModelConfigError,
        "block_ffn_dim_multiplier: 'x' is not a number",
    ),
    "more drafts than any model has layers": (
        model("deepseek-ai--DeepSeek-V3", num_nextn_predict_layers=MAX_LAYERS + 1),
        ModelConfigError,
        "num_nextn_predict_layers: 4097 is more than 4096 layers",
    ),
    "heads of Zamba2 that do not divide": (
        model("shape of zamba2", num_attention_heads=7),
        ModelConfigError,
        "num_attention_heads: 7 does not divide 5120",
    ),
    "adapters of Zamba2": (
        model("shape of zamba2", use_shared_attention_adapter=True),
        ModelConfigError,
        "use_shared_attention_adapter: the planner does not know",
    ),
    "heads of GPT-2 that do not divide": (model("shape of gpt2", n_head=7), ModelConfigError, "n_head: 7 does not"),
    "OPT with a narrower embedding": (
        model("shape of opt", word_embed_proj_dim=512),
        ModelConfigError,
        "word_embed_proj_dim: the planner knows",
    ),
    "OPT with norms without a scale": (
        model("shape of opt", layer_norm_elementwise_affine=False),
        ModelConfigError,
        "layer_norm_elementwise_affine: the planner knows",
    ),
}


@pytest.mark.parametrize(("config", "error", "says"), REFUSED.values(), ids=REFUSED)
def test_what_a_family_does_not_know_is_refused_by_its_name(
    config: dict[str, Any], error: type[PlanError], says: str
) -> None:
    with pytest.raises(error) as raised:
        count_parameters(config)

    assert says in str(raised.value)


def test_layers_with_experts_of_llama_4_are_listed_or_follow_their_step() -> None:
    listed = model("meta-llama--Llama-4-Maverick-17B-128E-Instruct")
    text = {**listed["text_config"], "moe_layers": list(range(1, 48, 2)), "interleave_moe_layer_step": None}

    assert count_parameters({**listed, "text_config": text}) == count_parameters(listed)


def test_experts_of_kimi_linear_are_padded_to_256_channels_on_a_gpu_of_a_group() -> None:
    shape = model("shape of kimi_linear")
    routed = [each for each in count_parameters(shape).layers[1] if each.part == "experts"]

    assert [each.shard(1) for each in routed] == [256 * 1024 * 2304] * 3
    assert [each.shard(4) for each in routed] == [256 * 256 * 2304] * 3
    assert [each.shard(8) for each in routed] == [256 * 256 * 2304] * 3


def test_narrow_experts_of_kimi_linear_are_whole_on_a_gpu_alone() -> None:
    narrow = count_parameters({**model("shape of kimi_linear"), "moe_intermediate_size": 64})

    assert [each.shard(1) for each in narrow.layers[1] if each.part == "experts"] == [256 * 64 * 2304] * 3


def test_lfm2_without_a_factor_keeps_two_thirds_of_its_width() -> None:
    shape = model("shape of lfm2")

    assert count_parameters({**shape, "block_ffn_dim_multiplier": None}) == count_parameters(shape)
