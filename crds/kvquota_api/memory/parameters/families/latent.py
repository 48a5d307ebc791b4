"""Decoders with latent attention (MLA), sparse or not, and those that alternate it with Kimi delta attention.

Pure. What a family's config leaves unsaid is as in its model class in transformers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvquota_api.memory.models.fields import Fields, Names
from kvquota_api.memory.parameters.families.decoder import PRE_NORMS, alike, decoder, norms
from kvquota_api.memory.parameters.families.moe import dense_mlp, gated_experts, next_token_layers, routed_mlp
from kvquota_api.memory.parameters.modules import LatentHeads, gated_mlp, norm, router, split_rows, whole
from kvquota_api.memory.parameters.states import KimiDelta
from kvquota_api.memory.parameters.tensors import ParameterCount, Tensor, Tensors

LAYERS: Names = ("num_hidden_layers",)
LEAST_EXPERT_WIDTH: Final = 256  # of a Kimi-Linear expert on one GPU of a group (min_moe_intermediate_per_partition)
MLP_KINDS: Final = {"dense": "dense", "sparse": "sparse"}
INDEXER_KINDS: Final = {"full": "full", "shared": "shared"}


def latent_heads(fields: Fields) -> LatentHeads:
    """MLA with the usual fields."""
    return LatentHeads(
        hidden=fields.count("hidden_size"),
        heads=fields.count("num_attention_heads"),
        query_rank=fields.count_or_none("q_lora_rank"),
        rank=fields.count("kv_lora_rank"),
        nope=fields.size("qk_nope_head_dim"),
        rope=fields.size("qk_rope_head_dim"),
        value_dim=fields.count("v_head_dim"),
        biased=fields.flag("attention_bias", missing=False),
    )


def indexer(fields: Fields, hidden: int) -> Tensors:
    """What chooses the tokens of sparse attention: kept whole."""
    heads, size, name = fields.count("index_n_heads"), fields.count("index_head_dim"), "self_attn.indexer"
    return (
        *whole("attention", f"{name}.wq_b", heads * size, fields.count("q_lora_rank")),
        *whole("attention", f"{name}.wk", size, hidden),
        Tensor("attention", f"{name}.weights_proj", heads, hidden),
        *norm(f"{name}.k_norm", size, biased=True),
    )


def deepseek(fields: Fields) -> ParameterCount:
    """DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash; with an indexer DeepSeek V3.2 and GLM-5."""
    heads, total = latent_heads(fields), fields.layers(LAYERS)
    hidden = heads.hidden
    attention = (*heads.tensors(), *norms(PRE_NORMS, hidden))
    chooses = indexer(fields, hidden) if fields.has("index_topk") else ()
    kinds, chooser = _mlp_kinds(fields, total), _indexer_kinds(fields, total)
    dense = dense_mlp(fields, hidden) if "dense" in kinds else ()
    routed = routed_mlp(fields, hidden)
    layers = [
        (*attention, *(chooses if chooser[index] == "full" else ()), *(dense if kinds[index] == "dense" else routed))
        for index in range(total)
    ]
    draft = next_token_layers(fields, (*attention, *chooses, *routed))
    return decoder(fields, layers, tied=False, draft=draft)


def _mlp_kinds(fields: Fields, total: int) -> tuple[str, ...]:
    if fields.has("mlp_layer_types"):
        return fields.words("mlp_layer_types", total, MLP_KINDS)
    dense = fields.size("first_k_dense_replace")
    step = fields.count("moe_layer_freq", missing=1)
    return tuple("sparse" if index >= dense and index % step == 0 else "dense" for index in range(total))


def _indexer_kinds(fields: Fields, total: int) -> tuple[str, ...]:
    if fields.has("indexer_types"):
        return fields.words("indexer_types", total, INDEXER_KINDS)
    return ("full",) * total


def minicpm3(fields: Fields) -> ParameterCount:
    """MiniCPM3: dense, with latent attention."""
    heads = latent_heads(fields)
    layer = (*heads.tensors(), *norms(PRE_NORMS, heads.hidden), *dense_mlp(fields, heads.hidden))
    return decoder(fields, (layer,) * fields.layers(LAYERS), tied=True)


def kimi_linear(fields: Fields) -> ParameterCount:
    """Kimi-Linear and Kimi K3: Kimi delta attention and MLA; `linear_attn_config` counts layers from 1."""
    linear, hidden, total = fields.part("linear_attn_config"), fields.count("hidden_size"), fields.layers(LAYERS)
    delta, latent = _kimi_delta(linear, hidden), _kimi_latent(fields)
    recurrent, dense = linear.numbers("kda_layers"), fields.size("first_k_dense_replace")
    again = _residual_attention(fields, hidden)
    layers = alike(
        [(index + 1 in recurrent, index < dense) for index in range(total)],
        lambda kind: (
            *(delta if kind[0] else latent),
            *norms(PRE_NORMS, hidden),
            *(dense_mlp(fields, hidden) if kind[1] else _kimi_experts(fields, hidden)),
            *again * 2,
        ),
    )
    return decoder(fields, layers, tied=False, last=(*norm("model.norm", hidden), *again))


def _kimi_delta(linear: Fields, hidden: int) -> Tensors:
    return KimiDelta(
        hidden,
        linear.count("num_heads"),
        linear.count("head_dim"),
        linear.count("short_conv_kernel_size"),
        full_gate=linear.flag("use_full_rank_gate", missing=False),
    ).tensors("self_attn")


def _kimi_latent(fields: Fields) -> Tensors:
    heads = latent_heads(fields)
    size, units = heads.heads * heads.value_dim, heads.heads
    gated = fields.flag("mla_use_output_gate", missing=False)
    gate = split_rows("attention", "self_attn.g_proj", size, heads.hidden, units=units) if gated else ()
    return (*heads.tensors(), *gate)


def _residual_attention(fields: Fields, hidden: int) -> Tensors:
    """Kimi K3 chooses among the residuals of earlier blocks, before each module and at the end."""
    if not fields.says("attn_res_block_size"):
        return ()
    return (*norm("res_norm", hidden), Tensor("other", "res_proj", 1, hidden))


def _kimi_experts(fields: Fields, hidden: int) -> Tensors:
    """Experts work on a latent of `routed_expert_hidden_size` where the config has one."""
    number, width, name = fields.count("num_experts"), fields.count("moe_intermediate_size"), "block_sparse_moe"
    latent = fields.count_or_none("routed_expert_hidden_size")
    shared = fields.size("num_shared_experts")
    routed = gated_experts(name, number, latent or hidden, width)
    return (
        *router(f"{name}.gate", number, hidden),
        *(replace(each, least=LEAST_EXPERT_WIDTH) for each in routed),
        *(gated_mlp(f"{name}.shared_experts", hidden, shared * width, part="shared") if shared else ()),
        *(_latent_way(fields, name, hidden, latent) if latent else ()),
    )


def _latent_way(fields: Fields, name: str, hidden: int, latent: int) -> Tensors:
    return (
        *whole("mlp", f"{name}.routed_expert_down_proj", latent, hidden),
        *whole("mlp", f"{name}.routed_expert_up_proj", hidden, latent),
        *(norm(f"{name}.routed_expert_norm", latent) if fields.flag("latent_moe_use_norm", missing=False) else ()),
    )
