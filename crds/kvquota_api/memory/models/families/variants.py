"""Models of keys and values whose layers differ in more than their window, or whose sizes hide behind other fields.

Decides the heads, sizes and windows of each layer, one reader per family. Pure.

Invariants:

1. A layer that reads another layer's cache keeps nothing itself.
2. A field that a family needs and no config class has a value for is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvquota_api.memory.models.families.attention import (
    BY_TYPE,
    FULL,
    PLAIN,
    SLIDING,
    WORDS,
    Heads,
    Windows,
    every,
    with_window,
)
from kvquota_api.memory.models.families.stack import Stack
from kvquota_api.memory.models.fields import Fields, shown
from kvquota_api.memory.models.layers import Attention, CrossAttention, Layer

GEMMA_4_FIELDS: Final = frozenset(
    {
        "num_kv_shared_layers",
        "global_head_dim",
        "num_global_key_value_heads",
        "per_layer_config",
        "use_bidirectional_attention",
    }
)
MIMO_V2_FIELDS: Final = frozenset(
    {"v_head_dim", "hybrid_layer_pattern", "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim",
     "attention_chunk_size"}
)  # fmt: skip
GEMMA_3N_WINDOWS: Final = Windows(told_apart=True, pattern=every(5))
GEMMA_4_WINDOWS: Final = Windows(told_apart=True, pattern=every(6))
EXAONE_WINDOWS: Final = Windows(told_apart=True, pattern=every(4, "sliding_window_pattern"))
STEP: Final = Heads(kv_heads=("num_attention_groups",))
WHISPER: Final = Heads(
    layers=("decoder_layers",), hidden=("d_model",), heads=("decoder_attention_heads",), kv_heads=(), head_dim=()
)


def gemma_3n(fields: Fields) -> Stack:
    """The last `num_kv_shared_layers` read the cache of a layer before them."""
    layers = fields.layers(PLAIN.layers)
    own = PLAIN.attention(fields)
    kept = kept_layers(fields, layers)
    slid = GEMMA_3N_WINDOWS.of_layers(fields, layers)
    read = tuple((with_window(own, window),) if index < kept else () for index, window in enumerate(slid))
    return Stack(read, PLAIN.query(fields))


def kept_layers(fields: Fields, layers: int) -> int:
    """Layers that have a cache of their own."""
    shared = fields.size("num_kv_shared_layers")
    if shared >= layers:
        fields.refuse("num_kv_shared_layers", f"{shared} leaves none of the {layers} layers with a cache")
    return layers - shared


def gemma_4(fields: Fields) -> Stack:
    """Global layers have a head size and number of KV heads of their own; the last layer is always global."""
    if fields.values.get("use_bidirectional_attention") == "all":
        fields.refuse("use_bidirectional_attention", "a model that attends in both directions keeps no cache")
    layers = fields.layers(PLAIN.layers)
    kept = kept_layers(fields, layers)
    words = GEMMA_4_WINDOWS.words(fields, layers) or ()
    window = fields.count("sliding_window")
    read = [_gemma_4_layer(fields, word, index, window) for index, word in enumerate((*words[:-1], FULL))]
    return Stack(tuple(own if index < kept else () for index, own in enumerate(read)), PLAIN.query(fields))


def _gemma_4_layer(fields: Fields, word: str, index: int, window: int) -> Layer:
    own = PLAIN.attention(fields)
    if fields.has("per_layer_config"):
        own = _overridden(fields.part("per_layer_config"), index, own)
    elif word == FULL:
        dim = fields.count("global_head_dim")
        named = fields.flag("attention_k_eq_v", missing=False) and fields.has("num_global_key_value_heads")
        kv_heads = fields.count("num_global_key_value_heads") if named else own.kv_heads
        own = Attention(kv_heads, dim, dim)
    return (with_window(own, window if word == SLIDING else None),)


def _overridden(per_layer: Fields, index: int, own: Attention) -> Attention:
    name = next((key for key in per_layer.values if (key.lstrip("0") or "0") == str(index)), None)
    if name is None:
        return own
    layer = per_layer.part(name)
    dim = layer.count("head_dim", missing=own.key_dim)
    return Attention(layer.count("num_key_value_heads", missing=own.kv_heads), dim, dim)


def llama_4(fields: Fields) -> Stack:
    """Layers with rotary positions attend within chunks, those without to everything."""
    layers = fields.layers(PLAIN.layers)
    own = PLAIN.attention(fields)
    chunk = fields.size_or_none("attention_chunk_size") or None
    chunked = replace(own, chunk=chunk)
    read = tuple((chunked if rotary else own,) for rotary in _rotary_layers(fields, layers))
    return Stack(read, PLAIN.query(fields))


def _rotary_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    if fields.says("no_rope_layers"):
        fields.per_layer("no_rope_layers", layers)
        return tuple(each != 0 for each in fields.numbers("no_rope_layers"))
    step = fields.count("no_rope_layer_interval")
    return tuple((index + 1) % step != 0 for index in range(layers))


def gpt_oss(fields: Fields) -> Stack:
    """Every other layer slides, whatever `layer_types` says."""
    layers = fields.layers(PLAIN.layers)
    own = PLAIN.attention(fields)
    words = BY_TYPE.words(fields, layers)
    window = fields.size_or_none("sliding_window") or None
    whole = window if words is not None and set(words) == {SLIDING} else None
    read = tuple((with_window(own, whole if index % 2 else window),) for index in range(layers))
    return Stack(read, PLAIN.query(fields))


def exaone_moe(fields: Fields) -> Stack:
    """`sliding_windows`, where it is there, has a window for each layer."""
    layers = fields.layers(PLAIN.layers)
    own = PLAIN.attention(fields)
    slid = EXAONE_WINDOWS.of_layers(fields, layers)
    if fields.has("sliding_windows"):
        fields.per_layer("sliding_windows", layers)
        each = fields.numbers("sliding_windows", missing=0)
        words = EXAONE_WINDOWS.words(fields, layers) or ()
        slid = tuple((each[index] or None) if word == SLIDING else None for index, word in enumerate(words))
    return Stack(tuple((with_window(own, window),) for window in slid), PLAIN.query(fields))


def mimo_v2(fields: Fields) -> Stack:
    """Keys and values of different sizes; sliding layers have heads of their own."""
    layers = fields.layers(PLAIN.layers)
    fields.per_layer("hybrid_layer_pattern", layers)
    full, slid = _mimo_full(fields), mimo_v2_sliding(fields)
    pattern = fields.numbers("hybrid_layer_pattern")
    return Stack(tuple((slid if each == 1 else full,) for each in pattern), PLAIN.query(fields))


def _mimo_full(fields: Fields) -> Attention:
    key = fields.count("head_dim")
    return Attention(fields.count("num_key_value_heads"), key, fields.count("v_head_dim", missing=key))


def mimo_v2_sliding(fields: Fields) -> Attention:
    """What a sliding layer of MiMo-V2 keeps."""
    key = fields.count("swa_head_dim")
    value = fields.count("swa_v_head_dim", missing=key)
    window = fields.count(fields.first(("sliding_window_size", "sliding_window")))
    return Attention(fields.count("swa_num_key_value_heads"), key, value, window)


def step_3p5(fields: Fields) -> Stack:
    """Layers of the kind that `attention_other_setting` names have heads of their own."""
    layers = fields.layers(PLAIN.layers)
    cut = Fields({**fields.values, **_cut_layer_types(fields, layers)}, fields.path)
    words = BY_TYPE.words(cut, layers) or tuple(FULL if index % 2 else SLIDING for index in range(layers))
    own, other = STEP.attention(fields), _step_other(fields)
    window = fields.size_or_none("sliding_window") or None
    read = tuple((with_window(other.get(word, own), window if word == SLIDING else None),) for word in words)
    return Stack(read, STEP.query(fields))


def step_3p5_drafts(fields: Fields, _: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Like layers after the last, of which `layer_types` speaks too."""
    number = fields.few("num_nextn_predict_layers")
    longer = Fields({**fields.values, "num_hidden_layers": fields.layers(PLAIN.layers) + number}, fields.path)
    return step_3p5(longer).layers[-number:] if number else ()


