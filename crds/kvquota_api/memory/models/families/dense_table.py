"""Families in which all layers keep keys and values of every token, or all of the same window.

`defaults` are those of each family's config class (transformers 5.19), for fields that real configs leave out. A family
whose class has as many KV heads as query heads where it is not told has no entry for them. Pure.
"""

from __future__ import annotations

from typing import Final

from kvquota_api.memory.models.families import drafts, naming, variants
from kvquota_api.memory.models.families.attention import BY_TYPE, Heads, Windows, from_layer, uniform
from kvquota_api.memory.models.families.stack import Family

DERIVED: Final = Heads(head_dim=())  # the head size is always hidden size / heads
SINGLE: Final = Heads(kv_heads=())  # as many KV heads as query heads
GPT: Final = naming.GPT
BLOOM: Final = Heads(
    ("n_layer", "num_hidden_layers"), ("hidden_size", "n_embed"), ("n_head", "num_attention_heads"), (), ()
)
TELECHAT: Final = Heads(("n_layer", "num_hidden_layers"), heads=("n_head", "num_attention_heads"))
EXAONE: Final = Heads(("num_hidden_layers", "num_layers"))
STEP_1: Final = Heads(kv_heads=("num_attention_groups", "num_key_value_heads"), head_dim=())
GATE: Final = "use_sliding_window"
BOTH_WAYS: Final = frozenset({"use_bidirectional_attention"})  # images only: the engine keeps the cache as it is
GATED: Final = Windows(gate=GATE)
QWEN: Final = Windows(gate=GATE, pattern=from_layer("max_window_layers", 28, GATE))
QWEN_VL: Final = Windows(gate=GATE, pattern=from_layer("max_window_layers", 80, GATE))


def _kv(number: int, head_dim: int | None = None, window: int | None = None) -> dict[str, int]:
    given = {"num_key_value_heads": number, "head_dim": head_dim, "sliding_window": window}
    return {name: value for name, value in given.items() if value is not None}


