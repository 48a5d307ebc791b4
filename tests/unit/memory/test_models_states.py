"""What layers with a latent, records or a recurrent state a model has, by family."""

from itertools import groupby
from typing import Any

import pytest

from kvquota_api.memory.errors import ModelConfigError, UnknownArchitectureError
from kvquota_api.memory.models.layers import (
    Attention,
    CompressorState,
    GatedDeltaState,
    Indexer,
    KimiDeltaState,
    Latent,
    Layer,
    LightningState,
    Mamba1State,
    Mamba2State,
    PoolTail,
    Record,
    ShortConvState,
)
from kvquota_api.memory.models.reading import read_model

SIZES: dict[str, Any] = {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 1000}
MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
SPARSE = {**MLA, "index_head_dim": 128, "index_topk": 2048}
LATENT: Layer = (Latent(512, 64),)
CHOOSING: Layer = (Latent(512, 64, sparse=True), Indexer(128))
FOLLOWING: Layer = (Latent(512, 64, sparse=True),)
ATTENTION: Layer = (Attention(2, 64, 64),)
KDA = {"num_heads": 4, "head_dim": 128, "short_conv_kernel_size": 4}


def config(architecture: str, **changes: Any) -> dict[str, Any]:
    """A model of four layers, eight query heads of 64."""
    return {"architectures": [architecture], **SIZES, **changes}


def runs(layers: tuple[Layer, ...]) -> list[tuple[Layer, int]]:
    """Equal layers in a row, with their number."""
    return [(layer, len(list(group))) for layer, group in groupby(layers)]


