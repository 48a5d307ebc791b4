"""Decoders with mixtures of experts and grouped attention.

Pure. What a family's config leaves unsaid is as in its model class in transformers, which the engines follow; how many
experts there are and how wide is never left unsaid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvquota_api.memory.models.fields import Fields, Names
from kvquota_api.memory.parameters.families.decoder import (
    PRE_NORMS,
    alike,
    decoder,
    draft_layers,
    grouped_heads,
    norms,
    stated_heads,
)
from kvquota_api.memory.parameters.modules import Heads, experts, gated_mlp, router, split_rows, whole
from kvquota_api.memory.parameters.tensors import ParameterCount, Tensor, Tensors

LAYERS: Names = ("num_hidden_layers",)


def gated_experts(name: str, number: int, hidden: int, intermediate: int) -> Tensors:
    """`number` gated experts under `name`."""
    return experts(f"{name}.experts", number, gated_mlp("", hidden, intermediate))


def mixtral(fields: Fields) -> ParameterCount:
    """Mixtral: experts of the full width in every layer. PhiMoE: the same, with biased norms and its own biases."""
    heads = grouped_heads(fields)
    number, hidden = fields.count("num_local_experts"), heads.hidden
    name = "block_sparse_moe"
    layer = (
        *heads.tensors(),
        *router(f"{name}.gate", number, hidden),
        *gated_experts(name, number, hidden, fields.count("intermediate_size")),
        *norms(PRE_NORMS, hidden),
    )
    return decoder(fields, (layer,) * fields.layers(LAYERS), tied=False)


def phimoe(fields: Fields) -> ParameterCount:
    """Phi-3.5-MoE."""
    biased = fields.flag("attention_bias", missing=False)
    heads = replace(grouped_heads(fields), qkv_biased=biased, output_biased=biased)
    number, hidden, entries = fields.count("num_local_experts"), heads.hidden, fields.count("vocab_size")
    layer = (
        *heads.tensors(),
        *router("block_sparse_moe.gate", number, hidden),
        *gated_experts("block_sparse_moe", number, hidden, fields.count("intermediate_size")),
        *norms(PRE_NORMS, hidden, biased=True),
    )
    bias = fields.flag("lm_head_bias", missing=False)
    last = (
        *norms(("model.norm",), hidden, biased=True),
        *((Tensor("head", "lm_head", entries, units=entries),) if bias else ()),
    )
    return decoder(fields, (layer,) * fields.layers(LAYERS), tied=False, last=last)


def minimax_m2(fields: Fields) -> ParameterCount:
    """MiniMax-M2: a norm over all query heads and one over all key heads."""
    heads = replace(
        stated_heads(fields), qk_norm="All" if fields.flag("use_qk_norm", missing=True) else "None", split_norms=True
    )
    number, hidden = fields.count("num_local_experts"), heads.hidden
    layer = (
        *heads.tensors(),
        *router("block_sparse_moe.gate", number, hidden),
        *gated_experts("block_sparse_moe", number, hidden, fields.count("intermediate_size")),
        *norms(PRE_NORMS, hidden),
    )
    return decoder(fields, (layer,) * fields.layers(LAYERS), tied=False)


def olmoe(fields: Fields) -> ParameterCount:
    """OLMoE."""
    biased = fields.flag("attention_bias", missing=False)
    heads = replace(grouped_heads(fields), qk_norm="All", qkv_biased=biased, output_biased=biased)
    number, hidden = fields.count("num_experts"), heads.hidden
    layer = (
        *heads.tensors(),
        *router("mlp.gate", number, hidden),
        *gated_experts("mlp", number, hidden, fields.count("intermediate_size")),
        *norms(PRE_NORMS, hidden),
    )
    return decoder(fields, (layer,) * fields.layers(LAYERS), tied=False)


def qwen_sparse(fields: Fields, index: int) -> bool:
    """Whether Qwen's layer `index` has experts: `mlp_only_layers` and `decoder_sparse_step` say otherwise."""
    dense = fields.numbers("mlp_only_layers") if fields.has("mlp_only_layers") else ()
    return index not in dense and (index + 1) % fields.count("decoder_sparse_step", missing=1) == 0


def qwen_mlps(fields: Fields, hidden: int, *, shared: bool) -> list[Tensors]:
    """The module of each layer: experts, `shared`: with a shared one, or a plain module."""
    sparse = [qwen_sparse(fields, index) for index in range(fields.layers(LAYERS))]
    return alike(
        sparse,
        lambda routed: (
            *_qwen_mlp(fields, hidden, sparse=routed),
            *(_qwen_shared(fields, hidden) if routed and shared else ()),
        ),
    )


