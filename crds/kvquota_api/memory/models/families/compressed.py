"""Models that keep records of several tokens: DeepSeek-V4, and GLM-5-next with its pooled indexer.

Decides the records, indexer keys and half-finished pools of each layer. Pure.

Invariants:

1. All of it is the same on every GPU, whatever the number of heads.
2. Only the two compressions that these models have are known; another one is an error that names it.
"""

from __future__ import annotations

from typing import Final

from kvquota_api.memory.errors import UnknownArchitectureError
from kvquota_api.memory.models.families.attention import PLAIN
from kvquota_api.memory.models.families.stack import Stack
from kvquota_api.memory.models.fields import Fields
from kvquota_api.memory.models.layers import CompressorState, Indexer, KimiDeltaState, Latent, Layer, PoolTail, Record

OVERLAPPING: Final = 4  # tokens of a record: the finer compression, whose records overlap by one; it has an indexer
COARSE: Final = 128  # tokens of a record: the other one
PARTS: Final = 2  # a compressor keeps a value and a score
LINEAR: Final = "linear_attention"
POOLED: Final = "indexed_attention"
GLM_WORDS: Final = {LINEAR: LINEAR, POOLED: POOLED, "full_attention": POOLED, "deepseek_sparse_attention": POOLED}


def deepseek_v4(fields: Fields) -> Stack:
    """`compress_ratios`: tokens of a record of each layer, up to 1 where it has the window only; the list may be longer
    than the model, for the prediction head."""
    layers = fields.layers(PLAIN.layers)
    ratios = fields.numbers("compress_ratios")
    if len(ratios) < layers:
        fields.refuse("compress_ratios", f"has {len(ratios)} entries for {layers} layers")
    return Stack(tuple(_record_layer(fields, ratio) for ratio in ratios[:layers]), PLAIN.query(fields))


def window_layer(fields: Fields) -> Layer:
    """What a layer without compression keeps."""
    return (Record(fields.count("head_dim"), fields.count("qk_rope_head_dim"), window=fields.count("sliding_window")),)


def _record_layer(fields: Fields, ratio: int) -> Layer:
    if ratio <= 1:
        return window_layer(fields)
    if ratio not in (OVERLAPPING, COARSE):
        raise UnknownArchitectureError(
            f"compress_ratios: {ratio} is not known to the planner, which knows 0, 1, {OVERLAPPING} and {COARSE}"
        )
    dim = fields.count("head_dim")
    kept = (Record(dim, fields.count("qk_rope_head_dim"), ratio), _compressor(dim, ratio))
    chosen = _chosen(fields, ratio) if ratio == OVERLAPPING else ()
    return (*window_layer(fields), *kept, *chosen)


def _chosen(fields: Fields, ratio: int) -> Layer:
    dim = fields.count("index_head_dim")
    return (Indexer(dim, ratio), _compressor(dim, ratio))


def _compressor(dim: int, ratio: int) -> CompressorState:
    records = 2 if ratio == OVERLAPPING else 1
    return CompressorState(PARTS * records * dim, ratio, records * ratio)


def glm_5_next(fields: Fields) -> Stack:
    """Kimi delta layers and sparse latent layers whose indexer keeps one key per `index_kpool` tokens."""
    layers = fields.layers(PLAIN.layers)
    linear = (_delta(fields),)
    own = pooled_layer(fields)
    words = fields.words("layer_types", layers, GLM_WORDS)
    return Stack(tuple(linear if word == LINEAR else own for word in words), PLAIN.query(fields))


def pooled_layer(fields: Fields) -> Layer:
    """What a sparse layer of GLM-5-next keeps."""
    dim, pool = fields.count("index_head_dim"), fields.count("index_kpool")
    own = Latent(fields.count("kv_lora_rank"), fields.size("qk_rope_head_dim"), sparse=True)
    return (own, Indexer(dim, pool), PoolTail(dim, pool))


def _delta(fields: Fields) -> KimiDeltaState:
    named = fields.has("linear_attn_config")
    part = fields.part("linear_attn_config") if named else fields
    heads, dim, conv = (
        ("num_heads", "head_dim", "short_conv_kernel_size")
        if named
        else ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    )
    bound = "gate_lower_bound" if named else "linear_lower_bound"
    return KimiDeltaState(
        part.count(heads),
        part.count(dim),
        part.count(conv),
        bounded=part.has(bound) or fields.has("linear_lower_bound"),
    )
