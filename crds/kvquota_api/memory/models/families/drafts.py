"""What the multi-token prediction heads of a checkpoint keep: an engine that speculates with them adds it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kvquota_api.memory.models.families.attention import FULL, PLAIN, WORDS, Heads
from kvquota_api.memory.models.families.recurrent import ATTENTION, NEMOTRON_WORDS, letters
from kvquota_api.memory.models.families.stack import Drafts
from kvquota_api.memory.models.fields import Fields
from kvquota_api.memory.models.layers import Attention, Layer

NEXT: Final = "num_nextn_predict_layers"
MTP: Final = "mtp_num_hidden_layers"


def full_attention(field: str = NEXT, heads: Heads = PLAIN) -> Drafts:
    """As many layers of full attention as `field` says."""
    return alike(lambda fields: (heads.attention(fields),), field)


def alike(own: Callable[[Fields], Layer], field: str = NEXT) -> Drafts:
    """As many layers like one as `field` says."""

    def drafts(fields: Fields, _: tuple[Layer, ...]) -> tuple[Layer, ...]:
        number = fields.few(field)
        return (own(fields),) * number if number else ()

    return drafts


def always(own: Callable[[Fields], Layer]) -> Drafts:
    """One layer, whatever the config says."""
    return lambda fields, _: (own(fields),)


def exaone(fields: Fields, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Like the first layers of the model, unless `mtp_layer_types` says otherwise."""
    number = fields.few(NEXT)
    if not fields.has("mtp_layer_types"):
        return layers[:number]
    words = fields.words("mtp_layer_types", number, WORDS)
    own = PLAIN.attention(fields)
    return tuple((replace(own, window=_mtp_window(fields, word, index)),) for index, word in enumerate(words))


def _mtp_window(fields: Fields, word: str, index: int) -> int | None:
    if word == FULL:
        return None
    named = fields.first(("mtp_sliding_windows", "sliding_windows"))
    if not fields.has(named):
        return fields.count("sliding_window")
    windows = fields.numbers(named, missing=0)
    if index >= len(windows):
        fields.refuse(named, f"has no entry for layer {index}")
    return windows[index] or None


def nemotron_h(fields: Fields, _: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """One layer per letter of `mtp_hybrid_override_pattern` or word of `mtp_layers_block_type`."""
    if not fields.few(NEXT):
        return ()
    own = PLAIN.attention(fields)
    return tuple(_nemotron_layer(word, own) for word in _nemotron_words(fields))


def _nemotron_words(fields: Fields) -> tuple[str, ...]:
    if fields.has("mtp_hybrid_override_pattern"):
        return letters(fields, "mtp_hybrid_override_pattern")
    name = "mtp_layers_block_type"
    return fields.words(name, len(fields.sequence(name)), NEMOTRON_WORDS)


def _nemotron_layer(word: str, own: Attention) -> Layer:
    return (own,) if word == ATTENTION else ()
