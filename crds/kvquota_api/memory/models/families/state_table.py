"""Families with latent attention, and families with layers that keep a state instead of every token.

`defaults` as in the table of dense families. Pure.
"""

from __future__ import annotations

from typing import Any, Final

from kvquota_api.memory.models.families import compressed, drafts, latent, recurrent
from kvquota_api.memory.models.families.stack import Family

MLA_FIELDS: Final = frozenset({"kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "q_lora_rank"})
SPARSE_FIELDS: Final = MLA_FIELDS | {"index_head_dim", "index_topk"}
LINEAR_FIELDS: Final = frozenset({"linear_num_key_heads", "full_attention_interval"})
MAMBA_2: Final = {"mamba_expand": 2, "mamba_d_conv": 4, "mamba_d_state": 256, "mamba_n_groups": 1}
DELTA: Final[dict[str, Any]] = {
    "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32,
}  # fmt: skip
ZAMBA_2_LAYERS: Final = (
    *("mamba",),
    *(*("mamba",) * 5, "hybrid") * 7,
    *("mamba",) * 4,
    "hybrid",
    *("mamba",) * 3,
    "hybrid",
    *("mamba",) * 2,
)

LATENT_FAMILIES: Final = (
    Family(("AXK1ForCausalLM",), ("axk1",), latent.mla, knows=MLA_FIELDS),
    Family(("DeepseekV2ForCausalLM",), ("deepseek_v2",), latent.mla_or_dense, knows=MLA_FIELDS),
    Family(
        ("DeepseekV3ForCausalLM", "MistralLarge3ForCausalLM"),
        ("deepseek_v3", "kimi_k2"),
        latent.mla,
        {"num_nextn_predict_layers": 1},
        knows=MLA_FIELDS,
        drafts=drafts.alike(latent.latent),
    ),
    Family(
        ("DeepseekV32ForCausalLM",),
        ("deepseek_v32",),
        latent.sparse_mla,
        {"num_nextn_predict_layers": 1},
        knows=SPARSE_FIELDS,
        drafts=drafts.alike(latent.sparse_layer),
    ),
    Family(
        ("GlmMoeDsaForCausalLM",),
        ("glm_moe_dsa",),
        latent.sparse_mla,
        knows=SPARSE_FIELDS,
        drafts=drafts.alike(latent.sparse_layer),
    ),
    Family(
        ("HYV4ForCausalLM",),
        ("hy_v4",),
        latent.hy_v4,
        knows=SPARSE_FIELDS,
        drafts=drafts.alike(latent.latent),
    ),
    Family(
        ("Glm4MoeLiteForCausalLM",),
        ("glm4_moe_lite",),
        latent.mla,
        {"vocab_size": 154880, "max_position_embeddings": 202752},
        knows=MLA_FIELDS,
        drafts=drafts.alike(latent.latent),
    ),
    Family(
        ("LongcatFlashForCausalLM", "LongcatFlashNgramForCausalLM"),
        ("longcat_flash",),
        latent.mla_twice,
        knows=MLA_FIELDS,
        drafts=drafts.always(latent.latent),
    ),
    Family(
        ("PanguUltraMoEForCausalLM",),
        ("pangu_ultra_moe",),
        latent.mla,
        knows=MLA_FIELDS,
        drafts=drafts.alike(latent.latent),
    ),
    Family(("SarvamMLAForCausalLM",), ("sarvam_mla",), latent.mla, knows=MLA_FIELDS),
    Family(
        ("DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration"),
        ("deepseek_v4",),
        compressed.deepseek_v4,
        {"num_nextn_predict_layers": 1},
        knows=SPARSE_FIELDS | {"compress_ratios", "compress_rates"},
        drafts=drafts.alike(compressed.window_layer),
    ),
    Family(
        ("Glm5NextForCausalLM",),
        ("glm5_next_text",),
        compressed.glm_5_next,
        {"linear_lower_bound": -5.0},
        knows=SPARSE_FIELDS | {"linear_attn_config", "index_kpool"},
        drafts=drafts.alike(compressed.pooled_layer),
    ),
    Family(
        ("KimiLinearForCausalLM",),
        ("kimi_linear",),
        recurrent.kimi_linear,
        knows=MLA_FIELDS | {"linear_attn_config"},
        drafts=drafts.alike(latent.latent),
    ),
    Family(
        ("BailingMoeV2_5ForCausalLM",),
        (),
        recurrent.bailing_linear,
        knows=MLA_FIELDS | {"layer_group_size"},
        drafts=drafts.alike(latent.latent),
    ),
    Family(
        ("BailingMoeV3ForCausalLM",),
        (),
        recurrent.bailing_delta,
        knows=MLA_FIELDS | {"layer_group_size"},
        drafts=drafts.alike(latent.latent),
    ),
)

STATE_FAMILIES: Final = (
    Family(
        ("MambaForCausalLM", "FalconMambaForCausalLM"),
        ("mamba", "falcon_mamba"),
        recurrent.mamba_1,
        {"expand": 2, "state_size": 16, "conv_kernel": 4},
        knows=frozenset({"state_size"}),
    ),
    Family(
        ("Mamba2ForCausalLM",),
        ("mamba2",),
        recurrent.mamba_2,
        {"expand": 2, "state_size": 128, "conv_kernel": 4, "n_groups": 8, "head_dim": 64},
        knows=frozenset({"state_size"}),
    ),
    Family(
        ("JambaForCausalLM",),
        ("jamba",),
        recurrent.jamba,
        {
            "num_key_value_heads": 8, "mamba_expand": 2, "mamba_d_state": 16, "mamba_d_conv": 4,
            "attn_layer_period": 8, "attn_layer_offset": 4,
        },
        knows=frozenset({"mamba_d_state", "attn_layer_period"}),
    ),
    Family(
        ("GraniteMoeHybridForCausalLM",),
        ("granitemoehybrid",),
        recurrent.granite_hybrid,
        {**MAMBA_2, "mamba_n_heads": 128, "mamba_d_head": "auto"},
        knows=frozenset({"mamba_d_state", "layers_block_type"}),
    ),
    Family(
        ("FalconH1ForCausalLM",),
        ("falcon_h1",),
        recurrent.falcon_h1,
        {**MAMBA_2, "num_key_value_heads": 8, "mamba_d_ssm": 1024, "mamba_n_heads": 128, "mamba_d_head": "auto"},
        knows=frozenset({"mamba_d_state", "mamba_d_ssm"}),
    ),
    Family(
        ("Zamba2ForCausalLM",),
        ("zamba2",),
        recurrent.zamba_2,
        {
            "layers_block_type": ZAMBA_2_LAYERS, "mamba_expand": 2, "mamba_d_state": 64, "mamba_d_conv": 4,
            "mamba_ngroups": 1, "n_mamba_heads": 8,
        },
        knows=frozenset({"mamba_d_state", "layers_block_type"}),
    ),
    Family(
        ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM"),
        ("nemotron_h",),
        recurrent.nemotron_h,
        {
            "num_key_value_heads": 8, "head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 64,
            "ssm_state_size": 128, "mtp_layers_block_type": ["full_attention", "moe"],
        },
        knows=frozenset({"hybrid_override_pattern", "layers_block_type", "mamba_num_heads", "ssm_state_size"}),
        drafts=drafts.nemotron_h,
    ),
    Family(
        ("Qwen3NextForCausalLM",),
        ("qwen3_next",),
        recurrent.gated_delta,
        {**DELTA, "num_nextn_predict_layers": 1},
        knows=LINEAR_FIELDS,
        drafts=drafts.full_attention(),
    ),
    Family(
        ("Qwen3_5ForCausalLM",),
        ("qwen3_5_text",),
        recurrent.gated_delta,
        {**DELTA, "num_key_value_heads": 4, "mtp_num_hidden_layers": 1},
        knows=LINEAR_FIELDS,
        drafts=drafts.full_attention(drafts.MTP),
    ),
    Family(
        ("Qwen3_5MoeForCausalLM",),
        ("qwen3_5_moe_text",),
        recurrent.gated_delta,
        {**DELTA, "mtp_num_hidden_layers": 1},
        knows=LINEAR_FIELDS,
        drafts=drafts.full_attention(drafts.MTP),
    ),
    Family(
        ("OlmoHybridForCausalLM",),
        ("olmo_hybrid",),
        recurrent.olmo_hybrid,
        {"linear_conv_kernel_dim": 4},
        knows=LINEAR_FIELDS,
    ),
    Family(
        ("Lfm2ForCausalLM",),
        ("lfm2",),
        recurrent.short_conv,
        {"num_key_value_heads": 8, "conv_L_cache": 3},
    ),
    Family(
        ("Lfm2MoeForCausalLM",),
        ("lfm2_moe",),
        recurrent.short_conv,
        {"num_key_value_heads": 8, "conv_L_cache": 3},
    ),
)  # fmt: skip