def _cut_layer_types(fields: Fields, layers: int) -> Mapping[str, object]:
    return {"layer_types": fields.sequence("layer_types")[:layers]} if fields.has("layer_types") else {}


def _step_other(fields: Fields) -> Mapping[str, Attention]:
    if not fields.has("attention_other_setting"):
        return {}
    other = fields.part("attention_other_setting")
    dim = other.count("head_dim")
    kind = other.text("attention_type")
    if kind not in WORDS:
        other.refuse("attention_type", f"{shown(kind)} is none of {', '.join(sorted(WORDS))}")
    return {WORDS[kind]: Attention(other.count("num_attention_groups"), dim, dim)}


def iquest_loop(fields: Fields) -> Stack:
    """Each layer runs `loop_num` times and keeps all of it: the first time everything, then a window."""
    own = Heads(head_dim=()).attention(fields)
    looped = fields.few("loop_num")
    again = with_window(own, fields.count("loop_window_size"))
    return Stack(((own, *(again,) * (looped - 1)),) * fields.layers(PLAIN.layers), PLAIN.query(fields))


def interleaved(fields: Fields) -> Stack:
    """`interleaved_sliding_window`: one window for all layers, or windows that repeat over the layers."""
    layers = fields.layers(PLAIN.layers)
    own = _pangu_sinks(fields) if fields.says("param_sink_number") else PLAIN.attention(fields)
    name = "interleaved_sliding_window"
    repeated = isinstance(fields.values.get(name), list)
    windows = fields.numbers(name, missing=0) if repeated else (fields.size(name, missing=0),)
    if not windows:
        fields.refuse(name, "is empty")
    read = tuple((with_window(own, windows[index % len(windows)] or None),) for index in range(layers))
    return Stack(read, PLAIN.query(fields))


