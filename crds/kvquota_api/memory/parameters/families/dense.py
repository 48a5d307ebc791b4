"""Plain decoders: attention and one feed-forward module in every layer.

Pure. A table: what a family's config leaves unsaid, as in its model class in transformers, which the engines follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvquota_api.memory.models.fields import Fields
from kvquota_api.memory.parameters.families.decoder import (
    FOUR_NORMS,
    POST_NORMS,
    PRE_NORMS,
    decoder,
    grouped_heads,
    head_dim,
    norms,
    stated_heads,
)
from kvquota_api.memory.parameters.modules import Heads, QkNorm, gated_mlp, plain_mlp
from kvquota_api.memory.parameters.tensors import ParameterCount, Tensor, Tensors


@dataclass(frozen=True, slots=True)
class Bias:
    """Whether a layer has a bias: what `field` says, `default` where it is missing."""

    default: bool = False
    field: str | None = None

    def of(self, fields: Fields) -> bool:
        """As the config says."""
        return self.default if self.field is None else fields.flag(self.field, missing=self.default)


NEVER: Final = Bias()
ALWAYS: Final = Bias(default=True)
ATTENTION: Final = Bias(field="attention_bias")
ATTENTION_TRUE: Final = Bias(default=True, field="attention_bias")
MLP: Final = Bias(field="mlp_bias")
USE: Final = Bias(field="use_bias")
USE_TRUE: Final = Bias(default=True, field="use_bias")


@dataclass(frozen=True, slots=True)
class Dense:
    """One family. `qk_norm_field`: has to be true for that norm; `norms_field`: what their second half depends on."""

    qkv: Bias = NEVER
    output: Bias = NEVER
    mlp: Bias = NEVER
    norms: tuple[str, ...] = PRE_NORMS
    norms_field: str | None = None
    norm_biased: bool = False
    final_norm: bool = True
    qk_norm: QkNorm = "None"
    qk_norm_field: str | None = None
    gated: bool = True
    tied: bool = False
    derives_kv_heads: bool = False
    derives_head_dim: bool = True
    head_biased: bool = False
    scalars: int = 0
    sinks: bool = False


_LLAMA: Final = Dense(qkv=ATTENTION, output=ATTENTION, mlp=MLP, derives_kv_heads=True)
_QWEN2: Final = Dense(qkv=ALWAYS)
_QWEN3: Final = Dense(qkv=ATTENTION, output=ATTENTION, qk_norm="Head", derives_head_dim=False)
_MISTRAL: Final = Dense()
_GEMMA2: Final = Dense(qkv=ATTENTION, output=ATTENTION, norms=FOUR_NORMS, tied=True, derives_head_dim=False)
_OLMO2: Final = Dense(qkv=ATTENTION, output=ATTENTION, norms=POST_NORMS, qk_norm="All", derives_kv_heads=True)
_COHERE: Final = Dense(
    qkv=ATTENTION, output=ATTENTION, norms=("input_layernorm",), tied=True, derives_kv_heads=True,
    qk_norm="All", qk_norm_field="use_qk_norm",
)  # fmt: skip
_GLM: Final = Dense(qkv=ATTENTION_TRUE, derives_head_dim=False)

FAMILIES: Final[Mapping[str, Dense]] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "ministral": _MISTRAL,
    "ministral3": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "mimo": _QWEN2,
    "cwm": Dense(derives_head_dim=False),
    "hunyuan_v1_dense": _QWEN3,
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "gemma": Dense(qkv=ATTENTION, output=ATTENTION, tied=True, derives_head_dim=False),
    "gemma2": _GEMMA2,
    "gemma3_text": replace(_GEMMA2, qk_norm="Head"),
    "vaultgemma": replace(_GEMMA2, norms=("input_layernorm", "pre_feedforward_layernorm")),
    "phi3": Dense(derives_kv_heads=True),
    "phi": Dense(
        qkv=ALWAYS, output=ALWAYS, mlp=ALWAYS, norms=("input_layernorm",), norm_biased=True, gated=False,
        derives_kv_heads=True, head_biased=True, qk_norm="All", qk_norm_field="qk_layernorm",
    ),
    "granite": _LLAMA,
    "granite_swa": replace(_LLAMA, sinks=True),
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, qk_norm="None"),
    "olmo": Dense(qkv=ATTENTION, output=ATTENTION, norms=(), final_norm=False, derives_kv_heads=True),
    "olmo2": _OLMO2,
    "olmo3": _OLMO2,
    "glm": _GLM,
    "glm4": replace(_GLM, norms=(*PRE_NORMS, "post_self_attn_layernorm", "post_mlp_layernorm")),
    "starcoder2": Dense(
        qkv=USE_TRUE, output=USE_TRUE, mlp=USE_TRUE, norm_biased=True, gated=False, tied=True,
    ),
    "stablelm": Dense(
        qkv=Bias(field="use_qkv_bias"), norm_biased=True, norms_field="use_parallel_residual",
        qk_norm="All", qk_norm_field="qk_layernorm",
    ),
    "smollm3": replace(_LLAMA, tied=True, derives_kv_heads=False),
    "seed_oss": Dense(qkv=ATTENTION_TRUE, output=Bias(field="attention_out_bias"), mlp=MLP, derives_head_dim=False),
    "exaone4": Dense(norms=POST_NORMS, qk_norm="Head"),
    "ernie4_5": Dense(qkv=USE, output=USE, mlp=USE, tied=True),
    "apertus": Dense(qkv=ATTENTION, output=ATTENTION, qk_norm="Head", gated=False, scalars=2, derives_kv_heads=True),
    "nemotron": Dense(
        qkv=ATTENTION, output=ATTENTION, mlp=MLP, norm_biased=True, gated=False, derives_kv_heads=True,
    ),
    "helium": Dense(qkv=ATTENTION),
    "arcee": Dense(qkv=ATTENTION, output=ATTENTION, mlp=MLP, gated=False, derives_kv_heads=True),
    "hyperclovax": replace(_LLAMA, norms=(*PRE_NORMS, "post_norm1", "post_norm2"), norms_field="use_post_norm"),
    "gpt_neox": Dense(
        qkv=ATTENTION_TRUE, output=ATTENTION_TRUE, mlp=ALWAYS, norm_biased=True, gated=False, derives_kv_heads=True,
    ),
}  # fmt: skip


def count(fields: Fields, family: Dense) -> ParameterCount:
    """The weights of a plain decoder. Raises ModelConfigError."""
    layers = (layer(fields, family),) * fields.layers(("num_hidden_layers",))
    hidden = fields.count("hidden_size")
    last = norms(("model.norm",), hidden, biased=family.norm_biased) if family.final_norm else ()
    if family.head_biased:
        entries = fields.count("vocab_size")
        last = (*last, Tensor("head", "lm_head", entries, units=entries))
    return decoder(fields, layers, tied=family.tied, last=last)


def layer(fields: Fields, family: Dense) -> Tensors:
    """One layer."""
    heads, biased = _heads(fields, family), family.mlp.of(fields)
    mlp = gated_mlp if family.gated else plain_mlp
    return (
        *heads.tensors(),
        *mlp("mlp", heads.hidden, fields.count("intermediate_size"), biased=biased),
        *norms(_norm_names(fields, family), heads.hidden, biased=family.norm_biased),
        *((Tensor("other", "mlp.act_fn", 1, copies=family.scalars),) if family.scalars else ()),
    )


def _heads(fields: Fields, family: Dense) -> Heads:
    if family.derives_kv_heads and not fields.has("num_key_value_heads"):
        hidden, number = fields.count("hidden_size"), fields.count("num_attention_heads")
        size = head_dim(fields, hidden, number)
        plain = Heads(hidden, number, number, size, size)
    else:
        plain = grouped_heads(fields) if family.derives_head_dim else stated_heads(fields)
    normed = family.qk_norm_field is None or fields.flag(family.qk_norm_field, missing=False)
    return replace(
        plain,
        qkv_biased=family.qkv.of(fields),
        output_biased=family.output.of(fields),
        qk_norm=family.qk_norm if normed else "None",
        sinks=family.sinks,
    )


def _norm_names(fields: Fields, family: Dense) -> tuple[str, ...]:
    """`use_parallel_residual` leaves the second norm out, `use_post_norm` brings the second half in."""
    half = family.norms[: len(family.norms) // 2]
    if family.norms_field == "use_parallel_residual":
        return half if fields.flag("use_parallel_residual", missing=False) else family.norms
    if family.norms_field == "use_post_norm":
        return family.norms if fields.flag("use_post_norm", missing=False) else half
    return family.norms