WINDOW = Record(512, 64, window=128)
FINE: Layer = (WINDOW, Record(512, 64, 4), CompressorState(2048, 4, 8), Indexer(128, 4), CompressorState(512, 4, 8))
COARSE: Layer = (WINDOW, Record(512, 64, 128), CompressorState(1024, 128, 128))
V4 = {"head_dim": 512, "qk_rope_head_dim": 64, "sliding_window": 128, "index_head_dim": 128, "index_topk": 512}
GLM = {
    **SPARSE, "qk_rope_head_dim": 0, "index_kpool": 16, "linear_num_heads": 4, "linear_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "indexed_attention"],
}  # fmt: skip
POOLED: Layer = (Latent(512, 0, sparse=True), Indexer(128, 16), PoolTail(128, 16))
LATENTS = [
    pytest.param("DeepseekV3ForCausalLM", MLA, [(LATENT, 4)], id="deepseek-v3 keeps one latent per layer"),
    pytest.param(
        "DeepseekV2ForCausalLM",
        {"num_key_value_heads": 2, "kv_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0},
        [(ATTENTION, 4)],
        id="deepseek-ocr's text model keeps keys and values",
    ),
    pytest.param("DeepseekV2ForCausalLM", MLA, [(LATENT, 4)], id="deepseek-v2 keeps one latent per layer"),
    pytest.param("LongcatFlashForCausalLM", {**MLA, "num_layers": 2}, [(LATENT * 2, 2)], id="longcat has two a layer"),
    pytest.param("DeepseekV32ForCausalLM", SPARSE, [(CHOOSING, 4)], id="deepseek-v3.2 has an indexer in each layer"),
    pytest.param(
        "GlmMoeDsaForCausalLM",
        {**SPARSE, "indexer_types": ["full", "shared", "shared", "full"]},
        [(CHOOSING, 4)],
        id="glm-5: the engine does not look at indexer_types",
    ),
    pytest.param("HYV4ForCausalLM", SPARSE, [(LATENT, 4)], id="hy-v4 without layer types is not sparse"),
    pytest.param(
        "HYV4ForCausalLM",
        {
            **SPARSE,
            "layer_types": ["sparse", "full_attention", "indexed_attention", "sparse"],
            "indexer_types": ["full", "full", "shared", "full"],
        },
        [(CHOOSING, 1), (LATENT, 1), (FOLLOWING, 1), (CHOOSING, 1)],
        id="hy-v4: sparse layers by type, a shared indexer has no cache",
    ),
    pytest.param(
        "HYV4ForCausalLM",
        {**SPARSE, "layer_types": ["sparse"] * 4, "index_topk_freq": 2, "index_skip_topk_offset": 1},
        [(CHOOSING, 1), (FOLLOWING, 1)] * 2,
        id="hy-v4 without indexer types: by their frequency",
    ),
    pytest.param(
        "GlmMoeDsaForCausalLM",
        {**SPARSE, "index_topk_pattern": "FSF"},
        [(CHOOSING, 1), (FOLLOWING, 1), (CHOOSING, 2)],
        id="a pattern of letters; layers beyond it choose themselves",
    ),
    pytest.param(
        "GlmMoeDsaForCausalLM",
        {**SPARSE, "index_topk_freq": 2, "index_skip_topk_offset": 1, "indexer_types": ["full"] * 4},
        [(CHOOSING, 1), (FOLLOWING, 1), (CHOOSING, 1), (FOLLOWING, 1)],
        id="every second layer chooses, from the one the offset names",
    ),
    pytest.param(
        "GlmMoeDsaForCausalLM",
        {**SPARSE, "index_topk_freq": 2},
        [(CHOOSING, 2), (FOLLOWING, 1), (CHOOSING, 1)],
        id="the first two layers choose where the offset is not said",
    ),
    pytest.param(
        "DeepseekV4ForCausalLM",
        {**V4, "compress_ratios": [0, 4, 128, 1, 0]},
        [((WINDOW,), 1), (FINE, 1), (COARSE, 1), ((WINDOW,), 1)],
        id="deepseek-v4: records of 4 and of 128 tokens beside the window",
    ),
    pytest.param(
        "Glm5NextForCausalLM",
        GLM,
        [((KimiDeltaState(4, 128, 4, bounded=True),), 1), (POOLED, 1)] * 2,
        id="glm-5-next: delta layers and latents with pooled indexer keys",
    ),
    pytest.param(
        "Glm5NextForCausalLM",
        {**GLM, "linear_attn_config": KDA, "linear_lower_bound": None},
        [((KimiDeltaState(4, 128, 4),), 1), (POOLED, 1)] * 2,
        id="glm-5-next with its delta sizes in an object, and no bound",
    ),
    pytest.param(
        "KimiLinearForCausalLM",
        {**MLA, "linear_attn_config": {**KDA, "kda_layers": [1, 2, 3]}},
        [((KimiDeltaState(4, 128, 4),), 3), (LATENT, 1)],
        id="kimi-linear counts its delta layers from one",
    ),
    pytest.param(
        "KimiLinearForCausalLM",
        {**MLA, "linear_attn_config": {**KDA, "kda_layers": [1], "use_full_rank_gate": True, "gate_lower_bound": -5.0}},
        [((KimiDeltaState(4, 128, 4, bounded=True),), 1), (LATENT, 3)],
        id="kimi-k3's gate is bounded",
    ),
    pytest.param(
        "BailingMoeV2_5ForCausalLM",
        {**MLA, "layer_group_size": 2, "head_dim": 64},
        [((LightningState(8, 64),), 1), (LATENT, 1)] * 2,
        id="ling-2.5: lightning layers, the last of each group is a latent",
    ),
    pytest.param(
        "BailingMoeV3ForCausalLM",
        {**MLA, "layer_group_size": 3, "head_dim": 64, "short_conv_kernel_size": 4},
        [((KimiDeltaState(8, 64, 4),), 2), (LATENT, 2)],
        id="ling-3: what is left after the last group is a latent too",
    ),
]


@pytest.mark.parametrize(("architecture", "changes", "expected"), LATENTS)
def test_latents_and_records(architecture: str, changes: dict[str, Any], expected: list[tuple[Layer, int]]) -> None:
    model = read_model(config(architecture, **changes))

    assert runs(model.layers) == expected


MAMBA_2 = Mamba2State(heads=16, head_dim=64, state=128, groups=2, conv=4)
HYBRID: Layer = (Attention(8, 128, 128), MAMBA_2)
GRANITE = {"num_key_value_heads": 2, "mamba_n_heads": 16, "mamba_d_state": 128, "mamba_n_groups": 2}
DELTA = GatedDeltaState(key_heads=16, value_heads=32, key_dim=128, value_dim=128, conv=4)
DELTA_SIZES = {
    "num_key_value_heads": 2, "head_dim": 64, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
}  # fmt: skip
STATES = [
    pytest.param("MambaForCausalLM", {}, [((Mamba1State(1024, 16, 4),), 4)], id="mamba: twice the hidden size"),
    pytest.param(
        "Mamba2ForCausalLM", {"num_heads": 16, "n_groups": 2}, [((MAMBA_2,), 4)], id="mamba2: heads of 64 elements"
    ),
    pytest.param(
        "JambaForCausalLM",
        {"num_key_value_heads": 2, "attn_layer_period": 2, "attn_layer_offset": 1},
        [((Mamba1State(1024, 16, 4),), 1), (ATTENTION, 1)] * 2,
        id="jamba: one layer in each period is attention",
    ),
    pytest.param("GraniteMoeHybridForCausalLM", GRANITE, [((MAMBA_2,), 4)], id="granite-4 without types: states only"),
    pytest.param(
        "GraniteMoeHybridForCausalLM",
        {**GRANITE, "mamba_d_head": 64, "layer_types": ["mamba", "attention", "linear_attention", "full_attention"]},
        [((MAMBA_2,), 1), (ATTENTION, 1)] * 2,
        id="granite-4: both spellings of its two kinds",
    ),
    pytest.param(
        "FalconH1ForCausalLM", {**GRANITE, "mamba_d_ssm": 1024}, [((*ATTENTION, MAMBA_2), 4)], id="falcon-h1 has both"
    ),
    pytest.param(
        "FalconH1ForCausalLM",
        {**GRANITE, "mamba_d_ssm": None},
        [((*ATTENTION, MAMBA_2), 4)],
        id="falcon-h1 without an inner size: twice the hidden size",
    ),
    pytest.param(
        "Zamba2ForCausalLM",
        {"n_mamba_heads": 16, "mamba_d_state": 128, "mamba_ngroups": 2,
         "layers_block_type": ["mamba", "hybrid", "linear_attention", "hybrid"]},
        [((MAMBA_2,), 1), ((Attention(8, 128, 128), MAMBA_2), 1)] * 2,
        id="zamba2: shared attention of twice the hidden size beside the state",
    ),
    pytest.param(
        "NemotronHForCausalLM",
        {"num_key_value_heads": 2, "head_dim": 64, "mamba_num_heads": 16, "n_groups": 2, "conv_kernel": 4,
         "hybrid_override_pattern": "M-*E"},
        [((MAMBA_2,), 1), ((), 1), (ATTENTION, 1), ((), 1)],
        id="nemotron-h by letters",
    ),
    pytest.param(
        "NemotronHForCausalLM",
        {"num_key_value_heads": 2, "head_dim": 64, "mamba_num_heads": 16, "mamba_n_groups": 2, "mamba_d_conv": 4,
         "num_hidden_layers": 99, "layers_block_type": ["mamba", "mlp", "attention", "moe"]},
        [((MAMBA_2,), 1), ((), 1), (ATTENTION, 1), ((), 1)],
        id="nemotron-h by words, whatever number of layers it says",
    ),
    pytest.param(
        "Qwen3NextForCausalLM", DELTA_SIZES, [((DELTA,), 3), (ATTENTION, 1)], id="qwen3-next: every fourth is attention"
    ),
    pytest.param(
        "Qwen3_5ForCausalLM",
        {**DELTA_SIZES, "layer_types": ["linear_attention", "full_attention"] * 2},
        [((DELTA,), 1), (ATTENTION, 1)] * 2,
        id="qwen3.5 by layer_types",
    ),
    pytest.param(
        "OlmoHybridForCausalLM",
        {"num_key_value_heads": 2},
        [((GatedDeltaState(8, 8, 48, 96, 4),), 3), (ATTENTION, 1)],
        id="olmo-hybrid derives its delta sizes",
    ),
    pytest.param(
        "OlmoHybridForCausalLM",
        {"num_key_value_heads": 2, "num_hidden_layers": 3},
        [((GatedDeltaState(8, 8, 48, 96, 4),), 2), (ATTENTION, 1)],
        id="olmo-hybrid has attention in its last layer if in no other",
    ),
    pytest.param(
        "OlmoHybridForCausalLM",
        {"num_key_value_heads": 2, "layer_types": ["full_attention", "linear_attention"] * 2},
        [(ATTENTION, 1), ((GatedDeltaState(8, 8, 48, 96, 4),), 1)] * 2,
        id="olmo-hybrid by layer_types",
    ),
    pytest.param(
        "Zamba2ForCausalLM",
        {"n_mamba_heads": 16, "mamba_d_state": 128, "mamba_ngroups": 2, "num_hidden_layers": 54},
        [((MAMBA_2,), 6), *[(HYBRID, 1), ((MAMBA_2,), 5)] * 6, (HYBRID, 1), ((MAMBA_2,), 4), (HYBRID, 1),
         ((MAMBA_2,), 3), (HYBRID, 1), ((MAMBA_2,), 2)],
        id="zamba2's own pattern of 54 layers",
    ),
    pytest.param(
        "NemotronHForCausalLM",
        {"num_key_value_heads": 2, "head_dim": 64, "mamba_num_heads": 16, "n_groups": 2, "conv_kernel": 4,
         "hybrid_override_pattern": "*M", "sliding_window": 16},
        [((Attention(2, 64, 64, 16),), 1), ((MAMBA_2,), 1)],
        id="nemotron-h with a window",
    ),
    pytest.param(
        "Lfm2ForCausalLM",
        {"num_key_value_heads": 2, "conv_dim": 256, "full_attn_idxs": [1, 3]},
        [((ShortConvState(256, 3),), 1), (ATTENTION, 1)] * 2,
        id="lfm2 numbers its attention layers",
    ),
    pytest.param(
        "Lfm2MoeForCausalLM",
        {"num_key_value_heads": 2, "layer_types": ["conv", "full_attention"] * 2},
        [((ShortConvState(512, 3),), 1), (ATTENTION, 1)] * 2,
        id="lfm2-moe by layer_types",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "changes", "expected"), STATES)
def test_states(architecture: str, changes: dict[str, Any], expected: list[tuple[Layer, int]]) -> None:
    model = read_model(config(architecture, **changes))

    assert runs(model.layers) == expected


@pytest.mark.parametrize(
    ("architecture", "changes", "dtype"),
    [
        pytest.param("NemotronHForCausalLM", {"hybrid_override_pattern": "M"}, "fp32", id="nemotron-h keeps fp32"),
        pytest.param(
            "NemotronHForCausalLM",
            {"hybrid_override_pattern": "M", "mamba_ssm_cache_dtype": "bfloat16"},
            "bf16",
            id="nemotron-h where it says so",
        ),
        pytest.param("Qwen3_5ForCausalLM", {"mamba_ssm_dtype": "float32"}, "fp32", id="qwen3.5 where it says so"),
        pytest.param("Qwen3_5ForCausalLM", {}, None, id="qwen3.5 follows the model"),
        pytest.param("MambaForCausalLM", {}, None, id="mamba follows the model"),
    ],
)
def test_the_type_of_a_state(architecture: str, changes: dict[str, Any], dtype: str | None) -> None:
    given = {"conv_kernel": 4, "n_groups": 2} if architecture.startswith("Nemotron") else {}

    assert read_model(config(architecture, **given, **changes)).state_dtype == dtype


DRAFTS = [
    pytest.param("DeepseekV3ForCausalLM", MLA, (LATENT,), id="deepseek-v3 has one head where it does not say"),
    pytest.param("DeepseekV3ForCausalLM", {**MLA, "num_nextn_predict_layers": 0}, (), id="none where it says so"),
    pytest.param(
        "DeepseekV32ForCausalLM", {**SPARSE, "num_nextn_predict_layers": 2}, (CHOOSING,) * 2, id="with an indexer each"
    ),
    pytest.param("DeepseekV4ForCausalLM", {**V4, "compress_ratios": [4] * 4}, ((WINDOW,),), id="v4: the window"),
    pytest.param("LongcatFlashForCausalLM", {**MLA, "num_layers": 2}, (LATENT,), id="longcat has one, always"),
    pytest.param("Qwen3NextForCausalLM", DELTA_SIZES, (ATTENTION,), id="qwen3-next: full attention"),
    pytest.param("Qwen3_5ForCausalLM", {**DELTA_SIZES, "mtp_num_hidden_layers": 2}, (ATTENTION,) * 2, id="two"),
    pytest.param(
        "NemotronHForCausalLM",
        {"num_key_value_heads": 2, "head_dim": 64, "n_groups": 2, "conv_kernel": 4, "hybrid_override_pattern": "M",
         "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"},
        (ATTENTION, ()),
        id="nemotron-h by letters",
    ),
    pytest.param(
        "NemotronHForCausalLM",
        {"num_key_value_heads": 2, "head_dim": 64, "n_groups": 2, "conv_kernel": 4, "hybrid_override_pattern": "M",
         "num_nextn_predict_layers": 1},
        (ATTENTION, ()),
        id="nemotron-h by the words of its class",
    ),
    pytest.param(
        "NemotronHForCausalLM",
        {"n_groups": 2, "conv_kernel": 4, "hybrid_override_pattern": "M"},
        (),
        id="nemotron-h without prediction heads",
    ),
    pytest.param(
        "Step3p5ForCausalLM",
        {"num_attention_groups": 2, "head_dim": 64, "sliding_window": 16, "num_nextn_predict_layers": 2,
         "layer_types": [*["full_attention"] * 5, "sliding_attention"]},
        (ATTENTION, (Attention(2, 64, 64, 16),)),
        id="step3.5: layer_types goes on after the last layer",
    ),
    pytest.param("Step3p5ForCausalLM", {"head_dim": 64}, (), id="step3.5 without prediction heads"),
    pytest.param(
        "ExaoneMoeForCausalLM",
        {"num_key_value_heads": 2, "sliding_window": 16, "num_nextn_predict_layers": 1},
        ((Attention(2, 64, 64, 16),),),
        id="exaone-moe: like the model's first layer",
    ),
    pytest.param(
        "ExaoneMoeForCausalLM",
        {"num_key_value_heads": 2, "sliding_window": 16, "num_nextn_predict_layers": 2,
         "mtp_layer_types": ["full_attention", "sliding_attention"]},
        (ATTENTION, (Attention(2, 64, 64, 16),)),
        id="exaone-moe by mtp_layer_types",
    ),
    pytest.param(
        "ExaoneMoeForCausalLM",
        {"num_key_value_heads": 2, "num_nextn_predict_layers": 1, "mtp_layer_types": ["sliding_attention"],
         "mtp_sliding_windows": [8]},
        ((Attention(2, 64, 64, 8),),),
        id="exaone-moe with windows of the prediction heads",
    ),
    pytest.param(
        "MiMoV2ForCausalLM",
        {"num_key_value_heads": 2, "head_dim": 64, "swa_num_key_value_heads": 2, "swa_head_dim": 64,
         "sliding_window_size": 16, "hybrid_layer_pattern": [0] * 4},
        ((Attention(2, 64, 64, 16),),),
        id="mimo-v2: one sliding layer",
    ),
    pytest.param("LlamaForCausalLM", {"num_nextn_predict_layers": 1}, (), id="a family without prediction heads"),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "changes", "expected"), DRAFTS)
