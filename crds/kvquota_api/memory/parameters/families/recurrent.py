"""Models of state layers alone, and of state layers between attention layers.

Pure. What a config leaves unsaid is as in its model class in transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kvquota_api.memory.models.fields import Fields, Names
from kvquota_api.memory.parameters.families.decoder import (
    PRE_NORMS,
    alike,
    decoder,
    divided,
    draft_layers,
    grouped_heads,
    norms,
    stated_heads,
)
from kvquota_api.memory.parameters.families.moe import gated_experts, granite_mlp, qwen_mlps
from kvquota_api.memory.parameters.modules import Heads, gated_mlp, norm, router, split_rows, whole
from kvquota_api.memory.parameters.states import GatedDelta, Mamba1, Mamba2, short_convolution
from kvquota_api.memory.parameters.tensors import ParameterCount, Tensor, Tensors
from kvquota_api.quoting import quoted

LAYERS: Names = ("num_hidden_layers",)
QWEN_KINDS: Final = {"linear_attention": "linear_attention", "full_attention": "full_attention"}
GRANITE_KINDS: Final = {
    "mamba": "mamba",
    "attention": "attention",
    "full_attention": "attention",
    "linear_attention": "mamba",
}
ZAMBA2_KINDS: Final = {"mamba": "mamba", "linear_attention": "mamba", "hybrid": "hybrid"}
LFM2_KINDS: Final = {"conv": "conv", "full_attention": "full_attention"}


def mamba(fields: Fields) -> ParameterCount:
    """Mamba and Falcon-Mamba."""
    hidden = fields.count("hidden_size")
    inner = fields.count("intermediate_size", missing=fields.count("expand", missing=2) * hidden)
    mixer = Mamba1(
        hidden=hidden,
        inner=inner,
        state=fields.count("state_size"),
        rank=-(-hidden // 16) if fields.values.get("time_step_rank") == "auto" else fields.count("time_step_rank"),
        conv=fields.count("conv_kernel"),
        conv_biased=fields.flag("use_conv_bias", missing=True),
        biased=fields.flag("use_bias", missing=False),
    )
    layer = (*mixer.tensors("mixer"), *norm("norm", hidden))
    return decoder(fields, (layer,) * fields.layers(LAYERS), tied=True)


def mamba2(fields: Fields) -> ParameterCount:
    """Mamba-2 and Codestral-Mamba."""
    hidden = fields.count("hidden_size")
    mixer = Mamba2(
        hidden=hidden,
        heads=fields.count("num_heads"),
        head_dim=fields.count("head_dim"),
        state=fields.count("state_size"),
        groups=fields.count("n_groups"),
        conv=fields.count("conv_kernel"),
        conv_biased=fields.flag("use_conv_bias", missing=True),
        biased=fields.flag("use_bias", missing=False),
    )
    layer = (*mixer.tensors("mixer"), *norm("norm", hidden))
    return decoder(fields, (layer,) * fields.layers(LAYERS), tied=False)


def jamba(fields: Fields) -> ParameterCount:
    """Jamba: attention and experts each at a period and an offset of their own."""
    heads, total = grouped_heads(fields), fields.layers(LAYERS)
    hidden, width, number = heads.hidden, fields.count("intermediate_size"), fields.count("num_experts")
    rank = fields.values.get("mamba_dt_rank")
    mixer = Mamba1(
        hidden=hidden,
        inner=fields.count("mamba_expand") * hidden,
        state=fields.count("mamba_d_state"),
        rank=-(-hidden // 16) if rank == "auto" else fields.count("mamba_dt_rank"),
        conv=fields.count("mamba_d_conv"),
        conv_biased=fields.flag("mamba_conv_bias", missing=True),
        biased=fields.flag("mamba_proj_bias", missing=False),
        normed=True,
    ).tensors("mamba")
    routed = (*router("feed_forward.router", number, hidden), *gated_experts("feed_forward", number, hidden, width))
    dense = gated_mlp("feed_forward", hidden, width)
    kinds = [(_periodic(fields, "attn_layer", each), _periodic(fields, "expert_layer", each)) for each in range(total)]
    layers = alike(
        kinds,
        lambda kind: (
            *(heads.tensors() if kind[0] else mixer),
            *(routed if number > 1 and kind[1] else dense),
            *norms(("input_layernorm", "pre_ff_layernorm"), hidden),
        ),
    )
    return decoder(fields, layers, tied=False)


def _periodic(fields: Fields, name: str, index: int) -> bool:
    return index % fields.count(f"{name}_period") == fields.size(f"{name}_offset")


def granite_mamba2(fields: Fields) -> Mamba2:
    """The mixer of Granite 4, Bamba and Falcon-H1."""
    return Mamba2(
        hidden=fields.count("hidden_size"),
        heads=fields.count("mamba_n_heads"),
        head_dim=fields.count("mamba_d_head"),
        state=fields.count("mamba_d_state"),
        groups=fields.count("mamba_n_groups"),
        conv=fields.count("mamba_d_conv"),
        conv_biased=fields.flag("mamba_conv_bias", missing=True),
        biased=fields.flag("mamba_proj_bias", missing=False),
    )


def granite_hybrid(fields: Fields) -> ParameterCount:
    """Granite 4."""
    biased = fields.flag("attention_bias", missing=False)
    heads, total = replace(grouped_heads(fields), qkv_biased=biased, output_biased=biased), fields.layers(LAYERS)
    name = fields.first(("layer_types", "layers_block_type"))
    kinds = fields.words(name, total, GRANITE_KINDS)
    same = (
        *granite_mlp(fields, heads.hidden, fields.size("shared_intermediate_size")),
        *norms(PRE_NORMS, heads.hidden),
    )
    mixer = granite_mamba2(fields).tensors("mamba") if "mamba" in kinds else ()
    layers = alike(kinds, lambda kind: (*(mixer if kind == "mamba" else heads.tensors()), *same))
    return decoder(fields, layers, tied=False)


def bamba(fields: Fields) -> ParameterCount:
    """Bamba: attention in the layers of `attn_layer_indices`."""
    heads = grouped_heads(fields)
    attends = fields.numbers("attn_layer_indices") if fields.has("attn_layer_indices") else ()
    hidden, mixer = heads.hidden, granite_mamba2(fields).tensors("mamba")
    same = (
        *gated_mlp("feed_forward", hidden, fields.count("intermediate_size")),
        *norms(("input_layernorm", "pre_ff_layernorm"), hidden),
    )
    total = fields.layers(LAYERS)
    layers = alike(
        [index in attends for index in range(total)],
        lambda attending: (*(heads.tensors() if attending else mixer), *same),
    )
    return decoder(fields, layers, tied=False)


def falcon_h1(fields: Fields) -> ParameterCount:
    """Falcon-H1: both mixers in every layer."""
    biased = fields.flag("attention_bias", missing=False)
    heads = replace(
        grouped_heads(fields), qkv_biased=biased, output_biased=fields.flag("projectors_bias", missing=False)
    )
    hidden = heads.hidden
    mixer = replace(granite_mamba2(fields), normed=fields.flag("mamba_rms_norm", missing=False))
    layer = (
        *heads.tensors(),
        *mixer.tensors("mamba"),
        *gated_mlp(
            "feed_forward", hidden, fields.count("intermediate_size"), biased=fields.flag("mlp_bias", missing=False)
        ),
        *norms(("input_layernorm", "pre_ff_layernorm"), hidden),
    )
    return decoder(fields, (layer,) * fields.layers(LAYERS), tied=False)


def qwen_hybrid(fields: Fields) -> ParameterCount:
    """Qwen3-Next and the language part of Qwen3.5 and 3.6: gated delta nets between layers of gated attention."""
    biased = fields.flag("attention_bias", missing=False)
    total, sparse = fields.layers(LAYERS), fields.has("num_experts")
    heads = replace(stated_heads(fields), qk_norm="Head", gated=True, qkv_biased=biased, output_biased=biased)
    delta, hidden = _gated_delta(fields, heads.hidden).tensors("linear_attn"), heads.hidden
    kinds = _qwen_kinds(fields, total)
    mixers = {"full_attention": heads.tensors(), "linear_attention": delta}
    between = norms(PRE_NORMS, hidden)
    mlps = qwen_mlps(fields, hidden, shared=True) if sparse else [_qwen_dense(fields, hidden)] * total
    layers = [(*mixers[kind], *between, *mlp) for kind, mlp in zip(kinds, mlps, strict=True)]
    draft = (*mixers["full_attention"], *between, *mlps[-1])
    return decoder(fields, layers, tied=False, draft=_qwen_draft(fields, hidden, draft))


def _qwen_dense(fields: Fields, hidden: int) -> Tensors:
    return gated_mlp("mlp", hidden, fields.count("intermediate_size"))


def _gated_delta(fields: Fields, hidden: int) -> GatedDelta:
    return GatedDelta(
        hidden=hidden,
        key_heads=fields.count("linear_num_key_heads"),
        value_heads=fields.count("linear_num_value_heads"),
        key_dim=fields.count("linear_key_head_dim"),
        value_dim=fields.count("linear_value_head_dim"),
        conv=fields.count("linear_conv_kernel_dim"),
    )


def _qwen_kinds(fields: Fields, total: int) -> tuple[str, ...]:
    if fields.has("layer_types"):
        return fields.words("layer_types", total, QWEN_KINDS)
    period = fields.count("full_attention_interval", missing=4)
    return tuple("linear_attention" if (index + 1) % period else "full_attention" for index in range(total))


def _qwen_draft(fields: Fields, hidden: int, layer: Tensors) -> Sequence[Tensors]:
    """The layers for multi-token prediction; one where the config does not say, as in its class."""
    name = fields.first(("mtp_num_hidden_layers", "num_nextn_predict_layers"))
    number = draft_layers(fields, name) if fields.has(name) else 1
    names = ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding")
    joined = (Tensor("other", "fc", hidden, 2 * hidden, units=hidden), *norms(names, hidden))
    return (joined, *(layer,) * number) if number else ()


def lfm2(fields: Fields) -> ParameterCount:
    """LFM2: gated short convolutions between layers of attention."""
    heads, total = replace(grouped_heads(fields), qk_norm="Head"), fields.layers(LAYERS)
    hidden = heads.hidden
    biased = fields.flag("conv_bias", missing=False)
    conv = short_convolution("conv", hidden, fields.count("conv_L_cache"), biased=biased)
    same = (
        *gated_mlp("feed_forward", hidden, _lfm2_width(fields)),
        *norms(("operator_norm", "ffn_norm"), hidden),
    )
    kinds = fields.words("layer_types", total, LFM2_KINDS)
    layers = alike(kinds, lambda kind: (*(conv if kind == "conv" else heads.tensors()), *same))
    return decoder(fields, layers, tied=True)


def lfm2_moe(fields: Fields) -> ParameterCount:
    """LFM2 with experts behind the first layers."""
    heads, total = replace(grouped_heads(fields), qk_norm="Head"), fields.layers(LAYERS)
    hidden, number, dense = heads.hidden, fields.count("num_experts"), fields.size("num_dense_layers")
    biased = fields.flag("conv_bias", missing=False)
    conv = short_convolution("conv", hidden, fields.count("conv_L_cache"), biased=biased)
    plain = gated_mlp("feed_forward", hidden, fields.count("intermediate_size"))
    routed = (
        *router("feed_forward.gate", number, hidden),
        *gated_experts("feed_forward", number, hidden, fields.count("moe_intermediate_size")),
    )
    layers = alike(
        [(kind, index < dense) for index, kind in enumerate(fields.words("layer_types", total, LFM2_KINDS))],
        lambda each: (
            *(conv if each[0] == "conv" else heads.tensors()),
            *(plain if each[1] else routed),
            *norms(("operator_norm", "ffn_norm"), hidden),
        ),
    )
    return decoder(fields, layers, tied=True)


def _lfm2_width(fields: Fields) -> int:
    width = fields.count(fields.first(("intermediate_size", "block_ff_dim")))
    if not fields.flag("block_auto_adjust_ff_dim", missing=True):
        return width
    width = 2 * width // 3
    if fields.has("block_ffn_dim_multiplier"):
        width = _multiplied(fields, width)
    step = fields.count("block_multiple_of", missing=256)
    return -(-width // step) * step


def _multiplied(fields: Fields, width: int) -> int:
    factor = fields.values["block_ffn_dim_multiplier"]
    if isinstance(factor, int | float) and 0 < factor <= 16:
        return int(factor * width)
    return fields.refuse("block_ffn_dim_multiplier", f"{quoted(factor)} is not a number from 0 to 16")


def zamba2(fields: Fields) -> ParameterCount:
    """Zamba2: a few transformer blocks used again and again, in front of some of the state layers."""
    for field in ("use_shared_attention_adapter", "add_bias_linear"):
        if fields.flag(field, missing=False):
            fields.refuse(field, "the planner does not know Zamba2 with it: state the size of the weights")
    total, hidden = fields.layers(LAYERS), fields.count("hidden_size")
    mixer = (*_zamba2_mamba(fields, hidden).tensors("mamba"), *norm("input_layernorm", hidden))
    kinds = fields.words("layers_block_type", total, ZAMBA2_KINDS)
    blocks, adapters = fields.count("num_mem_blocks"), _zamba2_adapter(fields, hidden)
    block, layers, seen = _zamba2_block(fields, hidden), list[Tensors](), 0
    for kind in kinds:
        own = (*whole("other", "linear", hidden, hidden), *adapters) if kind == "hybrid" else ()
        layers.append((*mixer, *own, *(block if kind == "hybrid" and seen < blocks else ())))
        seen += kind == "hybrid"
    return decoder(fields, layers, tied=True)


def _zamba2_mamba(fields: Fields, hidden: int) -> Mamba2:
    return Mamba2(
        hidden=hidden,
        heads=fields.count("n_mamba_heads"),
        head_dim=divided(fields, fields.count("mamba_expand") * hidden, "n_mamba_heads"),
        state=fields.count("mamba_d_state"),
        groups=fields.count("mamba_ngroups"),
        conv=fields.count("mamba_d_conv"),
        conv_biased=fields.flag("use_conv_bias", missing=True),
        biased=False,
    )


def _zamba2_block(fields: Fields, hidden: int) -> Tensors:
    """Attention over the block's input beside the embedding: twice the hidden size."""
    heads, size = fields.count("num_attention_heads"), divided(fields, 2 * hidden, "num_attention_heads")
    return (
        *Heads(2 * hidden, heads, fields.count("num_key_value_heads"), size, size, outputs=hidden).tensors(),
        *gated_mlp("feed_forward", hidden, fields.count("intermediate_size")),
        *norms(("input_layernorm",), 2 * hidden),
        *norms(("pre_ff_layernorm",), hidden),
    )


def _zamba2_adapter(fields: Fields, hidden: int) -> Tensors:
    rank, width = fields.count("adapter_rank"), 2 * fields.count("intermediate_size")
    return (
        *whole("mlp", "feed_forward.adapter.0", rank, hidden),
        *split_rows("mlp", "feed_forward.adapter.1", width, rank),
    )
