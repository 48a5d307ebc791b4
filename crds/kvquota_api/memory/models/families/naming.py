"""Models of uniform keys and values whose numbers of KV heads hide behind fields of their own.

Decides the heads of a layer, one reader per family. Pure.

Invariants:

1. All layers are alike and keep every token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvquota_api.memory.models.families.attention import PLAIN, Heads
from kvquota_api.memory.models.families.stack import Stack
from kvquota_api.memory.models.fields import MAX_LAYERS, Fields
from kvquota_api.memory.models.layers import Attention

EXPANDED: Final = frozenset({"kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "q_lora_rank"})
GPT: Final = Heads(
    ("n_layer", "num_hidden_layers"), ("n_embd", "hidden_size"), ("n_head", "num_attention_heads"), (), ()
)
CHATGLM: Final = Heads(layers=("num_layers", "num_hidden_layers"), kv_heads=(), head_dim=())
FALCON: Final = Heads(
    layers=("num_hidden_layers", "n_layer"), heads=("num_attention_heads", "n_head"), kv_heads=(), head_dim=()
)
DBRX: Final = Heads(
    ("n_layers", "num_hidden_layers"), ("d_model", "hidden_size"), ("n_heads", "num_attention_heads"), (), ()
)


def falcon(fields: Fields) -> Stack:
    """As many KV heads as `num_kv_heads` says in the new decoder, one with `multi_query`, else one per query head."""
    own = FALCON.attention(fields)
    if fields.flag("new_decoder_architecture", missing=False):
        kv_heads = fields.count(fields.first(("num_kv_heads", "n_head_kv")))
    else:
        kv_heads = 1 if fields.flag("multi_query", missing=True) else own.kv_heads
    layers = fields.layers(FALCON.layers)
    return Stack(((replace(own, kv_heads=kv_heads),),) * layers, FALCON.query(fields))


def chatglm(fields: Fields) -> Stack:
    """`multi_query_group_num` KV heads with `multi_query_attention`, else one per query head."""
    own = CHATGLM.attention(fields)
    if fields.flag("multi_query_attention", missing=False):
        own = replace(own, kv_heads=fields.count("multi_query_group_num"))
    return Stack(((own,),) * fields.layers(CHATGLM.layers), CHATGLM.query(fields))


def gpt_bigcode(fields: Fields) -> Stack:
    """One KV head with `multi_query`, else one per query head."""
    own = GPT.attention(fields)
    kv_heads = 1 if fields.flag("multi_query", missing=True) else own.kv_heads
    return Stack(((replace(own, kv_heads=kv_heads),),) * fields.layers(GPT.layers), GPT.query(fields))


def minicpm_3(fields: Fields) -> Stack:
    """Low-rank projections whose keys and values are kept in full: a value is padded to the size of a key."""
    heads = PLAIN.query(fields)
    dim = fields.count("qk_nope_head_dim") + fields.count("qk_rope_head_dim")
    return Stack(((Attention(heads, dim, dim),),) * fields.layers(PLAIN.layers), heads)


def hrm_text(fields: Fields) -> Stack:
    """Two stacks of `num_layers_per_stack`, of which the lower runs `L_cycles` times and the upper once in each of
    `H_cycles`; every run keeps its own."""
    own = PLAIN.attention(fields)
    runs = fields.count("H_cycles") * (fields.count("L_cycles") + 1)
    layers = fields.few("num_layers_per_stack") * runs
    if not 1 <= layers <= MAX_LAYERS:
        fields.refuse("num_layers_per_stack", f"{runs} runs make {layers} layers, and not 1 to {MAX_LAYERS}")
    return Stack(((replace(own, kv_heads=PLAIN.query(fields)),),) * layers, PLAIN.query(fields))


def dbrx(fields: Fields) -> Stack:
    """KV heads from `attn_config.kv_n_heads`."""
    own = replace(DBRX.attention(fields), kv_heads=fields.part("attn_config").count("kv_n_heads"))
    return Stack(((own,),) * fields.layers(DBRX.layers), DBRX.query(fields))


def step_3(fields: Fields) -> Stack:
    """One KV head for all query heads."""
    dim = fields.count("head_dim")
    layers = fields.layers(PLAIN.layers)
    return Stack(((Attention(1, dim, dim),),) * layers, PLAIN.query(fields))