DENSE: Final = (
    Family(("LlamaForCausalLM", "LLaMAForCausalLM"), ("llama",), uniform(windows=BY_TYPE)),
    Family(("InternLM3ForCausalLM",), ("internlm3",), uniform(windows=BY_TYPE)),
    Family(("IQuestCoderForCausalLM",), ("iquestcoder",), uniform(windows=BY_TYPE)),
    Family(("TeleChat3ForCausalLM",), ("telechat3",), uniform(windows=BY_TYPE)),
    Family(("TeleFLMForCausalLM",), (), uniform(windows=BY_TYPE)),
    Family(("MistralForCausalLM",), ("mistral",), uniform(windows=BY_TYPE), _kv(8, window=4096)),
    Family(("Ministral3ForCausalLM",), ("ministral3",), uniform(windows=BY_TYPE), _kv(8, 128)),
    Family(("MixtralForCausalLM",), ("mixtral",), uniform(), _kv(8)),
    Family(("Phi3ForCausalLM",), ("phi3",), uniform(windows=BY_TYPE)),
    Family(("PhiMoEForCausalLM",), ("phimoe",), uniform(), _kv(8)),
    Family(("PhiForCausalLM",), ("phi",), uniform(windows=BY_TYPE)),
    Family(("ApertusForCausalLM",), ("apertus",), uniform(windows=BY_TYPE)),
    Family(("ArceeForCausalLM",), ("arcee",), uniform(windows=BY_TYPE)),
    Family(("FlexOlmoForCausalLM",), ("flex_olmo",), uniform(windows=BY_TYPE)),
    Family(("GlmForCausalLM",), ("glm",), uniform(windows=BY_TYPE), _kv(2, 128)),
    Family(("Glm4ForCausalLM",), ("glm4", "glm4v_text"), uniform(), _kv(2, 128)),
    Family(("GPTNeoXForCausalLM",), ("gpt_neox",), uniform(SINGLE, BY_TYPE)),
    Family(("HunYuanDenseV1ForCausalLM",), ("hunyuan_v1_dense",), uniform(windows=BY_TYPE)),
    Family(("HunYuanMoEV1ForCausalLM",), ("hunyuan_v1_moe",), uniform(windows=BY_TYPE)),
    Family(("Jais2ForCausalLM",), ("jais2",), uniform(windows=BY_TYPE)),
    Family(("NanbeigeForCausalLM",), ("nanbeige",), uniform(windows=BY_TYPE)),
    Family(("OlmoForCausalLM",), ("olmo",), uniform(windows=BY_TYPE)),
    Family(("Olmo2ForCausalLM",), ("olmo2",), uniform(windows=BY_TYPE)),
    Family(("SeedOssForCausalLM",), ("seed_oss",), uniform(windows=BY_TYPE), _kv(8, 128)),
    Family(("Starcoder2ForCausalLM",), ("starcoder2",), uniform(windows=BY_TYPE), _kv(2)),
    Family(("Qwen2ForCausalLM",), ("qwen2",), uniform(DERIVED, QWEN), _kv(32, window=4096)),
    Family(("Qwen2_5OmniForCausalLM",), ("qwen2_5_omni_text",), uniform(DERIVED, QWEN), _kv(4, window=32768)),
    Family(
        ("Qwen2VLForCausalLM",), ("qwen2_vl_text", "qwen2_5_vl_text"), uniform(DERIVED, QWEN_VL), _kv(8, window=4096)
    ),
    Family(("Qwen2MoeForCausalLM",), ("qwen2_moe",), uniform(DERIVED, GATED), _kv(16, window=4096)),
    Family(("Qwen3ForCausalLM",), ("qwen3", "qwen3_asr_text"), uniform(windows=QWEN), _kv(32, 128, 4096)),
    Family(("Qwen3VLForCausalLM",), ("qwen3_vl_text",), uniform(), _kv(32, 128)),
    Family(("Qwen3MoeForCausalLM",), ("qwen3_moe",), uniform(windows=GATED), _kv(4, window=4096)),
    Family(("Qwen3VLMoeForCausalLM",), ("qwen3_vl_moe_text",), uniform(), _kv(16)),
    Family(("Qwen3OmniMoeForCausalLM",), ("qwen3_omni_moe_text",), uniform(windows=GATED), _kv(4, window=4096)),
    Family(("GemmaForCausalLM",), ("gemma",), uniform(), _kv(16, 256), knows=BOTH_WAYS),
    Family(("CohereForCausalLM",), ("cohere",), uniform()),
    Family(("BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"), ("bailing_moe",), uniform()),
    Family(("SarvamMoEForCausalLM",), ("sarvam_moe",), uniform()),
    Family(("BloomForCausalLM",), ("bloom",), uniform(BLOOM)),
    Family(("GPT2LMHeadModel",), ("gpt2",), uniform(GPT)),
    Family(("GPTJForCausalLM",), ("gptj",), uniform(GPT)),
    Family(("GPTBigCodeForCausalLM",), ("gpt_bigcode",), naming.gpt_bigcode, slides=False),
    Family(("OPTForCausalLM",), ("opt",), uniform(Heads(kv_heads=(), head_dim=()))),
    Family(("DeepseekForCausalLM",), ("deepseek",), uniform(DERIVED)),
    Family(("Ernie4_5ForCausalLM",), ("ernie4_5",), uniform(windows=BY_TYPE), _kv(2, 128)),
    Family(("Ernie4_5_MoeForCausalLM",), ("ernie4_5_moe",), uniform(), _kv(4), drafts=drafts.full_attention()),
    Family(("Ernie4_5_VLMoeForCausalLM",), ("ernie4_5_vl_moe_text",), uniform(), _kv(4)),
    Family(("ExaoneForCausalLM",), ("exaone",), uniform(EXAONE)),
    Family(
        ("Glm4MoeForCausalLM",),
        ("glm4_moe", "glm4v_moe_text"),
        uniform(),
        {**_kv(8), "num_nextn_predict_layers": 1},
        drafts=drafts.full_attention(),
    ),
    Family(("GlmOcrForCausalLM",), ("glm_ocr_text",), uniform(), _kv(8), drafts=drafts.full_attention()),
    Family(("HYV3ForCausalLM",), ("hy_v3",), uniform(), _kv(8, 128), drafts=drafts.full_attention()),
    Family(("HyperCLOVAXForCausalLM",), ("hyperclovax",), uniform()),
    Family(("HrmTextForCausalLM",), ("hrm_text",), naming.hrm_text, {"head_dim": 128}, slides=False),
    Family(("InternLM2ForCausalLM",), ("internlm2",), uniform(DERIVED)),
    Family(("MiniCPMForCausalLM",), ("minicpm",), uniform(DERIVED)),
    Family(("MiniMaxM2ForCausalLM",), ("minimax_m2",), uniform(), _kv(8, 128)),
    Family(
        ("MiMoForCausalLM",),
        ("mimo",),
        uniform(DERIVED, QWEN),
        _kv(32, window=4096),
        drafts=drafts.full_attention(heads=DERIVED),
    ),
    Family(("NemotronForCausalLM",), ("nemotron",), uniform()),
    Family(("OlmoeForCausalLM",), ("olmoe",), uniform(DERIVED)),
    Family(("OrionForCausalLM",), ("orion",), uniform(DERIVED)),
    Family(
        ("PanguEmbeddedForCausalLM", "PanguProMoEV2ForCausalLM"),
        (),
        variants.interleaved,
        knows=frozenset({"interleaved_sliding_window", "param_sink_number"}),
    ),
    Family(("Plamo3ForCausalLM",), ("plamo3",), variants.interleaved, knows=frozenset({"interleaved_sliding_window"})),
    Family(("K2HorizonForCausalLM",), ("k2_horizon",), uniform()),
    Family(("Param2MoEForCausalLM",), ("param2moe",), uniform()),
    Family(("SolarForCausalLM",), ("solar",), uniform()),
    Family(("StableLmForCausalLM",), ("stablelm",), uniform(DERIVED), _kv(32)),
    Family(("Step1ForCausalLM",), ("step1",), uniform(STEP_1), {"num_key_value_heads": 1}),
    Family(("TeleChat2ForCausalLM",), ("telechat",), uniform(TELECHAT, BY_TYPE)),
    Family(
        ("ChatGLMModel", "ChatGLMForConditionalGeneration", "GLM4VForCausalLM"),
        ("chatglm",),
        naming.chatglm,
        slides=False,
    ),
    Family(("DbrxForCausalLM",), ("dbrx",), naming.dbrx, slides=False),
    Family(("FalconForCausalLM",), ("falcon", "RefinedWeb", "RefinedWebModel"), naming.falcon, slides=False),
    Family(("MiniCPM3ForCausalLM",), ("minicpm3",), naming.minicpm_3, knows=naming.EXPANDED, slides=False),
    Family(("Step3TextForCausalLM",), ("step3_text",), naming.step_3, slides=False),
    Family(("GraniteForCausalLM",), ("granite",), uniform(windows=BY_TYPE)),
    Family(("GraniteMoeForCausalLM",), ("granitemoe",), uniform(DERIVED, BY_TYPE)),
    Family(("GraniteMoeSharedForCausalLM",), ("granitemoeshared",), uniform(DERIVED, BY_TYPE)),
    Family(("Phi3VForCausalLM",), ("phi3_v",), uniform(windows=BY_TYPE)),
    Family(("Phi4MMForCausalLM",), ("phi4mm", "phi4_multimodal"), uniform(windows=BY_TYPE)),
    Family(("MolmoForCausalLM",), ("molmo",), uniform(DERIVED)),
    Family(("Molmo2TextForCausalLM",), ("molmo2_text",), uniform()),
    Family(("MiniCPMV", "MiniCPMO"), ("minicpmv", "minicpmo"), uniform(windows=GATED)),
    Family(("KeyeForConditionalGeneration", "KeyeVL1_5ForConditionalGeneration"), (), uniform(windows=GATED)),
    Family(("DotsOCRForCausalLM",), ("dots_ocr",), uniform(DERIVED, QWEN), _kv(32, window=4096)),
    Family(("HunYuanVLTextForCausalLM",), ("hunyuan_vl_text",), uniform(windows=BY_TYPE)),
    Family(("Emu3TextForCausalLM",), ("emu3_text_model",), uniform(windows=BY_TYPE), _kv(8)),
    Family(("PaddleOCRTextForCausalLM",), ("paddleocr_vl_text",), uniform(windows=BY_TYPE), _kv(2, 128)),
    Family(("AriaTextForCausalLM",), ("aria_text",), uniform(windows=BY_TYPE)),
)
