"""Decoders with grouped attention whose experts stand beside shared ones, behind a few dense layers.

Pure. What a family's config leaves unsaid is as in its model class in transformers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvquota_api.memory.models.fields import Fields, Names
from kvquota_api.memory.parameters.families.decoder import (
    PRE_NORMS,
    alike,
    decoder,
    grouped_heads,
    norms,
    stated_heads,
)
from kvquota_api.memory.parameters.families.moe import dense_mlp, gated_experts, routed_mlp
from kvquota_api.memory.parameters.modules import gated_mlp, router, split_rows
from kvquota_api.memory.parameters.tensors import ParameterCount, Tensor, Tensors

LAYERS: Names = ("num_hidden_layers",)
AFMOE_NORMS: Final = (*PRE_NORMS, "pre_mlp_layernorm", "post_mlp_layernorm")


def _behind_dense(fields: Fields, hidden: int, dense: int, parts: tuple[Tensors, Tensors]) -> list[Tensors]:
    """Layers of `parts`, attention and experts; the first `dense` have a plain module in place of the experts."""
    attention, sparse = parts
    return alike(
        [index < dense for index in range(fields.layers(LAYERS))],
        lambda plain: (*attention, *(dense_mlp(fields, hidden) if plain else sparse)),
    )


def exaone_moe(fields: Fields) -> ParameterCount:
    """EXAONE mixtures: the first layers are dense, the others have shared experts."""
    heads = replace(grouped_heads(fields), qk_norm="Head")
    attention, hidden = (*heads.tensors(), *norms(PRE_NORMS, heads.hidden)), heads.hidden
    dense = fields.size("first_k_dense_replace")
    width, shared = fields.count("moe_intermediate_size"), fields.size("num_shared_experts")
    sparse = (
        *router("mlp.gate", fields.count("num_experts"), hidden),
        *gated_experts("mlp", fields.count("num_experts"), hidden, width),
        *(gated_mlp("mlp.shared_experts", hidden, shared * width, part="shared") if shared else ()),
    )
    return decoder(fields, _behind_dense(fields, hidden, dense, (attention, sparse)), tied=False)


def solar_open(fields: Fields) -> ParameterCount:
    """Solar Open: experts in every layer."""
    biased = fields.flag("attention_bias", missing=False)
    heads = replace(grouped_heads(fields), qkv_biased=biased)
    layer = (*heads.tensors(), *norms(PRE_NORMS, heads.hidden), *routed_mlp(fields, heads.hidden))
    return decoder(fields, (layer,) * fields.layers(LAYERS), tied=False)


def dots1(fields: Fields) -> ParameterCount:
    """dots.llm1."""
    biased = fields.flag("attention_bias", missing=False)
    heads = replace(grouped_heads(fields), qk_norm="Head", qkv_biased=biased)
    attention, hidden = (*heads.tensors(), *norms(PRE_NORMS, heads.hidden)), heads.hidden
    dense, routed = fields.size("first_k_dense_replace"), routed_mlp(fields, heads.hidden)
    return decoder(fields, _behind_dense(fields, hidden, dense, (attention, routed)), tied=False)


def afmoe(fields: Fields) -> ParameterCount:
    """AFMoE: attention with an output gate of its own."""
    heads = replace(stated_heads(fields), qk_norm="Head")
    hidden = heads.hidden
    gate = split_rows("attention", "self_attn.gate_proj", heads.heads * heads.value_dim, hidden, units=heads.heads)
    attention = (*heads.tensors(), *gate, *norms(AFMOE_NORMS, hidden))
    dense, sparse = fields.size("num_dense_layers"), _afmoe_experts(fields, hidden)
    return decoder(fields, _behind_dense(fields, hidden, dense, (attention, sparse)), tied=False)


def _afmoe_experts(fields: Fields, hidden: int) -> Tensors:
    number, width = fields.count("num_experts"), fields.count("moe_intermediate_size")
    shared = fields.size("num_shared_experts")
    return (
        *router("mlp.router.gate", number, hidden),
        Tensor("router", "mlp.expert_bias", number),
        *gated_experts("mlp", number, hidden, width),
        *(gated_mlp("mlp.shared_experts", hidden, shared * width, part="shared") if shared else ()),
    )
