"""Sizes that a part of a config leaves out because its class has them: parts are saved as differences from the class.

A config.json states all sizes of a text model that stands alone, but of one inside another model only those that
differ from the class (transformers 5.19, `PreTrainedConfig.to_diff_dict`). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FIELDS: Final = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings",
)  # fmt: skip
SIZES: Final[Mapping[str, tuple[int, int, int, int, int]]] = {
    "aria_text": (32, 4096, 32, 32000, 2048),
    "cohere2": (40, 8192, 64, 256000, 8192),
    "cohere_compass_text": (40, 8192, 64, 256000, 8192),
    "diffusion_gemma_text": (30, 2304, 8, 262144, 131072),
    "emu3_text_model": (32, 4096, 32, 184622, 9216),
    "ernie4_5_vl_moe_text": (28, 2560, 20, 103424, 131072),
    "exaone4": (32, 4096, 32, 102400, 2048),
    "gemma": (28, 3072, 16, 256000, 8192),
    "gemma2": (26, 2304, 8, 256000, 8192),
    "gemma3_text": (26, 2304, 8, 262208, 131072),
    "gemma3n_text": (35, 2048, 8, 262400, 32768),
    "gemma4_text": (30, 2304, 8, 262144, 131072),
    "gemma4_unified_text": (30, 2304, 8, 262144, 262144),
    "glm4v_moe_text": (46, 4096, 96, 151424, 65536),
    "glm4v_text": (40, 4096, 32, 151552, 32768),
    "glm_ocr_text": (16, 1024, 16, 59392, 131072),
    "granite": (32, 4096, 32, 32000, 2048),
    "granitemoehybrid": (32, 4096, 32, 32000, 2048),
    "hunyuan_vl_text": (32, 4096, 32, 290943, 2048),
    "lfm2": (32, 2560, 32, 65536, 128000),
    "llama": (32, 4096, 32, 32000, 2048),
    "llama4_text": (48, 5120, 40, 202048, 131072),
    "ministral3": (34, 4096, 32, 131072, 262144),
    "mistral": (32, 4096, 32, 32000, 131072),
    "muse_glimmer_text": (52, 6656, 32, 202048, 131072),
    "opt": (12, 768, 12, 50272, 2048),
    "paddleocr_vl_text": (18, 1024, 16, 103424, 131072),
    "phi3": (32, 3072, 32, 32064, 4096),
    "qwen2": (32, 4096, 32, 151936, 32768),
    "qwen2_5_omni_text": (28, 3584, 28, 152064, 32768),
    "qwen2_5_vl_text": (80, 8192, 64, 152064, 32768),
    "qwen2_vl_text": (80, 8192, 64, 152064, 32768),
    "qwen3": (32, 4096, 32, 151936, 32768),
    "qwen3_5_moe_text": (40, 2048, 16, 248320, 32768),
    "qwen3_5_text": (32, 4096, 16, 248320, 32768),
    "qwen3_moe": (24, 2048, 32, 151936, 32768),
    "qwen3_omni_moe_text": (28, 2048, 28, 3584, 32768),
    "qwen3_vl_moe_text": (24, 2048, 16, 151936, 128000),
    "qwen3_vl_text": (32, 4096, 32, 151936, 128000),
}


def class_sizes(model_type: str | None) -> Mapping[str, int]:
    """What the class of a text model's part takes for sizes that are not there; nothing where it is not known."""
    sizes = SIZES.get(model_type or "")
    return {} if sizes is None else dict(zip(FIELDS, sizes, strict=True))
