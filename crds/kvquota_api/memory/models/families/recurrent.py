"""Models with layers that keep a state of fixed size instead of every token: Mamba, delta nets, short convolutions.

Decides which layers keep a state, which keep tokens, and the sizes of both. Pure.

Invariants:

1. The kind of each layer comes from the config, or from the pattern that the family's config class has; a word that the
   family does not use is an error.
2. An element type of the state is given only where config or family fixes one.
"""

from __future__ import annotations

from typing import Final

from kvquota_api.memory.models.families.attention import PLAIN, Heads, with_window
from kvquota_api.memory.models.families.latent import latent
from kvquota_api.memory.models.families.stack import Stack
from kvquota_api.memory.models.fields import Fields, shown
from kvquota_api.memory.models.layers import (
    Attention,
    Cache,
    Dtype,
    GatedDeltaState,
    KimiDeltaState,
    Layer,
    LightningState,
    Mamba1State,
    Mamba2State,
    ShortConvState,
)

ATTENTION: Final = "attention"
STATE: Final = "state"
BOTH: Final = "both"
NOTHING: Final = "nothing"
LINEAR_WORDS: Final = {
    "full_attention": ATTENTION, "attention": ATTENTION, "linear_attention": STATE, "mamba": STATE,
}  # fmt: skip
CONV_WORDS: Final = {"full_attention": ATTENTION, "conv": STATE}
ZAMBA_WORDS: Final = {"linear_attention": STATE, "mamba": STATE, "hybrid": BOTH}
NEMOTRON_WORDS: Final = {**LINEAR_WORDS, "moe": NOTHING, "mlp": NOTHING}
NEMOTRON_LETTERS: Final = {"M": STATE, "*": ATTENTION, "-": NOTHING, "E": NOTHING}
STATE_DTYPES: Final[dict[str, Dtype]] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
HIDDEN_HEADS: Final = Heads(head_dim=())
ZAMBA_HEADS: Final = Heads(kv_heads=(), head_dim=())


def mixed(words: tuple[str, ...], own: Attention, state: Cache, heads: int, dtype: Dtype | None = None) -> Stack:
    """Layers by the kind that each word names."""
    kept: dict[str, Layer] = {STATE: (state,), NOTHING: (), ATTENTION: (own,), BOTH: (own, state)}
    return Stack(tuple(kept[word] for word in words), heads, state_dtype=dtype)


def state_dtype(fields: Fields, name: str) -> Dtype | None:
    """The element type of recurrent state that a field names, None where it is not there."""
    named = fields.text(name)
    if named is not None and named not in STATE_DTYPES:
        fields.refuse(name, f"{shown(named)} is none of {', '.join(STATE_DTYPES)}")
    return None if named is None else STATE_DTYPES[named]


def mamba_1(fields: Fields) -> Stack:
    """Every layer is a selective state space."""
    inner = _inner(fields, "expand")
    state = Mamba1State(inner, fields.count("state_size"), fields.count("conv_kernel"))
    return Stack(((state,),) * fields.layers(("num_hidden_layers", "n_layer")), heads=inner)


def mamba_2(fields: Fields) -> Stack:
    """Every layer is a Mamba-2 state space."""
    heads, dim = fields.count("num_heads"), fields.count("head_dim")
    _same_inner(fields, "expand", heads * dim)
    state = Mamba2State(heads, dim, fields.count("state_size"), fields.count("n_groups"), fields.count("conv_kernel"))
    return Stack(((state,),) * fields.layers(("num_hidden_layers", "n_layer")), heads)


def jamba(fields: Fields) -> Stack:
    """One layer in `attn_layer_period` is attention."""
    layers = fields.layers(PLAIN.layers)
    step, offset = fields.count("attn_layer_period"), fields.size("attn_layer_offset")
    state = Mamba1State(_inner(fields, "mamba_expand"), fields.count("mamba_d_state"), fields.count("mamba_d_conv"))
    words = tuple(ATTENTION if index % step == offset else STATE for index in range(layers))
    return mixed(words, HIDDEN_HEADS.attention(fields), state, HIDDEN_HEADS.query(fields))