def _qwen_mlp(fields: Fields, hidden: int, *, sparse: bool) -> Tensors:
    if not sparse:
        return gated_mlp("mlp", hidden, fields.count("intermediate_size"))
    number = fields.count("num_experts")
    return (
        *router("mlp.gate", number, hidden),
        *gated_experts("mlp", number, hidden, fields.count("moe_intermediate_size")),
    )


def _qwen_shared(fields: Fields, hidden: int) -> Tensors:
    """The shared expert and its gate, of the layers that have experts."""
    shared = fields.count("shared_expert_intermediate_size")
    return (
        *gated_mlp("mlp.shared_expert", hidden, shared, part="shared"),
        *router("mlp.shared_expert_gate", 1, hidden),
    )


def qwen3_moe(fields: Fields) -> ParameterCount:
    """Qwen3-MoE, and the language part of Qwen3-VL-MoE."""
    biased = fields.flag("attention_bias", missing=False)
    heads = replace(stated_heads(fields), qk_norm="Head", qkv_biased=biased, output_biased=biased)
    attention = (*heads.tensors(), *norms(PRE_NORMS, heads.hidden))
    layers = [(*attention, *mlp) for mlp in qwen_mlps(fields, heads.hidden, shared=False)]
    return decoder(fields, layers, tied=False)


def qwen2_moe(fields: Fields) -> ParameterCount:
    """Qwen1.5-MoE and Qwen2-MoE: with a shared expert."""
    heads = replace(grouped_heads(fields), qkv_biased=fields.flag("qkv_bias", missing=True))
    attention = (*heads.tensors(), *norms(PRE_NORMS, heads.hidden))
    layers = [(*attention, *mlp) for mlp in qwen_mlps(fields, heads.hidden, shared=True)]
    return decoder(fields, layers, tied=False)


def gpt_oss(fields: Fields) -> ParameterCount:
    """gpt-oss: biases everywhere and one sink per head."""
    heads = replace(stated_heads(fields), qkv_biased=True, output_biased=True, sinks=True)
    number, hidden, width = fields.count("num_local_experts"), heads.hidden, fields.count("intermediate_size")
    layer = (
        *heads.tensors(),
        *router("mlp.router", number, hidden, biased=True),
        *experts("mlp.experts", number, gated_mlp("", hidden, width, biased=True)),
        *norms(PRE_NORMS, hidden),
    )
    return decoder(fields, (layer,) * fields.layers(LAYERS), tied=False)


def glm4_moe(fields: Fields) -> ParameterCount:
    """GLM-4.5 to 4.7: the first layers are dense, the others have shared experts."""
    heads = replace(
        stated_heads(fields),
        qkv_biased=fields.flag("attention_bias", missing=False),
        qk_norm="Head" if fields.flag("use_qk_norm", missing=False) else "None",
    )
    attention = (*heads.tensors(), *norms(PRE_NORMS, heads.hidden))
    dense, total = fields.size("first_k_dense_replace"), fields.layers(LAYERS)
    sparse = (*attention, *routed_mlp(fields, heads.hidden))
    layers = alike(
        [index >= dense for index in range(total)],
        lambda routed: sparse if routed else (*attention, *dense_mlp(fields, heads.hidden)),
    )
    return decoder(fields, layers, tied=False, draft=next_token_layers(fields, sparse))


def dense_mlp(fields: Fields, hidden: int) -> Tensors:
    """A plain gated module."""
    return gated_mlp("mlp", hidden, fields.count("intermediate_size"))


def routed_mlp(fields: Fields, hidden: int) -> Tensors:
    """DeepSeek's experts: `n_routed_experts`, and `n_shared_experts` that are one module of their joint width."""
    number, width = fields.count("n_routed_experts"), fields.count("moe_intermediate_size")
    shared = fields.size("n_shared_experts")
    return (
        *router("mlp.gate", number, hidden),
        *gated_experts("mlp", number, hidden, width),
        *(gated_mlp("mlp.shared_experts", hidden, shared * width, part="shared") if shared else ()),
    )


