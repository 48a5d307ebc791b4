"""What layers of keys and values a model has: heads, head sizes, windows, by family."""

from itertools import groupby
from typing import Any

import pytest

from kvquota_api.memory.errors import ModelConfigError, UnknownArchitectureError
from kvquota_api.memory.models.layers import Attention, CrossAttention, Layer
from kvquota_api.memory.models.reading import read_model

SIZES: dict[str, Any] = {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 1000}


def config(architecture: str, **changes: Any) -> dict[str, Any]:
    """A model of four layers, eight query heads of 64."""
    return {"architectures": [architecture], **SIZES, **changes}


def runs(layers: tuple[Layer, ...]) -> list[tuple[Layer, int]]:
    """Equal layers in a row, with their number."""
    return [(layer, len(list(group))) for layer, group in groupby(layers)]


def full(kv_heads: int, dim: int, window: int | None = None) -> Layer:
    """A layer of attention with keys and values of one size."""
    return (Attention(kv_heads, dim, dim, window),)


UNIFORM = [
    pytest.param("LlamaForCausalLM", {"num_key_value_heads": 2}, full(2, 64), id="llama: head size is hidden / heads"),
    pytest.param("LlamaForCausalLM", {}, full(8, 64), id="llama without KV heads has one per query head"),
    pytest.param("LlamaForCausalLM", {"head_dim": 96}, full(8, 96), id="llama: a stated head size wins"),
    pytest.param(
        "LlamaForCausalLM", {"sliding_window": 16}, full(8, 64, 16), id="a window without layer types is all's"
    ),
    pytest.param("MistralForCausalLM", {}, full(8, 64, 4096), id="mistral without either: 8 KV heads, 4096 tokens"),
    pytest.param("MistralForCausalLM", {"sliding_window": None}, full(8, 64), id="mistral: null is no window"),
    pytest.param(
        "MistralForCausalLM", {"num_key_value_heads": None, "sliding_window": None}, full(8, 64), id="null KV"
    ),
    pytest.param("MixtralForCausalLM", {"sliding_window": 0}, full(8, 64), id="a window of 0 is none"),
    pytest.param("Ministral3ForCausalLM", {}, full(8, 128), id="ministral3 has heads of 128 where it does not say"),
    pytest.param("Phi3ForCausalLM", {"sliding_window": 2047}, full(8, 64, 2047), id="phi3 slides in all layers"),
    pytest.param(
        "Qwen2ForCausalLM", {"num_key_value_heads": 2, "head_dim": 99}, full(2, 64), id="qwen2: hidden / heads"
    ),
    pytest.param(
        "Qwen2ForCausalLM",
        {"num_key_value_heads": 2, "use_sliding_window": True, "max_window_layers": 0, "sliding_window": 32},
        full(2, 64, 32),
        id="qwen2 with every layer above max_window_layers slides",
    ),
    pytest.param(
        "Qwen2ForCausalLM",
        {"num_key_value_heads": 2, "use_sliding_window": True, "max_window_layers": 4, "sliding_window": 32},
        full(2, 64),
        id="qwen2 with no layer above max_window_layers does not slide",
    ),
    pytest.param("Qwen3ForCausalLM", {"num_key_value_heads": 4}, full(4, 128), id="qwen3 has heads of 128"),
    pytest.param("Qwen3MoeForCausalLM", {}, full(4, 64), id="qwen3-moe: the window is not used without its flag"),
    pytest.param(
        "Qwen3MoeForCausalLM", {"use_sliding_window": True, "sliding_window": 8}, full(4, 64, 8), id="qwen3-moe sliding"
    ),
    pytest.param("GemmaForCausalLM", {"num_key_value_heads": 1}, full(1, 256), id="gemma has heads of 256"),
    pytest.param("GPT2LMHeadModel", {"n_layer": 4, "n_head": 4, "n_embd": 256}, full(4, 64), id="gpt2's own names"),
    pytest.param("BloomForCausalLM", {"n_layer": 4, "n_head": 4}, full(4, 128), id="bloom's own names"),
    pytest.param("GPTBigCodeForCausalLM", {}, full(1, 64), id="bigcode has one KV head"),
    pytest.param("GPTBigCodeForCausalLM", {"multi_query": False}, full(8, 64), id="bigcode without multi-query"),
    pytest.param("OPTForCausalLM", {"num_key_value_heads": 2}, full(8, 64), id="opt has no KV heads of its own"),
    pytest.param("FalconForCausalLM", {}, full(1, 64), id="falcon has one KV head"),
    pytest.param("FalconForCausalLM", {"multi_query": False}, full(8, 64), id="falcon without multi-query"),
    pytest.param(
        "FalconForCausalLM",
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        full(2, 64),
        id="falcon's new decoder says its KV heads",
    ),
    pytest.param(
        "ChatGLMModel",
        {"num_layers": 4, "multi_query_attention": True, "multi_query_group_num": 2},
        full(2, 64),
        id="chatglm with groups",
    ),
    pytest.param("ChatGLMModel", {"num_layers": 4}, full(8, 64), id="chatglm without groups"),
    pytest.param(
        "PanguEmbeddedForCausalLM", {"interleaved_sliding_window": 16}, full(8, 64, 16), id="pangu: one window"
    ),
    pytest.param("PanguEmbeddedForCausalLM", {}, full(8, 64), id="pangu without a window"),
    pytest.param(
        "DbrxForCausalLM",
        {"n_layers": 4, "n_heads": 8, "d_model": 512, "attn_config": {"kv_n_heads": 2}},
        full(2, 64),
        id="dbrx has its KV heads in attn_config",
    ),
    pytest.param(
        "PanguProMoEV2ForCausalLM",
        {"num_key_value_heads": 2, "param_sink_number": 4, "qk_nope_dim": 64, "qk_rope_dim": 32, "v_channels": 128},
        (Attention(2, 96, 128),),
        id="pangu with sinks: keys and values of two sizes",
    ),
    pytest.param(
        "HrmTextForCausalLM",
        {"H_cycles": 2, "L_cycles": 1, "num_layers_per_stack": 1, "num_hidden_layers": 99},
        full(8, 128),
        id="hrm-text: a stack of one layer that runs four times",
    ),
    pytest.param("Step1ForCausalLM", {"num_attention_groups": 2}, full(2, 64), id="step1 calls KV heads groups"),
    pytest.param("Step3TextForCausalLM", {"head_dim": 256}, full(1, 256), id="step3 has one KV head"),
    pytest.param(
        "MiniCPM3ForCausalLM",
        {"kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64},
        full(8, 96),
        id="minicpm3 keeps whole keys and values in spite of its ranks",
    ),
    pytest.param(
        "CohereForCausalLM", {"num_key_value_heads": 8, "model_max_length": 512}, full(8, 64), id="cohere is uniform"
    ),
]


@pytest.mark.parametrize(("architecture", "changes", "layer"), UNIFORM)
def test_layers_that_are_all_alike(architecture: str, changes: dict[str, Any], layer: Layer) -> None:
    model = read_model(config(architecture, **changes))

    assert model.layers == (layer,) * 4


TYPES = ["sliding_attention", "full_attention"] * 2
GEMMA = {"num_key_value_heads": 2, "head_dim": 64, "sliding_window": 16}
MIXED = [
    pytest.param(
        "LlamaForCausalLM",
        {"layer_types": TYPES, "sliding_window": 16},
        [(full(8, 64, 16), 1), (full(8, 64), 1)] * 2,
        id="llama looks at layer_types",
    ),
    pytest.param(
        "LlamaForCausalLM",
        {"layer_types": ["sliding_attention"] * 4, "sliding_window": 16},
        [(full(8, 64, 16), 4)],
        id="all layers slide",
    ),
    pytest.param(
        "Gemma2ForCausalLM", GEMMA, [(full(2, 64, 16), 1), (full(2, 64), 1)] * 2, id="gemma2: every other layer is full"
    ),
    pytest.param(
        "Gemma3ForCausalLM",
        {**GEMMA, "sliding_window_pattern": 3},
        [(full(2, 64, 16), 2), (full(2, 64), 1), (full(2, 64, 16), 1)],
        id="gemma3: every third layer is full, as its pattern says",
    ),
    pytest.param(
        "Gemma3ForCausalLM", GEMMA, [(full(2, 64, 16), 4)], id="gemma3: every sixth layer is full where it does not say"
    ),
    pytest.param(
        "Cohere2ForCausalLM",
        {"sliding_window": 16},
        [(full(8, 64, 17), 3), (full(8, 64), 1)],
        id="cohere2 sees one token beyond its window",
    ),
    pytest.param(
        "Cohere2MoeForCausalLM",
        {"head_dim": 64, "sliding_window": 16, "first_k_dense_replace": 2, "sliding_window_pattern": 2},
        [(full(8, 64), 2), (full(8, 64, 17), 1), (full(8, 64), 1)],
        id="cohere2-moe: a pattern of its own for the first, dense layers",
    ),
    pytest.param(
        "CwmForCausalLM",
        {"head_dim": 64, "sliding_window": 16, "num_key_value_heads": 4},
        [(full(4, 64), 1), (full(4, 64, 16), 3)],
        id="cwm: the first of four is full",
    ),
    pytest.param(
        "MuseGlimmerForCausalLM",
        {"num_hidden_layers": 5, "head_dim": 64, "sliding_window": 16},
        [(full(2, 64), 1), (full(2, 64, 16), 3), (full(2, 64), 1)],
        id="muse-glimmer counts its full layers from the last",
    ),
    pytest.param(
        "LagunaForCausalLM", {"head_dim": 64}, [(full(8, 64), 4)], id="laguna without layer types does not slide"
    ),
    pytest.param("SmolLM3ForCausalLM", {}, [(full(4, 64), 4)], id="smollm3 does not slide unless it says so"),
    pytest.param(
        "GptOssForCausalLM",
        {"head_dim": 64, "layer_types": ["full_attention"] * 4},
        [(full(8, 64, 128), 1), (full(8, 64), 1)] * 2,
        id="gpt-oss: every other layer slides whatever layer_types says",
    ),
    pytest.param(
        "GptOssForCausalLM",
        {"head_dim": 64, "sliding_window": 32, "layer_types": ["sliding_attention"] * 4},
        [(full(8, 64, 32), 4)],
        id="gpt-oss with sliding types only slides in all layers",
    ),
    pytest.param(
        "ExaoneMoeForCausalLM",
        {"num_key_value_heads": 4, "sliding_windows": [8, 16, 0, 0]},
        [(full(4, 64, 8), 1), (full(4, 64, 16), 1), (full(4, 64), 2)],
        id="exaone-moe has a window for each sliding layer",
    ),
    pytest.param(
        "ExaoneMoeForCausalLM",
        {"num_key_value_heads": 4, "sliding_window": 8},
        [(full(4, 64, 8), 3), (full(4, 64), 1)],
        id="exaone-moe with one window",
    ),
    pytest.param(
        "Gemma3nForCausalLM",
        {**GEMMA, "num_hidden_layers": 7, "num_kv_shared_layers": 1},
        [(full(2, 64, 16), 4), (full(2, 64), 1), (full(2, 64, 16), 1), ((), 1)],
        id="gemma3n: a layer that reads another one's cache keeps nothing",
    ),
    pytest.param(
        "Gemma4ForCausalLM",
        {**GEMMA, "layer_types": ["sliding_attention"] * 4, "global_head_dim": 128},
        [(full(2, 64, 16), 3), (full(2, 128), 1)],
        id="gemma4: the last layer is global, with a head size of its own",
    ),
    pytest.param(
        "Gemma4ForCausalLM",
        {**GEMMA, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_kv_shared_layers": 1,
         "layer_types": TYPES},
        [(full(2, 64, 16), 1), (full(1, 512), 1), (full(2, 64, 16), 1), ((), 1)],
        id="gemma4: global layers with KV heads of their own, the last one shared",
    ),
    pytest.param(
        "Gemma4ForCausalLM",
        {**GEMMA, "per_layer_config": {"03": {"head_dim": 32, "num_key_value_heads": 4}}},
        [(full(2, 64, 16), 3), (full(4, 32), 1)],
        id="gemma4 as its class writes it: overrides by layer",
    ),
    pytest.param(
        "Llama4ForCausalLM",
        {"num_key_value_heads": 2, "head_dim": 64, "attention_chunk_size": 32},
        [((Attention(2, 64, 64, chunk=32),), 3), (full(2, 64), 1)],
        id="llama4: three of four layers attend within chunks",
    ),
    pytest.param(
        "Llama4ForCausalLM",
        {"num_key_value_heads": 2, "head_dim": 64, "attention_chunk_size": 32, "no_rope_layers": [0, 1, 1, 0]},
        [(full(2, 64), 1), ((Attention(2, 64, 64, chunk=32),), 2), (full(2, 64), 1)],
        id="llama4 with a list of its layers without rotary positions",
    ),
    pytest.param(
        "Llama4ForCausalLM",
        {"num_key_value_heads": 2, "head_dim": 64, "attention_chunk_size": None},
        [(full(2, 64), 4)],
        id="llama4 without chunks",
    ),
    pytest.param(
        "MiMoV2FlashForCausalLM",
        {"num_key_value_heads": 2, "head_dim": 192, "v_head_dim": 128, "swa_num_key_value_heads": 4,
         "swa_head_dim": 96, "sliding_window_size": 16, "hybrid_layer_pattern": [0, 1, 1, 0]},
        [((Attention(2, 192, 128),), 1), ((Attention(4, 96, 96, 16),), 2), ((Attention(2, 192, 128),), 1)],
        id="mimo-v2: keys and values of two sizes, other heads where it slides",
    ),
    pytest.param(
        "Step3p5ForCausalLM",
        {"num_attention_groups": 4, "head_dim": 64, "sliding_window": 16, "layer_types": [*TYPES, "full_attention"],
         "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 12,
                                     "num_attention_groups": 2, "head_dim": 32}},
        [(full(2, 32, 16), 1), (full(4, 64), 1)] * 2,
        id="step3.5: another kind of heads where it slides; layer_types may be longer",
    ),
    pytest.param(
        "Step3p5ForCausalLM",
        {"head_dim": 64, "sliding_window": 16},
        [(full(8, 64, 16), 1), (full(8, 64), 1)] * 2,
        id="step3.5 without layer_types slides in every other layer",
    ),
    pytest.param(
        "DeciLMForCausalLM",
        {"block_configs": [{"attention": {"no_op": True}}, {"attention": {"n_heads_in_group": 4}},
                           {"attention": {"n_heads_in_group": 8}}, {"attention": {"n_heads_in_group": 4}}]},
        [((), 1), (full(2, 64), 1), (full(1, 64), 1), (full(2, 64), 1)],
        id="nemotron-nas: layers without attention, and groups of each layer's own",
    ),
    pytest.param(
        "Plamo3ForCausalLM",
        {"interleaved_sliding_window": [16, 0]},
        [(full(8, 64, 16), 1), (full(8, 64), 1)] * 2,
        id="plamo3: windows that repeat over the layers",
    ),
    pytest.param(
        "IQuestLoopCoderForCausalLM",
        {"loop_num": 2, "loop_window_size": 16},
        [((Attention(8, 64, 64), Attention(8, 64, 64, 16)), 4)],
        id="iquest-loop keeps what each of its loops sees",
    ),
    pytest.param(
        "WhisperForConditionalGeneration",
        {"decoder_layers": 4, "decoder_attention_heads": 8, "d_model": 512, "is_encoder_decoder": True},
        [((Attention(8, 64, 64), CrossAttention(8, 64, 64)), 4)],
        id="whisper's decoder attends to itself and to the encoder",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "changes", "expected"), MIXED)
