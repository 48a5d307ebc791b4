"""DeepSeek V4: attention over compressed keys, several residual streams.

Pure. A layer's compression ratio decides which compressor it has; a short ratio brings an indexer.
"""

from __future__ import annotations

from typing import Final

from kvquota_api.memory.models.fields import Fields, Names
from kvquota_api.memory.parameters.families.decoder import PRE_NORMS, decoder, norms
from kvquota_api.memory.parameters.families.moe import routed_mlp
from kvquota_api.memory.parameters.modules import norm, split_columns, split_rows, whole
from kvquota_api.memory.parameters.tensors import ParameterCount, Tensor, Tensors

LAYERS: Names = ("num_hidden_layers",)
OVERLAPS: Final = {4: 2, 128: 1}  # by compression ratio: windows that a compressed key is made from


def deepseek_v4(fields: Fields) -> ParameterCount:
    """DeepSeek V4; `compress_ratios` has an entry for each layer, and may go on with those of the drafter."""
    total, hidden, streams = fields.layers(LAYERS), fields.count("hidden_size"), fields.count("hc_mult")
    ratios = fields.numbers("compress_ratios")
    if len(ratios) < total:
        fields.refuse("compress_ratios", f"has {len(ratios)} entries for {total} layers")
    same = (
        *_attention(fields, hidden),
        *norms(PRE_NORMS, hidden),
        *routed_mlp(fields, hidden),
        *_mixing("attn_hc", hidden, streams),
        *_mixing("ffn_hc", hidden, streams),
    )
    compressors = {ratio: _compressor(fields, hidden, ratio) for ratio in set(ratios[:total])}
    layers = [(*same, *compressors[ratio]) for ratio in ratios[:total]]
    last = (*norm("model.norm", hidden), *_streams("hc_head", streams, streams * hidden, scales=1))
    return decoder(fields, layers, tied=False, last=last)


def _attention(fields: Fields, hidden: int) -> Tensors:
    heads, size, rank = fields.count("num_attention_heads"), fields.count("head_dim"), fields.count("q_lora_rank")
    groups, low = fields.count("o_groups"), fields.count("o_lora_rank")
    if (heads * size) % groups:
        fields.refuse("o_groups", f"{groups} does not divide the outputs of {heads} heads")
    return (
        Tensor("attention", "self_attn.sinks", heads, units=heads),
        *whole("attention", "self_attn.q_a_proj", rank, hidden),
        *norm("self_attn.q_a_norm", rank),
        *split_rows("attention", "self_attn.q_b_proj", heads * size, rank, units=heads),
        *whole("attention", "self_attn.kv_proj", size, hidden),
        *norm("self_attn.kv_norm", size),
        *split_rows("attention", "self_attn.o_a_proj", groups * low, heads * size // groups, units=groups),
        *split_columns("attention", "self_attn.o_b_proj", hidden, groups * low, units=groups),
    )


def _compressor(fields: Fields, hidden: int, ratio: int) -> Tensors:
    if ratio == 0:
        return ()
    if ratio not in OVERLAPS:
        fields.refuse("compress_ratios", f"{ratio} is not known, only 0, 4 and 128")
    name, overlap = "self_attn.compressor", OVERLAPS[ratio]
    own = _compressed(name, hidden, ratio, fields.count("head_dim"), overlap)
    return (*own, *(_indexer(fields, f"{name}.indexer", hidden, ratio) if overlap > 1 else ()))


def _compressed(name: str, hidden: int, ratio: int, size: int, overlap: int) -> Tensors:
    return (
        Tensor("attention", f"{name}.position_bias", ratio, overlap * size),
        *whole("attention", f"{name}.kv_proj", overlap * size, hidden),
        *whole("attention", f"{name}.gate_proj", overlap * size, hidden),
        *norm(f"{name}.kv_norm", size),
    )


def _indexer(fields: Fields, name: str, hidden: int, ratio: int) -> Tensors:
    heads, size = fields.count("index_n_heads"), fields.count("index_head_dim")
    return (
        *_compressed(name, hidden, ratio, size, OVERLAPS[ratio]),
        *whole("attention", f"{name}.q_b_proj", heads * size, fields.count("q_lora_rank")),
        Tensor("attention", f"{name}.weights_proj", heads, hidden),
    )


def _mixing(name: str, hidden: int, streams: int) -> Tensors:
    """What mixes the residual streams before and after a module: in, out, and among themselves."""
    return _streams(name, streams * (streams + 2), streams * hidden, scales=3)


def _streams(name: str, outputs: int, inputs: int, *, scales: int) -> Tensors:
    return (
        Tensor("other", f"{name}.fn", outputs, inputs),
        Tensor("other", f"{name}.base", outputs),
        Tensor("other", f"{name}.scale", scales),
    )