def next_token_layers(fields: Fields, layer: Tensors) -> tuple[Tensors, ...]:
    """DeepSeek's layers for multi-token prediction: a decoder layer each, after both its inputs are joined."""
    hidden = fields.count("hidden_size")
    joined = Tensor("other", "eh_proj", hidden, 2 * hidden)
    own = (joined, *norms(("enorm", "hnorm", "shared_head.norm"), hidden), *layer)
    return (own,) * draft_layers(fields, "num_nextn_predict_layers")


def granite_moe(fields: Fields) -> ParameterCount:
    """Granite-MoE, with a shared expert where the config gives it a size."""
    biased = fields.flag("attention_bias", missing=False)
    heads = replace(grouped_heads(fields), qkv_biased=biased, output_biased=biased)
    mlp = granite_mlp(fields, heads.hidden, fields.size("shared_intermediate_size", missing=0))
    layer = (*heads.tensors(), *mlp, *norms(PRE_NORMS, heads.hidden))
    return decoder(fields, (layer,) * fields.layers(LAYERS), tied=False)


def granite_mlp(fields: Fields, hidden: int, shared: int) -> Tensors:
    """Experts under `block_sparse_moe` and a module of `shared` under `shared_mlp`; either may be missing."""
    number = fields.size("num_local_experts")
    name = "block_sparse_moe"
    routed = (
        *router(f"{name}.router", number, hidden),
        *gated_experts(name, number, hidden, fields.count("intermediate_size")),
    ) if number else ()  # fmt: skip
    return (*routed, *(gated_mlp("shared_mlp", hidden, shared, part="shared") if shared else ()))


def ernie4_5_moe(fields: Fields) -> ParameterCount:
    """ERNIE 4.5: experts in the layers from start to end index, one at each interval."""
    biased = fields.flag("use_bias", missing=False)
    heads = replace(grouped_heads(fields), qkv_biased=biased, output_biased=biased)
    attention, total = (*heads.tensors(), *norms(PRE_NORMS, heads.hidden)), fields.layers(LAYERS)
    start, step = fields.size("moe_layer_start_index", missing=1), fields.count("moe_layer_interval", missing=1)
    end = _ernie_end(fields, total)
    layers = alike(
        [(index + 1) % step == 0 and start <= index <= end for index in range(total)],
        lambda routed: (*attention, *(
            _ernie_experts(fields, heads.hidden)
            if routed
            else gated_mlp("mlp", heads.hidden, fields.count("intermediate_size"), biased=biased)
        )),
    )  # fmt: skip
    return decoder(fields, layers, tied=True)


def _ernie_end(fields: Fields, total: int) -> int:
    """-1, or nothing, is the last layer."""
    if not fields.has("moe_layer_end_index") or fields.values["moe_layer_end_index"] == -1:
        return total - 1
    return fields.size("moe_layer_end_index")


def _ernie_experts(fields: Fields, hidden: int) -> Tensors:
    number, width = fields.count("moe_num_experts"), fields.count("moe_intermediate_size")
    shared = fields.size("moe_num_shared_experts")
    return (
        *router("mlp.gate", number, hidden),
        Tensor("router", "mlp.moe_statics", number),
        *gated_experts("mlp", number, hidden, width),
        *(gated_mlp("mlp.shared_experts", hidden, shared * width, part="shared") if shared else ()),
    )


def cohere2_moe(fields: Fields) -> ParameterCount:
    """Cohere's mixture: one norm per layer."""
    biased = fields.flag("attention_bias", missing=False)
    heads = replace(grouped_heads(fields), qkv_biased=biased, output_biased=biased)
    number, hidden, width = fields.count("num_experts"), heads.hidden, fields.count("intermediate_size")
    shared = fields.size("num_shared_experts", missing=0)
    layer = (
        *heads.tensors(),
        *router("mlp.gate", number, hidden),
        *gated_experts("mlp", number, hidden, width),
        *(gated_mlp("mlp.shared_experts", hidden, shared * width, part="shared") if shared else ()),
        *norms(("input_layernorm",), hidden),
    )
    return decoder(fields, (layer,) * fields.layers(LAYERS), tied=True)


def llama4(fields: Fields) -> ParameterCount:
    """Llama 4: experts in each `interleave_moe_layer_step`-th layer, wider dense modules in the others."""
    biased = fields.flag("attention_bias", missing=False)
    heads = replace(stated_heads(fields), qkv_biased=biased, output_biased=biased)
    attention, hidden = (*heads.tensors(), *norms(PRE_NORMS, heads.hidden)), heads.hidden
    width, number = fields.count("intermediate_size"), fields.count("num_local_experts")
    sparse = (
        *router("feed_forward.router", number, hidden),
        *gated_experts("feed_forward", number, hidden, width),
        *gated_mlp("feed_forward.shared_expert", hidden, width, part="shared"),
    )
    total = fields.layers(LAYERS)
    listed = _llama4_sparse(fields, total)
    dense = () if len(listed) == total else gated_mlp("feed_forward", hidden, fields.count("intermediate_size_mlp"))
    layers = [(*attention, *(sparse if index in listed else dense)) for index in range(total)]
    return decoder(fields, layers, tied=False)


