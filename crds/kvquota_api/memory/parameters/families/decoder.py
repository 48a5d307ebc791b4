"""What decoders have in common: the embedding, the layers, the last norm, the head.

Pure. `tied` is what the family's config class says where the config does not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

from kvquota_api.memory.models.fields import Fields
from kvquota_api.memory.parameters.modules import Heads, norm
from kvquota_api.memory.parameters.tensors import ParameterCount, Part, Tensor, Tensors

_K = TypeVar("_K", bound=Hashable)

HIDDEN: Final = ("hidden_size", "n_embd", "d_model")
PRE_NORMS: Final = ("input_layernorm", "post_attention_layernorm")
POST_NORMS: Final = ("post_attention_layernorm", "post_feedforward_layernorm")
FOUR_NORMS: Final = (*PRE_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def decoder(
    fields: Fields,
    layers: Sequence[Tensors],
    *,
    tied: bool,
    first: Tensors = (),
    last: Tensors | None = None,
    draft: Sequence[Tensors] = (),
) -> ParameterCount:
    """A decoder of `layers`; `last` is its final norm (default: one scale), `first` what comes beside the embedding."""
    hidden = fields.count(fields.first(HIDDEN))
    tied = fields.flag("tie_word_embeddings", tied)
    final = norm("model.norm", hidden) if last is None else last
    head = () if tied else vocabulary("head", "lm_head", fields.count("vocab_size"), hidden)
    return ParameterCount(
        first=(*vocabulary("embedding", "model.embed_tokens", fields.count("vocab_size"), hidden), *first),
        layers=tuple(layers),
        last=(*final, *head),
        tied=tied,
        draft=tuple(draft),
    )


def alike(kinds: Sequence[_K], made: Callable[[_K], Tensors]) -> list[Tensors]:
    """One layer for each of `kinds`: those of one kind are made once, and have the very same tensors."""
    known = {kind: made(kind) for kind in dict.fromkeys(kinds)}
    return [known[kind] for kind in kinds]


def vocabulary(part: Part, module: str, entries: int, hidden: int) -> Tensors:
    """A table of `entries`, shared out by entries."""
    return (Tensor(part, module, entries, hidden, units=entries),)


def norms(names: Sequence[str], hidden: int, *, biased: bool = False) -> Tensors:
    """One norm over `hidden` for each name."""
    return tuple(tensor for name in names for tensor in norm(name, hidden, biased=biased))


def draft_layers(fields: Fields, name: str) -> int:
    """Layers for multi-token prediction; none where the field is 0 or not there."""
    return fields.layers((name,)) if fields.says(name) else 0


def divided(fields: Fields, size: int, name: str) -> int:
    """`size` over the number in the field, which has to divide it."""
    number = fields.count(name)
    if size % number:
        fields.refuse(name, f"{number} does not divide {size}")
    return size // number


def head_dim(fields: Fields, hidden: int, heads: int) -> int:
    """Elements of a head: `head_dim`, or what hidden size and heads come to."""
    if fields.has("head_dim"):
        return fields.count("head_dim")
    if hidden % heads:
        fields.refuse("num_attention_heads", f"{heads} does not divide hidden_size {hidden}, and head_dim is not there")
    return hidden // heads


def grouped_heads(fields: Fields) -> Heads:
    """Attention with the usual fields; `num_key_value_heads` is required."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    size = head_dim(fields, hidden, heads)
    return Heads(hidden, heads, fields.count("num_key_value_heads"), size, size)


def stated_heads(fields: Fields) -> Heads:
    """The same for families whose head size has nothing to do with the hidden size: `head_dim` is required."""
    size = fields.count("head_dim")
    kv_heads = fields.count("num_key_value_heads")
    return Heads(fields.count("hidden_size"), fields.count("num_attention_heads"), kv_heads, size, size)