def test_prediction_heads(architecture: str, changes: dict[str, Any], expected: tuple[Layer, ...]) -> None:
    assert read_model(config(architecture, **changes)).draft_layers == expected


REFUSED = [
    pytest.param("DeepseekV3ForCausalLM", {}, "kv_lora_rank: None is not a whole number", id="a latent without rank"),
    pytest.param(
        "DeepseekV4ForCausalLM", {**V4, "compress_ratios": [0]}, "compress_ratios: has 1 entries for 4", id="too short"
    ),
    pytest.param(
        "NemotronHForCausalLM",
        {"n_groups": 1, "conv_kernel": 4},
        "hybrid_override_pattern: is missing",
        id="neither letters nor words",
    ),
    pytest.param("Mamba2ForCausalLM", {"num_heads": 3}, "expand: makes 1024 inner channels, and the heads", id="inner"),
    pytest.param(
        "FalconH1ForCausalLM",
        {**GRANITE, "mamba_d_ssm": 512},
        "mamba_d_ssm: makes 512 inner channels, and the heads 1024",
        id="falcon-h1's inner size",
    ),
    pytest.param("Qwen3_5ForCausalLM", {"mamba_ssm_dtype": "int8"}, "mamba_ssm_dtype: 'int8' is none of", id="a type"),
    pytest.param("Lfm2ForCausalLM", {}, "layer_types: None is not a list", id="lfm2 without kinds of layers"),
    pytest.param(
        "ExaoneMoeForCausalLM",
        {"num_key_value_heads": 2, "num_nextn_predict_layers": 2, "mtp_layer_types": ["sliding_attention"] * 2,
         "mtp_sliding_windows": [8]},
        "mtp_sliding_windows: has no entry for layer 1",
        id="too few windows of prediction heads",
    ),
    pytest.param(
        "DeepseekV3ForCausalLM",
        {**MLA, "num_nextn_predict_layers": 5000},
        "num_nextn_predict_layers: 5000 is more than 4096 layers",
        id="too many prediction heads",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "changes", "text"), REFUSED)
def test_a_field_that_is_missing_or_contradicts_another_is_named(
    architecture: str, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ModelConfigError, match=text):
        read_model(config(architecture, **changes))


UNKNOWN = [
    pytest.param(
        "DeepseekV4ForCausalLM", {**V4, "compress_ratios": [8] * 4}, "compress_ratios: 8 is not known", id="a ratio"
    ),
    pytest.param(
        "NemotronHForCausalLM",
        {"n_groups": 1, "conv_kernel": 4, "hybrid_override_pattern": "MX"},
        "hybrid_override_pattern: 'X' is a kind of layer",
        id="a letter",
    ),
    pytest.param(
        "HYV4ForCausalLM",
        {**SPARSE, "indexer_types": ["full", "odd", "full", "full"]},
        "indexer_types: 'odd' is a kind of layer",
        id="a kind of indexer",
    ),
]


@pytest.mark.parametrize(("architecture", "changes", "text"), UNKNOWN)
def test_a_kind_of_layer_that_is_not_known_is_named(architecture: str, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UnknownArchitectureError, match=text):
        read_model(config(architecture, **changes))
