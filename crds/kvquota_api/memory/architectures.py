"""What a model is, read from its Hugging Face config.json, and what one token of it takes in the KV cache.

Decides whether a model is plainly dense (every layer keeps K and V of every token) and its sizes. Pure.

Invariants:

1. Nothing is guessed: a model type that is not listed here, or a field that would change the cache, is an
   UnknownArchitectureError that names it.
2. A KV head is never split: above the number of KV heads each GPU keeps a whole one (docs/memory.md R2).

It does not know hybrid, sliding-window, latent-attention or state-space models; each will be a kind of its own here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from kvquota_api.amounts import Bytes
from kvquota_api.memory.errors import ModelConfigError, UnknownArchitectureError
from kvquota_api.quoting import quoted

Dtype = Literal["fp32", "bf16", "fp16"]
_K = TypeVar("_K", dict[str, Any], list[Any])


@dataclass(frozen=True, slots=True)
class _Family:
    """What a config of this model type leaves unsaid. `*_bias`: always; `derives_*`: may be left out."""

    qkv_bias: bool = False
    qk_norm: bool = False
    derives_head_dim: bool = True
    derives_kv_heads: bool = False


_FAMILIES: Final = {
    "llama": _Family(derives_kv_heads=True),
    "mistral": _Family(),
    "qwen2": _Family(qkv_bias=True),
    "qwen3": _Family(qk_norm=True, derives_head_dim=False),
}

# Fields that change what is cached, or the weights, wherever they stand with a value that is not empty, 0 or false.
_NOT_DENSE: Final = (
    "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "v_head_dim", "index_head_dim", "index_topk",
    "num_kv_shared_layers", "num_nextn_predict_layers", "attention_chunk_size", "full_attention_interval",
    "attn_layer_period", "attn_layer_indices", "hybrid_override_pattern", "layers_block_type", "block_configs",
    "global_head_dim", "global_attn_every_n_layers", "cross_attention_layers", "is_encoder_decoder",
    "linear_num_key_heads", "linear_attn_config", "mamba_num_heads", "mamba_d_state", "ssm_state_size", "state_size",
    "num_experts", "num_local_experts", "n_routed_experts", "text_config", "vision_config", "audio_config",
)  # fmt: skip

MAX_SIZE: Final = 2**31  # of any size in a config: no model is near it, and products of sizes stay printable

_DTYPES: Final[Mapping[str, Dtype]] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True)
class DenseModel:
    """A model in which every layer keeps K and V of every token.

    Sizes in elements; `dtype`: that of the checkpoint, None where the config does not say; `checkpoint_quantised`,
    `kv_scheme_declared`: the config declares a quantisation of the weights, of the cache; `max_positions` in tokens.
    """

    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    max_positions: int | None
    dtype: Dtype | None
    checkpoint_quantised: bool
    kv_scheme_declared: bool

    def kv_heads_per_gpu(self, tensor: int) -> int:
        """KV heads that each of `tensor` GPUs keeps: a whole one at least."""
        return max(1, self.kv_heads // tensor)

    def kv_bytes_per_token(self, tensor: int, layers: int, element: int) -> Bytes:
        """Bytes of K and V of one token in `layers` layers on one GPU, `element` bytes each (docs/memory.md R2)."""
        return Bytes(layers * self.kv_heads_per_gpu(tensor) * 2 * self.head_dim * element)


def read_architecture(config: Mapping[str, Any]) -> DenseModel:
    """What a config.json says. Raises UnknownArchitectureError, ModelConfigError; both name the field."""
    family = _family(config)
    _refuse_what_is_not_dense(config)
    heads = _positive(config, "num_attention_heads")
    hidden = _positive(config, "hidden_size")
    attention_bias = bool(config.get("attention_bias"))
    quantisation = _optional(config, "quantization_config", dict, "an object")
    return DenseModel(
        model_type=config["model_type"],
        layers=_positive(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(config, family, heads),
        head_dim=_head_dim(config, family, hidden, heads),
        intermediate=_positive(config, "intermediate_size"),
        vocabulary=_positive(config, "vocab_size"),
        tied_embeddings=bool(config.get("tie_word_embeddings")),
        qkv_bias=family.qkv_bias or attention_bias,
        output_bias=attention_bias,
        mlp_bias=bool(config.get("mlp_bias")),
        qk_norm=family.qk_norm,
        max_positions=_optional_positive(config, "max_position_embeddings"),
        dtype=_dtype(config),
        checkpoint_quantised=bool(quantisation),
        kv_scheme_declared=bool(quantisation.get("kv_cache_scheme") or quantisation.get("kv_cache_quant_algo")),
    )


def _family(config: Mapping[str, Any]) -> _Family:
    model_type = config.get("model_type")
    family = _FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        known = ", ".join(sorted(_FAMILIES))
        raise UnknownArchitectureError(
            f"model_type: {quoted(model_type)} is not known to the planner, which knows {known}; a wrong plan would be"
            " worse than none. Quotas work on the pool that the engine reports"
        )
    return family


def _refuse_what_is_not_dense(config: Mapping[str, Any]) -> None:
    for field in _NOT_DENSE:
        if config.get(field):
            raise UnknownArchitectureError(
                f"{field}: a model with this field is not plainly dense, the planner does not know it"
            )
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        raise UnknownArchitectureError("sliding_window: the planner does not know models with a sliding window in use")
    layer_types = _optional(config, "layer_types", list, "a list")
    other = sorted({str(each) for each in layer_types if each != "full_attention"})
    if other:
        named = ", ".join(other)[:200]
        raise UnknownArchitectureError(f"layer_types: the planner knows full_attention only, not {named}")


def _kv_heads(config: Mapping[str, Any], family: _Family, heads: int) -> int:
    if family.derives_kv_heads and config.get("num_key_value_heads") is None:
        return heads
    kv_heads = _positive(config, "num_key_value_heads")
    if heads % kv_heads:
        raise ModelConfigError(f"num_key_value_heads: {kv_heads} does not divide num_attention_heads {heads}")
    return kv_heads


def _head_dim(config: Mapping[str, Any], family: _Family, hidden: int, heads: int) -> int:
    if not family.derives_head_dim or config.get("head_dim") is not None:
        return _positive(config, "head_dim")
    if hidden % heads:
        raise ModelConfigError(
            f"head_dim: missing, and num_attention_heads {heads} does not divide hidden_size {hidden}"
        )
    return hidden // heads


def _dtype(config: Mapping[str, Any]) -> Dtype | None:
    named = config.get("torch_dtype") or config.get("dtype")
    if named is None:
        return None
    if not isinstance(named, str) or named not in _DTYPES:
        raise ModelConfigError(f"torch_dtype: {quoted(named)} is none of {', '.join(_DTYPES)}")
    return _DTYPES[named]


def _optional(config: Mapping[str, Any], field: str, kind: type[_K], words: str) -> _K:
    value = config.get(field)
    if value is not None and not isinstance(value, kind):
        raise ModelConfigError(f"{field}: {quoted(value)} is not {words}; take it from the config.json")
    return value or kind()


def _optional_positive(config: Mapping[str, Any], field: str) -> int | None:
    return None if config.get(field) is None else _positive(config, field)


def _positive(config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_SIZE:
        raise ModelConfigError(
            f"{field}: {quoted(value)} is not a whole number from 1 to {MAX_SIZE}; take it from the config.json"
        )
    return value
