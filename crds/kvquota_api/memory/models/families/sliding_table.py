"""Families of which some layers see everything and others a window or chunk, and families with layers of several sizes.

`defaults` as in the table of dense families. Pure.
"""

from __future__ import annotations

from typing import Any, Final

from kvquota_api.memory.models.families import drafts, variants
from kvquota_api.memory.models.families.attention import (
    Heads,
    Windows,
    after_prefix,
    all_full,
    every,
    first_of,
    last_of,
    stated_where,
    uniform,
)
from kvquota_api.memory.models.families.stack import Family

DERIVED: Final = Heads(head_dim=())
BOTH_WAYS: Final = frozenset({"use_bidirectional_attention"})  # images only: the engine keeps the cache as it is
GEMMA: Final[dict[str, Any]] = {"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096}
GATE: Final = "use_sliding_window"
SMOLLM_3: Final = Windows(told_apart=True, pattern=stated_where(GATE), gate=GATE)


def _windows(pattern: int, field: str | None = None, more: int = 0) -> Windows:
    return Windows(told_apart=True, pattern=every(pattern, field), more=more)


SLIDING_FAMILIES: Final = (
    Family(("Gemma2ForCausalLM",), ("gemma2",), uniform(windows=_windows(2)), GEMMA, knows=BOTH_WAYS),
    Family(("VaultGemmaForCausalLM",), ("vaultgemma",), uniform(windows=_windows(2)), GEMMA),
    Family(("Gemma3ForCausalLM",), ("gemma3_text",), uniform(windows=_windows(6, "sliding_window_pattern")), GEMMA),
    Family(
        ("Gemma3nForCausalLM",),
        ("gemma3n_text",),
        variants.gemma_3n,
        {"num_key_value_heads": 2, "head_dim": 256, "sliding_window": 512, "num_kv_shared_layers": 15},
        knows=frozenset({"num_kv_shared_layers"}),
    ),
    Family(
        ("Gemma4ForCausalLM",),
        ("gemma4_text",),
        variants.gemma_4,
        {
            "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 512,
            "num_kv_shared_layers": 0, "global_head_dim": 512,
        },
        knows=variants.GEMMA_4_FIELDS,
    ),
    Family(
        ("Gemma4UnifiedForCausalLM",),
        ("gemma4_unified_text",),
        variants.gemma_4,
        {
            "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 1024,
            "num_kv_shared_layers": 0, "global_head_dim": 512,
        },
        knows=variants.GEMMA_4_FIELDS,
    ),
    Family(
        ("DiffusionGemmaForCausalLM",),
        ("diffusion_gemma_text",),
        variants.gemma_4,
        {
            "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 512,
            "num_kv_shared_layers": 0, "global_head_dim": 512, "attention_k_eq_v": True,
        },
        knows=variants.GEMMA_4_FIELDS,
    ),
    Family(
        ("CohereCompassForCausalLM",),
        ("cohere_compass_text",),
        uniform(windows=Windows(told_apart=True, pattern=all_full)),
        {"sliding_window": 4096},
    ),
    Family(
        ("Cohere2ForCausalLM",),
        ("cohere2",),
        uniform(windows=_windows(4, "sliding_window_pattern", more=1)),
        {"sliding_window": 4096},
    ),
    Family(
        ("Cohere2MoeForCausalLM",),
        ("cohere2_moe",),
        uniform(windows=Windows(told_apart=True, pattern=after_prefix, more=1)),
        {"sliding_window": 4096, "head_dim": 128},
    ),
    Family(
        ("AfmoeForCausalLM",),
        ("afmoe",),
        uniform(windows=_windows(4, "global_attn_every_n_layers")),
        {"head_dim": 128, "sliding_window": 1024},
        knows=frozenset({"global_attn_every_n_layers"}),
    ),
    Family(("Olmo3ForCausalLM",), ("olmo3",), uniform(windows=_windows(4)), {"sliding_window": 4096}),
    Family(
        ("CwmForCausalLM",),
        ("cwm",),
        uniform(windows=Windows(told_apart=True, pattern=first_of(4))),
        {"num_key_value_heads": 8, "head_dim": 128, "sliding_window": 8192},
    ),
    Family(
        ("SmolLM3ForCausalLM",),
        ("smollm3",),
        uniform(windows=SMOLLM_3),
        {"num_key_value_heads": 4},
    ),
    Family(
        ("MellumForCausalLM",),
        ("mellum",),
        uniform(windows=Windows(told_apart=True, pattern=all_full)),
        {"num_key_value_heads": 4, "head_dim": 128, "sliding_window": 1024},
    ),
    Family(
        ("LagunaForCausalLM",),
        ("laguna",),
        uniform(windows=Windows(told_apart=True, pattern=all_full)),
        {"num_key_value_heads": 8, "head_dim": 128, "sliding_window": 512},
    ),
    Family(
        ("GraniteSWAForCausalLM",),
        ("granite_swa",),
        uniform(windows=Windows(told_apart=True, pattern=first_of(4))),
        {"num_key_value_heads": 4, "sliding_window": 128},
    ),
    Family(
        ("GraniteMoeSWAForCausalLM",),
        ("granitemoe_swa",),
        uniform(DERIVED, Windows(told_apart=True, pattern=first_of(4))),
        {"sliding_window": 128},
    ),
    Family(
        ("Exaone4ForCausalLM",),
        ("exaone4",),
        uniform(windows=_windows(4, "sliding_window_pattern")),
        {"num_key_value_heads": 32, "sliding_window": 4096},
        drafts=drafts.exaone,
    ),
    Family(
        ("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
        ("exaone_moe",),
        variants.exaone_moe,
        {"num_key_value_heads": 32, "sliding_window": 4096, "num_nextn_predict_layers": 1},
        knows=frozenset({"sliding_windows"}),
        drafts=drafts.exaone,
    ),
    Family(
        ("GptOssForCausalLM",),
        ("gpt_oss",),
        variants.gpt_oss,
        {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
    ),
    Family(
        ("Llama4ForCausalLM",),
        ("llama4_text",),
        variants.llama_4,
        {
            "num_key_value_heads": 8, "head_dim": 128,
            "attention_chunk_size": 8192, "no_rope_layer_interval": 4,
        },
        knows=frozenset({"attention_chunk_size"}),
    ),
    Family(
        ("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM"),
        ("mimo_v2", "mimo_v2_flash"),
        variants.mimo_v2,
        knows=variants.MIMO_V2_FIELDS,
        drafts=drafts.always(lambda fields: (variants.mimo_v2_sliding(fields),)),
    ),
    Family(
        ("Step3p5ForCausalLM",),
        ("step3p5",),
        variants.step_3p5,
        {"num_attention_groups": 8},
        knows=frozenset({"attention_other_setting"}),
        drafts=variants.step_3p5_drafts,
    ),
    Family(
        ("DeciLMForCausalLM",),
        ("nemotron-nas",),
        variants.nemotron_nas,
        knows=frozenset({"block_configs"}),
        slides=False,
    ),
    Family(
        ("MuseGlimmerForCausalLM",),
        ("muse_glimmer_text",),
        uniform(windows=Windows(told_apart=True, pattern=last_of(4))),
        {"num_key_value_heads": 2, "head_dim": 128, "sliding_window": 2048},
    ),
    Family(("IQuestLoopCoderForCausalLM",), ("iquestloopcoder",), variants.iquest_loop),
    Family(
        ("WhisperForConditionalGeneration",),
        ("whisper",),
        variants.whisper,
        knows=frozenset({"is_encoder_decoder"}),
    ),
)  # fmt: skip
