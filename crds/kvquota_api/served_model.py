"""The model of a pool, as the spec states it: which it is, and in which types it is kept.

Decides the fields, their bounds and their defaults. Pure. Which of the types an engine can have, and what `auto` means
there, is decided by `kvquota_api.memory`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from kvquota_api.resource import KeyRef, Model, TokenCount, json_only
from kvquota_api.rules import exactly_one_of
from kvquota_api.words import PresetName, Printable

FreeForm = Annotated[dict[str, Any], AfterValidator(json_only)]
Dtype = Literal["auto", "fp32", "bf16", "fp16"]
WeightDtype = Literal[
    "auto", "fp32", "bf16", "fp16", "fp8", "int8", "int4", "nf4", "mxfp4", "nvfp4",
    "q8_0", "q6_k", "q5_1", "q5_0", "q5_k", "q4_1", "q4_0", "q4_k", "q3_k", "q2_k",
    "iq4_xs", "iq3_s", "iq2_xxs", "iq1_m", "iq1_s",
]  # fmt: skip
KvCacheDtype = Literal[
    "auto", "fp32", "bf16", "fp16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla", "fp8_per_token_head", "mxfp8",
    "int8", "int8_per_token_head", "int4_per_token_head", "nvfp4", "nvfp4_4over6", "fp4_e2m1",
    "fp4_mx_block16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl",
]  # fmt: skip
ValueCacheDtype = Literal["fp32", "bf16", "fp16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]


class ModelConfig(Model):
    """Where the model's Hugging Face config.json is: exactly one of preset, configMapRef, inline."""

    preset: PresetName | None = None
    """Name of a config that kvquota carries: llama-3.1-8b."""
    config_map_ref: KeyRef | None = None
    """Key of a ConfigMap of the same namespace that holds the config.json."""
    inline: FreeForm | None = None
    """The config.json itself."""

    one_value = True
    rules = (exactly_one_of("preset", "configMapRef", "inline"),)


class Media(Model):
    """What the model makes of images, audio and videos: their tokens do not follow from their bytes."""

    image_tokens: TokenCount | None = None
    """Tokens that one image takes at most. Default: requests with images are refused."""
    audio_tokens: TokenCount | None = None
    """Tokens that one audio takes at most. Default: requests with audio are refused."""
    video_tokens: TokenCount | None = None
    """Tokens that one video takes at most. Default: requests with videos are refused."""


class ServedModel(Model):
    """The model, as far as its memory depends on it. A change asks for a review of the quotas."""

    name: Printable
    """What clients send as "model"."""
    revision: Printable | None = None
    """Any text that names the revision of the weights; a change asks for a review of the quotas. Default:
    none."""
    config: ModelConfig
    """Where the model's Hugging Face config.json is."""
    dtype: Dtype = "auto"
    """Type in which the model computes; auto: what the config says (torch_dtype)."""
    weight_dtype: WeightDtype = "auto"
    """Type in which the weights are stored; auto: what the config says (torch_dtype, quantization_config). int4: in
    groups of 128 as of AWQ and GPTQ. Names with q and a digit: those of GGUF files."""
    kv_cache_dtype: KvCacheDtype = "auto"
    """Type of the KV cache; auto: the model's own type, or what the engine sets for this model. An engine has only some
    of them: names with q and a digit are llama.cpp's, those with ds_mla, per_token_head and 4over6 vLLM's, mxfp8 and
    those with fp4_ SGLang's."""
    value_cache_dtype: ValueCacheDtype | None = None
    """llama.cpp only (--cache-type-v): type of the V half of the KV cache. Default: kvCacheDtype, as of the K half."""
    state_dtype: Dtype = "auto"
    """Type of the recurrent state of Mamba and linear-attention layers, without that of their convolution; auto: what
    model and engine set."""
    max_model_len: TokenCount | None = None
    """Longest request in tokens of prompt and output. Default: what the config says (max_position_embeddings)."""
    media: Media | None = None
    """Tokens that images, audio and videos are charged with. Default: requests with any of them are refused."""
