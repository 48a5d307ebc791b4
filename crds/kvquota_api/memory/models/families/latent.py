"""Models with multi-head latent attention (MLA): one latent per token instead of keys and values per head.

Decides the latent of each layer, and which layers have an indexer. Pure.

Invariants:

1. The latent is the same on every GPU, whatever the number of heads.
2. A layer that uses another layer's choice of tokens has no indexer of its own.

It does not know what an engine makes of the latent in another element type.
"""

from __future__ import annotations

from typing import Final

from kvquota_api.memory.models.families.attention import PLAIN, Heads, uniform
from kvquota_api.memory.models.families.stack import Stack
from kvquota_api.memory.models.fields import Fields, Names
from kvquota_api.memory.models.layers import Attention, Indexer, Latent, Layer

DENSE_READER: Final = uniform(Heads(head_dim=()))
FULL_INDEXER: Final = "full"
DENSE: Final = "full_attention"
SPARSE: Final = "indexed_attention"
SPARSE_WORDS: Final = {
    DENSE: DENSE, SPARSE: SPARSE, "deepseek_sparse_attention": SPARSE, "sparse_attention": SPARSE, "sparse": SPARSE,
}  # fmt: skip
INDEXERS: Final = {"full": FULL_INDEXER, "shared": "shared"}


def mla(fields: Fields) -> Stack:
    """Every layer keeps one latent."""
    return Stack((latent(fields),) * fields.layers(PLAIN.layers), PLAIN.query(fields))


def mla_or_dense(fields: Fields) -> Stack:
    """DeepSeek: without sizes of a query's two parts (both 0) plain keys and values of hidden size / heads."""
    if fields.values.get("qk_nope_head_dim") == 0 and fields.values.get("qk_rope_head_dim") == 0:
        return DENSE_READER(fields)
    return mla(fields)


def latent(fields: Fields) -> Layer:
    """What a layer of plain MLA keeps."""
    return (Latent(fields.count("kv_lora_rank"), fields.size("qk_rope_head_dim"), whole=_whole_heads(fields)),)


def _whole_heads(fields: Fields) -> Attention | None:
    """The keys and values of every head that a latent stands for."""
    heads, plain = fields.count_or_none("num_attention_heads"), fields.size_or_none("qk_nope_head_dim")
    value_dim = fields.count_or_none("v_head_dim")
    if heads is None or plain is None or value_dim is None:
        return None
    return Attention(heads, plain + fields.size("qk_rope_head_dim"), value_dim)


def mla_twice(fields: Fields) -> Stack:
    """LongCat: each layer has two attentions."""
    names: Names = ("num_layers", "num_hidden_layers")
    return Stack((latent(fields) * 2,) * fields.layers(names), PLAIN.query(fields))


def sparse_mla(fields: Fields) -> Stack:
    """DeepSeek sparse attention: a latent and, where the layer chooses its tokens itself, an indexer key."""
    layers = fields.layers(PLAIN.layers)
    own = sparse_layer(fields)
    follower = own[:1]
    return Stack(tuple(own if leads else follower for leads in _leading(fields, layers)), PLAIN.query(fields))


def hy_v4(fields: Fields) -> Stack:
    """Sparse attention in the layers that `layer_types` names, an indexer in those that `indexer_types` calls full."""
    layers = fields.layers(PLAIN.layers)
    own, plain = sparse_layer(fields), latent(fields)
    kinds = fields.words("layer_types", layers, SPARSE_WORDS) if fields.has("layer_types") else (DENSE,) * layers
    leads = _told_leading(fields, layers)
    read = (own if leads[index] else own[:1] for index in range(layers))
    return Stack(
        tuple(plain if kind == DENSE else layer for kind, layer in zip(kinds, read, strict=True)), PLAIN.query(fields)
    )


def sparse_layer(fields: Fields) -> Layer:
    """What a layer with an indexer of its own keeps."""
    own = Latent(fields.count("kv_lora_rank"), fields.size("qk_rope_head_dim"), sparse=True)
    return (own, Indexer(fields.count("index_head_dim")))


def _told_leading(fields: Fields, layers: int) -> tuple[bool, ...]:
    if fields.has("indexer_types"):
        return tuple(word == FULL_INDEXER for word in fields.words("indexer_types", layers, INDEXERS))
    return _leading(fields, layers)


def _leading(fields: Fields, layers: int) -> tuple[bool, ...]:
    if fields.has("index_topk_pattern"):
        pattern = fields.text("index_topk_pattern") or ""
        return tuple(pattern[index : index + 1] != "S" for index in range(layers))
    step, offset = fields.count("index_topk_freq", missing=1), fields.size("index_skip_topk_offset", missing=2)
    return tuple(max(index - offset + 1, 0) % step == 0 for index in range(layers))