def test_layers_that_differ(architecture: str, changes: dict[str, Any], expected: list[tuple[Layer, int]]) -> None:
    model = read_model(config(architecture, **changes))

    assert runs(model.layers) == expected


REFUSED = [
    pytest.param(
        "LlamaForCausalLM", {"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide the 8", id="kv"
    ),
    pytest.param(
        "LlamaForCausalLM", {"hidden_size": 500}, "hidden_size: 500 is not a multiple of the 8", id="head size"
    ),
    pytest.param("LlamaForCausalLM", {"layer_types": TYPES[:3]}, "layer_types: has 3 entries for 4 layers", id="short"),
    pytest.param(
        "LlamaForCausalLM", {"num_hidden_layers": 5000}, "num_hidden_layers: 5000 is more than 4096", id="deep"
    ),
    pytest.param(
        "Gemma4ForCausalLM",
        {"use_bidirectional_attention": "all"},
        "use_bidirectional_attention: a model that attends in both directions",
        id="gemma4 as an encoder",
    ),
    pytest.param(
        "Cohere2MoeForCausalLM", {"first_k_dense_replace": 5}, "first_k_dense_replace: 5 is more", id="prefix"
    ),
    pytest.param(
        "SmolLM3ForCausalLM", {"use_sliding_window": True}, "layer_types: None is not a list", id="smollm3 that slides"
    ),
    pytest.param("Gemma3nForCausalLM", {"num_kv_shared_layers": 4}, "num_kv_shared_layers: 4 leaves none", id="shared"),
    pytest.param("DbrxForCausalLM", {"n_layers": 4, "n_heads": 8}, "attn_config: None is not an object", id="dbrx"),
    pytest.param(
        "FalconForCausalLM", {"new_decoder_architecture": True}, "num_kv_heads: None is not a whole", id="falcon"
    ),
    pytest.param(
        "DeciLMForCausalLM", {"block_configs": [1] * 4}, "block_configs: has an entry that is not", id="block"
    ),
    pytest.param(
        "DeciLMForCausalLM",
        {"block_configs": [{"attention": {"n_heads_in_group": 3}}] * 4},
        "block_configs.attention.n_heads_in_group: 3 does not divide",
        id="a group that does not divide the heads",
    ),
    pytest.param(
        "DeciLMForCausalLM",
        {"block_configs": [{}] * 4},
        "attention: None is not an object",
        id="a block without attention",
    ),
    pytest.param(
        "Step3p5ForCausalLM",
        {"attention_other_setting": {"attention_type": "other", "head_dim": 64}},
        "attention_other_setting.attention_type: 'other' is none of",
        id="a setting of an unknown kind",
    ),
    pytest.param(
        "Plamo3ForCausalLM", {"interleaved_sliding_window": []}, "interleaved_sliding_window: is empty", id="[]"
    ),
    pytest.param(
        "HrmTextForCausalLM",
        {"H_cycles": 2, "L_cycles": 2, "num_layers_per_stack": 4000},
        "num_layers_per_stack: 6 runs make 24000 layers",
        id="runs that make too many layers",
    ),
    pytest.param("MiMoV2ForCausalLM", {"hybrid_layer_pattern": [0]}, "has 1 entries for 4 layers", id="mimo pattern"),
]


@pytest.mark.parametrize(("architecture", "changes", "text"), REFUSED)
def test_sizes_that_contradict_each_other_are_errors_that_name_the_field(
    architecture: str, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ModelConfigError, match=text):
        read_model(config(architecture, **changes))


UNKNOWN = [
    pytest.param(
        "MixtralForCausalLM", {"layer_types": TYPES, "sliding_window": 4}, "layer_types: only some", id="mixed windows"
    ),
    pytest.param(
        "LlamaForCausalLM", {"layer_types": ["odd"] * 4}, "layer_types: 'odd' is a kind of layer", id="a word"
    ),
    pytest.param("LlamaForCausalLM", {"layer_types": [4] * 4}, "layer_types: 4 is a kind of layer", id="no word"),
    pytest.param("LlamaForCausalLM", {"kv_lora_rank": 512}, "kv_lora_rank: this field changes what", id="a latent"),
    pytest.param("DbrxForCausalLM", {"sliding_window": 8}, "sliding_window: this field changes what", id="a window"),
    pytest.param("LlamaForCausalLM", {"is_causal": False}, "is_causal: a model that attends in both", id="both ways"),
    pytest.param(
        "Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention: this", id="an encoder"
    ),
    pytest.param("LlamaForCausalLM", {"mamba_d_state": 16}, "mamba_d_state: this field changes what", id="a state"),
]


@pytest.mark.parametrize(("architecture", "changes", "text"), UNKNOWN)
def test_what_the_family_does_not_know_is_an_unknown_architecture(
    architecture: str, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(UnknownArchitectureError, match=text):
        read_model(config(architecture, **changes))
