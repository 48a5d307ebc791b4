"""Nemotron of the DeciLM kind: every layer has its own number of KV heads and width, or leaves a module out.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvquota_api.memory.models.fields import Fields
from kvquota_api.memory.parameters.families.decoder import decoder, head_dim, norms
from kvquota_api.memory.parameters.modules import Heads, gated_mlp
from kvquota_api.memory.parameters.tensors import ParameterCount, Tensors
from kvquota_api.quoting import quoted

WIDTH_STEP: Final = 256  # widths are rounded up to a multiple of this (the model's own code)
MAX_FACTOR: Final = 1024  # of ffn_mult: no model is near it


def nemotron_nas(fields: Fields) -> ParameterCount:
    """The weights by `block_configs`."""
    total = fields.layers(("num_hidden_layers",))
    layers = [_layer(fields, block, index) for index, block in enumerate(fields.per_layer("block_configs", total))]
    return decoder(fields, layers, tied=False)


def _layer(fields: Fields, block: object, index: int) -> Tensors:
    if not isinstance(block, Mapping):
        fields.refuse("block_configs", f"{quoted(block)} is not an object")
    each = Fields(block, f"{fields.path}block_configs[{index}].")
    return (*_attention(fields, each.part("attention")), *_feed_forward(fields, each.part("ffn")))


def _attention(fields: Fields, block: Fields) -> Tensors:
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    if block.flag("no_op", missing=False):
        return ()
    _refuse_linear(block)
    size, biased = head_dim(fields, hidden, heads), fields.flag("attention_bias", missing=False)
    own = Heads(
        hidden, heads, heads // block.count("n_heads_in_group"), size, size, qkv_biased=biased, output_biased=biased
    )
    return (*own.tensors(), *norms(("input_layernorm",), hidden))


def _feed_forward(fields: Fields, block: Fields) -> Tensors:
    if block.flag("no_op", missing=False):
        return ()
    _refuse_linear(block)
    hidden, biased = fields.count("hidden_size"), fields.flag("mlp_bias", missing=False)
    return (
        *gated_mlp("mlp", hidden, _width(block, hidden), biased=biased),
        *norms(("post_attention_layernorm",), hidden),
    )


def _width(block: Fields, hidden: int) -> int:
    if block.has("intermediate_size"):
        return block.count("intermediate_size")
    factor = block.values.get("ffn_mult")
    if not isinstance(factor, int | float) or not 0 < factor < MAX_FACTOR:
        block.refuse("ffn_mult", f"{quoted(factor)} is not a number from 0 to {MAX_FACTOR}")
    return -(-int(2 * factor * hidden / 3) // WIDTH_STEP) * WIDTH_STEP


def _refuse_linear(block: Fields) -> None:
    if block.flag("replace_with_linear", missing=False):
        block.refuse("replace_with_linear", "the planner does not know layers that are one matrix")