def _llama4_sparse(fields: Fields, total: int) -> Sequence[int]:
    if fields.has("moe_layers"):
        return fields.numbers("moe_layers")
    step = fields.count("interleave_moe_layer_step")
    return range(step - 1, total, step)


def mimo_v2(fields: Fields) -> ParameterCount:
    """MiMo-V2: two kinds of attention with heads of their own; sinks in one kind."""
    total = fields.layers(LAYERS)
    kinds = fields.per_layer("hybrid_layer_pattern", total)
    sparse = fields.per_layer("moe_layer_freq", total)
    hidden = fields.count("hidden_size")
    full = _mimo_heads(fields, hidden, "", sinks=fields.flag("add_full_attention_sink_bias", missing=False))
    sliding = _mimo_heads(fields, hidden, "swa_", sinks=fields.flag("add_swa_attention_sink_bias", missing=False))
    routed = {True: _mimo_experts(fields, hidden), False: dense_mlp(fields, hidden)}
    layers = alike(
        [(bool(kinds[index]), bool(sparse[index])) for index in range(total)],
        lambda kind: (*(sliding if kind[0] else full).tensors(), *norms(PRE_NORMS, hidden), *routed[kind[1]]),
    )
    return decoder(fields, layers, tied=False)


def _mimo_heads(fields: Fields, hidden: int, kind: str, *, sinks: bool) -> Heads:
    heads = fields.count(f"{kind}num_attention_heads")
    kv_heads = fields.count(f"{kind}num_key_value_heads")
    sizes = fields.count(f"{kind}head_dim"), fields.count(f"{kind}v_head_dim")
    return Heads(hidden, heads, kv_heads, *sizes, qkv_biased=fields.flag("attention_bias", missing=False), sinks=sinks)


def _mimo_experts(fields: Fields, hidden: int) -> Tensors:
    number = fields.count("n_routed_experts")
    width = fields.count("moe_intermediate_size")
    return (*router("mlp.gate", number, hidden), *gated_experts("mlp", number, hidden, width))


def minimax_m3(fields: Fields) -> ParameterCount:
    """MiniMax-M3, its language part: an indexer in the sparse layers, dense modules in the first ones."""
    total, heads = fields.layers(LAYERS), replace(stated_heads(fields), qk_norm="Head")
    hidden, chosen = heads.hidden, fields.part("sparse_attention_config")
    attention, chooses = (*heads.tensors(), *norms(PRE_NORMS, hidden)), _minimax_indexer(chosen, hidden)
    routed = fields.per_layer("moe_layer_freq", total)
    attends = chosen.per_layer("sparse_attention_freq", total)
    dense, sparse = gated_mlp("mlp", hidden, fields.count("dense_intermediate_size")), _minimax_mlp(fields, hidden)
    layers = [
        (*attention, *(chooses if attends[index] else ()), *(sparse if routed[index] else dense))
        for index in range(total)
    ]
    return decoder(fields, layers, tied=False)


def _minimax_indexer(fields: Fields, hidden: int) -> Tensors:
    size, heads, name = fields.count("sparse_index_dim"), fields.count("sparse_num_index_heads"), "self_attn.indexer"
    return (
        *split_rows("attention", f"{name}.q_proj", heads * size, hidden, units=heads),
        *whole("attention", f"{name}.k_proj", size, hidden),
        *norms((f"{name}.q_norm", f"{name}.k_norm"), size),
    )


def _minimax_mlp(fields: Fields, hidden: int) -> Tensors:
    number, shared = fields.count("num_local_experts"), fields.size("n_shared_experts", missing=0)
    width = shared * fields.count("shared_intermediate_size") if shared else 0
    return (
        *router("block_sparse_moe.gate", number, hidden),
        *gated_experts("block_sparse_moe", number, hidden, fields.count("intermediate_size")),
        *(gated_mlp("block_sparse_moe.shared_experts", hidden, width, part="shared") if shared else ()),
    )