def granite_hybrid(fields: Fields) -> Stack:
    """`layer_types`, of which none is attention where they are not there."""
    layers = fields.layers(PLAIN.layers)
    given = fields.first(("layer_types", "layers_block_type"))
    words = fields.words(given, layers, LINEAR_WORDS) if fields.has(given) else (STATE,) * layers
    return mixed(words, HIDDEN_HEADS.attention(fields), _mamba_2(fields), HIDDEN_HEADS.query(fields))


def falcon_h1(fields: Fields) -> Stack:
    """Attention and Mamba-2 beside each other in every layer."""
    layers = fields.layers(PLAIN.layers)
    return mixed((BOTH,) * layers, PLAIN.attention(fields), _mamba_2(fields), PLAIN.query(fields))


def _mamba_2(fields: Fields) -> Mamba2State:
    heads = fields.count("mamba_n_heads")
    dim = _head_dim(fields, "mamba_d_head", heads)
    _same_inner(fields, "mamba_expand", heads * dim)
    return Mamba2State(
        heads,
        dim,
        fields.count("mamba_d_state"),
        fields.count("mamba_n_groups"),
        fields.count("mamba_d_conv"),
    )


def _head_dim(fields: Fields, name: str, heads: int) -> int:
    if fields.values.get(name) == "auto":
        return max(1, _inner(fields, "mamba_expand") // heads)
    return fields.count(name)


def _same_inner(fields: Fields, expand: str, inner: int) -> None:
    if fields.has("mamba_d_ssm"):
        named, width = "mamba_d_ssm", fields.count("mamba_d_ssm")
    else:
        named, width = expand, _inner(fields, expand)
    if width != inner:
        fields.refuse(named, f"makes {width} inner channels, and the heads {inner}")


def zamba_2(fields: Fields) -> Stack:
    """Hybrid layers have a shared attention, over twice the hidden size, and a state."""
    layers = fields.layers(PLAIN.layers)
    heads = ZAMBA_HEADS.query(fields)
    dim = 2 * fields.count("hidden_size") // heads
    inner, state_heads = _inner(fields, "mamba_expand"), fields.count("n_mamba_heads")
    state = Mamba2State(
        state_heads,
        inner // state_heads,
        fields.count("mamba_d_state"),
        fields.count("mamba_ngroups"),
        fields.count("mamba_d_conv"),
    )
    words = fields.words(fields.first(("layers_block_type", "layer_types")), layers, ZAMBA_WORDS)
    return mixed(words, Attention(heads, dim, dim), state, heads)


def nemotron_h(fields: Fields) -> Stack:
    """One block per layer, by the letters of `hybrid_override_pattern` or the words of `layers_block_type`."""
    dtype = state_dtype(fields, "mamba_ssm_cache_dtype")
    state = Mamba2State(
        fields.count("mamba_num_heads"),
        fields.count("mamba_head_dim"),
        fields.count("ssm_state_size"),
        fields.count(fields.first(("n_groups", "mamba_n_groups"))),
        fields.count(fields.first(("conv_kernel", "mamba_d_conv"))),
    )
    own = with_window(PLAIN.attention(fields), fields.size_or_none("sliding_window") or None)
    return mixed(_nemotron_words(fields), own, state, PLAIN.query(fields), dtype or "fp32")


def _nemotron_words(fields: Fields) -> tuple[str, ...]:
    named = fields.first(("layers_block_type", "layer_types"))
    if fields.has(named):
        return fields.words(named, len(fields.sequence(named)), NEMOTRON_WORDS)
    return letters(fields, "hybrid_override_pattern")


def letters(fields: Fields, name: str) -> tuple[str, ...]:
    """The kinds that the letters of a Nemotron-H pattern name."""
    pattern = fields.text(name) or fields.refuse(name, "is missing")
    spelt = Fields({name: list(pattern)}, fields.path)
    return spelt.words(name, len(pattern), NEMOTRON_LETTERS)


def gated_delta(fields: Fields) -> Stack:
    """Gated delta nets, and full attention where `layer_types` says or every `full_attention_interval`th layer."""
    layers = fields.layers(PLAIN.layers)
    state = GatedDeltaState(
        fields.count("linear_num_key_heads"),
        fields.count("linear_num_value_heads"),
        fields.count("linear_key_head_dim"),
        fields.count("linear_value_head_dim"),
        fields.count("linear_conv_kernel_dim"),
    )
    dtype = state_dtype(fields, "mamba_ssm_dtype")
    return mixed(_delta_words(fields, layers), PLAIN.attention(fields), state, PLAIN.query(fields), dtype)


def olmo_hybrid(fields: Fields) -> Stack:
    """Gated delta nets whose sizes follow from the attention's where the config has none."""
    layers = fields.layers(PLAIN.layers)
    heads = HIDDEN_HEADS.query(fields)
    key_heads = fields.count("linear_num_key_heads", missing=heads)
    key_dim = fields.count("linear_key_head_dim", missing=max(1, 3 * fields.count("hidden_size") // (4 * key_heads)))
    state = GatedDeltaState(
        key_heads,
        fields.count("linear_num_value_heads", missing=heads),
        key_dim,
        fields.count("linear_value_head_dim", missing=2 * key_dim),
        fields.count("linear_conv_kernel_dim"),
    )
    words = fields.words("layer_types", layers, LINEAR_WORDS) if fields.has("layer_types") else _olmo_words(layers)
    return mixed(words, HIDDEN_HEADS.attention(fields), state, heads)


def _olmo_words(layers: int) -> tuple[str, ...]:
    words = tuple(ATTENTION if index % 4 == 3 else STATE for index in range(layers))
    return words if ATTENTION in words else (*words[:-1], ATTENTION)


def _delta_words(fields: Fields, layers: int) -> tuple[str, ...]:
    if fields.has("layer_types"):
        return fields.words("layer_types", layers, LINEAR_WORDS)
    step = fields.count("full_attention_interval")
    return tuple(STATE if (index + 1) % step else ATTENTION for index in range(layers))


def kimi_linear(fields: Fields) -> Stack:
    """Kimi delta attention in the layers that `linear_attn_config.kda_layers` counts from 1, else a latent."""
    layers = fields.layers(PLAIN.layers)
    part = fields.part("linear_attn_config")
    heads, dim, conv = part.count("num_heads"), part.count("head_dim"), part.count("short_conv_kernel_size")
    bounded = part.flag("use_full_rank_gate", missing=False) and part.has("gate_lower_bound")
    state = KimiDeltaState(heads, dim, conv, bounded=bounded)
    linear = frozenset(part.numbers("kda_layers"))
    own = latent(fields)
    return Stack(tuple((state,) if index + 1 in linear else own for index in range(layers)), PLAIN.query(fields))


def short_conv(fields: Fields) -> Stack:
    """LFM2: gated short convolutions, attention in the layers that `layer_types` or `full_attn_idxs` names."""
    layers = fields.layers(PLAIN.layers)
    channels = fields.count(fields.first(("conv_dim", "hidden_size")))
    state = ShortConvState(channels, fields.count("conv_L_cache"))
    return mixed(_conv_words(fields, layers), HIDDEN_HEADS.attention(fields), state, HIDDEN_HEADS.query(fields))


def _conv_words(fields: Fields, layers: int) -> tuple[str, ...]:
    if fields.has("layer_types") or not fields.has("full_attn_idxs"):
        return fields.words("layer_types", layers, CONV_WORDS)
    full = frozenset(fields.numbers("full_attn_idxs"))
    return tuple(ATTENTION if index in full else STATE for index in range(layers))


def bailing_linear(fields: Fields) -> Stack:
    """Lightning attention, and a latent in every `layer_group_size`th layer."""
    layers = fields.layers(PLAIN.layers)
    step = fields.count("layer_group_size")
    heads = PLAIN.query(fields)
    state = LightningState(heads, PLAIN.attention(fields).key_dim)
    own = latent(fields)
    return Stack(tuple((state,) if (index + 1) % step else own for index in range(layers)), heads)


def bailing_delta(fields: Fields) -> Stack:
    """Kimi delta attention, and a latent in every `layer_group_size`th layer and what is left after the last group."""
    layers = fields.layers(PLAIN.layers)
    step = fields.count("layer_group_size")
    heads = PLAIN.query(fields)
    state = KimiDeltaState(heads, fields.count("head_dim"), fields.count("short_conv_kernel_size"))
    own, grouped = latent(fields), layers // step * step
    return Stack(tuple((state,) if (index + 1) % step and index < grouped else own for index in range(layers)), heads)


def _inner(fields: Fields, expand: str) -> int:
    return fields.count(expand) * fields.count("hidden_size")