def nemotron_nas(fields: Fields) -> Stack:
    """`block_configs` says which layers have attention, and how many query heads share a KV head."""
    layers = fields.layers(PLAIN.layers)
    heads = PLAIN.query(fields)
    dim = PLAIN.attention(fields).key_dim
    blocks = fields.per_layer("block_configs", layers)
    read = tuple(_nas_layer(Fields({"attention": _nas_attention(fields, each)}), heads, dim) for each in blocks)
    return Stack(read, heads)


def _nas_attention(fields: Fields, block: object) -> object:
    if not isinstance(block, Mapping):
        fields.refuse("block_configs", "has an entry that is not an object")
    return block.get("attention")


def _nas_layer(block: Fields, heads: int, dim: int) -> Layer:
    attention = Fields(block.part("attention").values, "block_configs.attention.")
    if attention.flag("no_op", missing=False):
        return ()
    shared = attention.count("n_heads_in_group")
    if heads % shared:
        attention.refuse("n_heads_in_group", f"{shared} does not divide the {heads} query heads")
    return (Attention(heads // shared, dim, dim),)


def _pangu_sinks(fields: Fields) -> Attention:
    key = fields.count("qk_nope_dim") + fields.count("qk_rope_dim")
    return Attention(PLAIN.attention(fields).kv_heads, key, fields.count("v_channels"))


def whisper(fields: Fields) -> Stack:
    """The decoder: each layer attends to itself and to what the encoder made."""
    own = WHISPER.attention(fields)
    cross = CrossAttention(own.kv_heads, own.key_dim, own.value_dim)
    return Stack(((own, cross),) * fields.layers(WHISPER.layers), WHISPER.query(fields), encoder_decoder=True)
