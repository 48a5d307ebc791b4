"""Gemma 3n and Gemma 4: inputs per layer, keys shared between layers, wider heads in global layers.

Pure. What a config leaves unsaid is as in its model class in transformers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvquota_api.memory.models.fields import Fields, Names
from kvquota_api.memory.parameters.families.decoder import FOUR_NORMS, alike, decoder, norms, stated_heads, vocabulary
from kvquota_api.memory.parameters.families.moe import gated_experts
from kvquota_api.memory.parameters.modules import Heads, gated_mlp, norm, router, split_columns, split_rows, whole
from kvquota_api.memory.parameters.tensors import ParameterCount, Tensor, Tensors

LAYERS: Names = ("num_hidden_layers",)
FULL: Final = "full_attention"
KINDS: Final = {FULL: FULL, "sliding_attention": "sliding_attention"}
GEMMA4_PERIOD: Final = 6  # every sixth layer is global where layer_types is missing (Gemma4TextConfig)
EXPERT_NORMS: Final = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")


def per_layer_inputs(fields: Fields, hidden: int, total: int) -> tuple[Tensors, Tensors]:
    """What the model, and what each layer, has for inputs of its own per layer."""
    width = fields.size("hidden_size_per_layer_input")
    if not width:
        return (), ()
    model = (
        *vocabulary(
            "embedding", "model.embed_tokens_per_layer", fields.count("vocab_size_per_layer_input"), total * width
        ),
        *split_rows("other", "model.per_layer_model_projection", total * width, hidden),
        *norm("model.per_layer_projection_norm", width),
    )
    layer = (
        *whole("other", "per_layer_input_gate", width, hidden),
        *whole("other", "per_layer_projection", hidden, width),
        *norm("post_per_layer_input_norm", hidden),
    )
    return model, layer


def gemma4(fields: Fields) -> ParameterCount:
    """Gemma 4, its language part."""
    total, hidden = fields.layers(LAYERS), fields.count("hidden_size")
    model, own = per_layer_inputs(fields, hidden, total)
    kinds, shared = _kinds(fields, total), fields.size("num_kv_shared_layers", missing=0)
    experts = _gemma4_experts(fields, hidden)
    layers = alike(
        [(kinds[index], index < total - shared) for index in range(total)],
        lambda each: (
            *_gemma4_heads(fields, each[0], keys=each[1]).tensors(),
            *gated_mlp("mlp", hidden, _gemma4_width(fields, shares=not each[1])),
            *experts,
            *norms(FOUR_NORMS, hidden),
            *own,
        ),
    )
    return decoder(fields, layers, tied=True, first=model)


def _kinds(fields: Fields, total: int) -> tuple[str, ...]:
    if fields.has("layer_types"):
        return fields.words("layer_types", total, KINDS)
    return tuple(
        FULL if (index + 1) % GEMMA4_PERIOD == 0 or index == total - 1 else "sliding_attention"
        for index in range(total)
    )


def _gemma4_heads(fields: Fields, kind: str, *, keys: bool) -> Heads:
    biased = fields.flag("attention_bias", missing=False)
    heads = replace(stated_heads(fields), qk_norm="Head", qkv_biased=biased, output_biased=biased, keys=keys)
    if kind != FULL:
        return heads
    size = fields.count("global_head_dim", missing=heads.key_dim)
    same = fields.flag("attention_k_eq_v", missing=False)
    kv_heads = fields.count("num_global_key_value_heads", missing=heads.kv_heads) if same else heads.kv_heads
    return replace(heads, key_dim=size, value_dim=size, kv_heads=kv_heads, values=not same)


def _gemma4_width(fields: Fields, *, shares: bool) -> int:
    double = shares and fields.flag("use_double_wide_mlp", missing=False)
    return fields.count("intermediate_size") * (2 if double else 1)


def _gemma4_experts(fields: Fields, hidden: int) -> Tensors:
    """Beside the plain module, not in its place."""
    if fields.has("num_experts") and not fields.has("enable_moe_block"):
        fields.refuse("enable_moe_block", "missing, though the config has num_experts")
    if not fields.flag("enable_moe_block", missing=False):
        return ()
    number = fields.count("num_experts")
    return (
        *router("router.proj", number, hidden),
        Tensor("router", "router.scale", hidden),
        Tensor("router", "router.per_expert_scale", number),
        *gated_experts("moe", number, hidden, fields.count("moe_intermediate_size")),
        *norms(EXPERT_NORMS, hidden),
    )


def gemma3n(fields: Fields) -> ParameterCount:
    """Gemma 3n, its language part: AltUp and LAuReL in every layer."""
    total, heads = fields.layers(LAYERS), replace(stated_heads(fields), qk_norm="Head")
    hidden, inputs = heads.hidden, fields.count("altup_num_inputs", missing=4)
    model, own = per_layer_inputs(fields, hidden, total)
    shared = fields.size("num_kv_shared_layers")
    widths = _gemma3n_widths(fields, total)
    layers = alike(
        [(index < total - shared, widths[index]) for index in range(total)],
        lambda each: (
            *replace(heads, keys=each[0]).tensors(),
            *gated_mlp("mlp", hidden, each[1]),
            *norms(FOUR_NORMS, hidden),
            *own,
            *_altup(hidden, inputs),
            *_laurel(hidden, fields.count("laurel_rank", missing=64)),
        ),
    )
    joined = [
        Tensor("other", f"model.altup_{way}projections", hidden, hidden, copies=inputs - 1, units=hidden)
        for way in ("", "unembed_")
    ]
    return decoder(fields, layers, tied=True, first=(*model, *joined))


def _gemma3n_widths(fields: Fields, total: int) -> tuple[int, ...]:
    if isinstance(fields.values.get("intermediate_size"), list | tuple):
        listed = fields.per_layer("intermediate_size", total)
        return tuple(Fields({"intermediate_size": each}, fields.path).count("intermediate_size") for each in listed)
    return (fields.count("intermediate_size"),) * total


def _altup(hidden: int, inputs: int) -> Tensors:
    return (
        Tensor("other", "altup.correct_output_scale", hidden),
        Tensor("other", "altup.correction_coefs", inputs, inputs),
        Tensor("other", "altup.prediction_coefs", inputs * inputs, inputs),
        Tensor("router", "altup.modality_router", inputs, hidden),
        *norm("altup.router_norm", hidden),
    )


def _laurel(hidden: int, rank: int) -> Tensors:
    return (
        *split_rows("other", "laurel.linear_left", rank, hidden),
        *split_columns("other", "laurel.linear_right", hidden, rank),
        *norm("laurel.post_laurel_norm", hidden),
    )
