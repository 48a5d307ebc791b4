"""Nemotron-H and Nemotron 3: every layer is one module, of Mamba-2, attention, feed-forward or experts.

Pure. What a config leaves unsaid is as in its model class in transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kvquota_api.memory.errors import UnknownArchitectureError
from kvquota_api.memory.models.fields import MAX_LAYERS, Fields
from kvquota_api.memory.parameters.families.decoder import alike, decoder, grouped_heads, norms
from kvquota_api.memory.parameters.modules import experts, norm, plain_mlp, router, split_rows, whole
from kvquota_api.memory.parameters.states import Mamba2
from kvquota_api.memory.parameters.tensors import ParameterCount, Tensors
from kvquota_api.quoting import quoted

NEMOTRON_LETTERS: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
NEMOTRON_KINDS: Final = {"mamba": "mamba", "attention": "attention", "mlp": "mlp", "moe": "moe"}


def nemotron_h(fields: Fields) -> ParameterCount:
    """Nemotron-H and Nemotron 3: every layer is one module, under `mixer`."""
    kinds = nemotron_kinds(fields, "hybrid_override_pattern", "layers_block_type")
    layers = alike(kinds, lambda kind: _nemotron_layer(fields, kind))
    return decoder(fields, layers, tied=False, draft=_nemotron_draft(fields))


def nemotron_kinds(fields: Fields, pattern: str, listed: str) -> tuple[str, ...]:
    """Kinds of layers, from a word of one letter each or from a list of names."""
    if fields.has(listed):
        return fields.words(listed, len(fields.sequence(listed)), NEMOTRON_KINDS)
    letters = fields.text(pattern) or fields.refuse(pattern, "missing")
    if len(letters) > MAX_LAYERS:
        fields.refuse(pattern, f"has {len(letters)} letters, more than {MAX_LAYERS} layers")
    other = sorted(set(letters) - set(NEMOTRON_LETTERS))
    if other:
        raise UnknownArchitectureError(f"{fields.path}{pattern}: {quoted(other[0])} is not a known kind of layer")
    return tuple(NEMOTRON_LETTERS[letter] for letter in letters)


def _nemotron_layer(fields: Fields, kind: str) -> Tensors:
    hidden = fields.count("hidden_size")
    return (*norm("norm", hidden), *_nemotron_module(fields, kind, hidden))


def _nemotron_module(fields: Fields, kind: str, hidden: int) -> Tensors:
    if kind == "mamba":
        return _nemotron_mamba(fields, hidden).tensors("mixer")
    if kind == "attention":
        biased = fields.flag("attention_bias", missing=False)
        return replace(grouped_heads(fields), qkv_biased=biased, output_biased=biased).tensors("mixer")
    biased = fields.flag("mlp_bias", missing=False)
    if kind == "mlp":
        return plain_mlp("mixer", hidden, fields.count("intermediate_size"), biased=biased)
    return _nemotron_experts(fields, hidden, biased=biased)


def _nemotron_mamba(fields: Fields, hidden: int) -> Mamba2:
    return Mamba2(
        hidden=hidden,
        heads=fields.count("mamba_num_heads"),
        head_dim=fields.count("mamba_head_dim"),
        state=fields.count("ssm_state_size"),
        groups=fields.count("n_groups"),
        conv=fields.count("conv_kernel"),
        conv_biased=fields.flag("use_conv_bias", missing=True),
        biased=fields.flag("use_bias", missing=False),
    )


def _nemotron_experts(fields: Fields, hidden: int, *, biased: bool) -> Tensors:
    """Experts work on a latent of `moe_latent_size` where the config has one."""
    number, width = fields.count("n_routed_experts"), fields.count("moe_intermediate_size")
    latent = fields.count_or_none("moe_latent_size")
    shared = fields.count("moe_shared_expert_intermediate_size") * fields.count("n_shared_experts", missing=1)
    way = (
        *whole("mlp", "mixer.fc1_latent_proj", latent, hidden),
        *whole("mlp", "mixer.fc2_latent_proj", hidden, latent),
    ) if latent else ()  # fmt: skip
    return (
        *router("mixer.gate", number, hidden),
        *experts("mixer.experts", number, plain_mlp("", latent or hidden, width, biased=biased)),
        *plain_mlp("mixer.shared_experts", hidden, shared, part="shared", biased=biased),
        *way,
    )


def _nemotron_draft(fields: Fields) -> Sequence[Tensors]:
    """Layers for multi-token prediction: the first joins two inputs, the last has a norm of its own."""
    if not fields.says("num_nextn_predict_layers"):
        return ()
    hidden = fields.count("hidden_size")
    kinds = nemotron_kinds(fields, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    joined = (
        *split_rows("other", "eh_proj", hidden, 2 * hidden),
        *norms(("enorm", "hnorm", "final_layernorm"), hidden),
    )
    return [joined, *(_nemotron_layer(fields, kind) for kind in kinds)]
