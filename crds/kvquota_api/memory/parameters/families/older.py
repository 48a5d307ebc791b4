"""Decoders of before 2023, with names and positions of their own.

Pure. What a config leaves unsaid is as in its model class in transformers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvquota_api.memory.models.fields import Fields, Names
from kvquota_api.memory.parameters.families.decoder import decoder, divided, norms
from kvquota_api.memory.parameters.modules import Heads, plain_mlp
from kvquota_api.memory.parameters.tensors import ParameterCount, Tensor, Tensors

HIDDEN: Final[Names] = ("hidden_size", "n_embd")
HEADS: Final[Names] = ("num_attention_heads", "n_head")
LAYERS: Final[Names] = ("num_hidden_layers", "n_layer")
OPT_OFFSET: Final = 2  # positions in front of the first token's (OPTLearnedPositionalEmbedding)


def _heads(fields: Fields, kv_heads: int = 0, *, biased: bool) -> Heads:
    hidden, heads = fields.count(fields.first(HIDDEN)), fields.count(fields.first(HEADS))
    size = divided(fields, hidden, fields.first(HEADS))
    return Heads(hidden, heads, kv_heads or heads, size, size, qkv_biased=biased, output_biased=biased)


def _positions(number: int, hidden: int) -> Tensor:
    return Tensor("embedding", "positions", number, hidden)


def gpt2(fields: Fields) -> ParameterCount:
    """GPT-2."""
    return _gpt2(fields, _heads(fields, biased=True))


def gpt_bigcode(fields: Fields) -> ParameterCount:
    """StarCoder and SantaCoder: one KV head where `multi_query`."""
    return _gpt2(fields, _heads(fields, 1 if fields.flag("multi_query", missing=True) else 0, biased=True))


def _gpt2(fields: Fields, heads: Heads) -> ParameterCount:
    hidden = heads.hidden
    layer = (
        *heads.tensors("attn"),
        *plain_mlp("mlp", hidden, fields.count("n_inner", missing=4 * hidden), biased=True),
        *norms(("ln_1", "ln_2"), hidden, biased=True),
    )
    return decoder(
        fields,
        (layer,) * fields.layers(LAYERS),
        tied=True,
        first=(_positions(fields.count(fields.first(("n_positions", "max_position_embeddings"))), hidden),),
        last=norms(("ln_f",), hidden, biased=True),
    )


def gptj(fields: Fields) -> ParameterCount:
    """GPT-J: attention and feed-forward in parallel, behind one norm."""
    heads, entries = _heads(fields, biased=False), fields.count("vocab_size")
    hidden = heads.hidden
    layer = (
        *heads.tensors("attn"),
        *plain_mlp("mlp", hidden, fields.count("n_inner", missing=4 * hidden), biased=True),
        *norms(("ln_1",), hidden, biased=True),
    )
    last = (*norms(("ln_f",), hidden, biased=True), Tensor("head", "lm_head", entries, units=entries))
    return decoder(fields, (layer,) * fields.layers(LAYERS), tied=False, last=last)


def bloom(fields: Fields) -> ParameterCount:
    """BLOOM: a norm behind the embedding."""
    heads = _heads(fields, biased=True)
    hidden = heads.hidden
    layer = (
        *heads.tensors("self_attention"),
        *plain_mlp("mlp", hidden, 4 * hidden, biased=True),
        *norms(("input_layernorm", "post_attention_layernorm"), hidden, biased=True),
    )
    return decoder(
        fields,
        (layer,) * fields.layers(LAYERS),
        tied=True,
        first=norms(("word_embeddings_layernorm",), hidden, biased=True),
        last=norms(("ln_f",), hidden, biased=True),
    )


def falcon(fields: Fields) -> ParameterCount:
    """Falcon 7B (one KV head), 40B and 180B (`new_decoder_architecture`)."""
    newer, biased = fields.flag("new_decoder_architecture", missing=False), fields.flag("bias", missing=False)
    heads = _heads(fields, _falcon_kv_heads(fields, newer=newer), biased=biased)
    hidden = heads.hidden
    layer = (
        *heads.tensors("self_attention"),
        *plain_mlp("mlp", hidden, fields.count("ffn_hidden_size", missing=4 * hidden), biased=biased),
        *norms(_falcon_norms(fields, newer=newer), hidden, biased=True),
    )
    return decoder(
        fields,
        (layer,) * fields.layers(LAYERS),
        tied=True,
        last=norms(("ln_f",), hidden, biased=True),
    )


def _falcon_kv_heads(fields: Fields, *, newer: bool) -> int:
    if newer:
        return fields.count(fields.first(("num_kv_heads", "n_head_kv")))
    return 1 if fields.flag("multi_query", missing=True) else 0


def _falcon_norms(fields: Fields, *, newer: bool) -> tuple[str, ...]:
    if newer:
        number = fields.count("num_ln_in_parallel_attn", missing=2)
        return ("ln_attn", "ln_mlp")[:number]
    parallel = fields.flag("parallel_attn", missing=True)
    return ("input_layernorm",) if parallel else ("input_layernorm", "post_attention_layernorm")


def opt(fields: Fields) -> ParameterCount:
    """OPT: learned positions; the smallest projects into and out of its embedding."""
    heads = _heads(fields, biased=fields.flag("enable_bias", missing=True))
    hidden = heads.hidden
    if fields.count("word_embed_proj_dim", missing=hidden) != hidden:
        fields.refuse("word_embed_proj_dim", "the planner knows embeddings of the hidden size only")
    biased = fields.flag("layer_norm_elementwise_affine", missing=True)
    if not biased:
        fields.refuse("layer_norm_elementwise_affine", "the planner knows norms with a scale only")
    positions = fields.count("max_position_embeddings") + OPT_OFFSET
    layer = (
        *heads.tensors(),
        *plain_mlp("mlp", hidden, fields.count("ffn_dim"), biased=heads.qkv_biased),
        *norms(("self_attn_layer_norm", "final_layer_norm"), hidden, biased=True),
    )
    final = fields.flag("do_layer_norm_before", missing=True)
    return decoder(
        fields,
        (layer,) * fields.layers(LAYERS),
        tied=True,
        first=(_positions(positions, hidden),),
        last=norms(("final_layer_norm",), hidden, biased=True) if final else (),
    )


def whisper(fields: Fields) -> ParameterCount:
    """Whisper: encoder and decoder; the encoder counts as the first stage's. Its vocabulary is not shared out."""
    hidden, heads = fields.count("d_model"), fields.count("decoder_attention_heads")
    size = divided(fields, hidden, "decoder_attention_heads")
    attention = Heads(hidden, heads, heads, size, size, qkv_biased=True, output_biased=True)
    layer = (
        *_whisper_attention(attention, "self_attn"),
        *_whisper_attention(attention, "encoder_attn"),
        *plain_mlp("mlp", hidden, fields.count("decoder_ffn_dim"), biased=True),
        *norms(("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"), hidden, biased=True),
    )
    first = (_positions(fields.count("max_target_positions"), hidden), *_whisper_encoder(fields, attention))
    whole = decoder(
        fields,
        (layer,) * fields.layers(("decoder_layers",)),
        tied=True,
        first=first,
        last=norms(("layer_norm",), hidden, biased=True),
    )
    table, *others = whole.first
    return replace(whole, first=(replace(table, units=1), *others))


def _whisper_attention(heads: Heads, name: str) -> Tensors:
    """Keys have no bias."""
    biases = [tensor for tensor in heads.tensors(name) if tensor.module == f"{name}.k_proj" and tensor.columns == 1]
    return tuple(tensor for tensor in heads.tensors(name) if tensor not in biases)


def _whisper_encoder(fields: Fields, heads: Heads) -> Tensors:
    hidden, mels, layers = heads.hidden, fields.count("num_mel_bins"), fields.layers(("encoder_layers",))
    layer = (
        *_whisper_attention(heads, "self_attn"),
        *plain_mlp("mlp", hidden, fields.count("encoder_ffn_dim"), biased=True),
        *norms(("self_attn_layer_norm", "final_layer_norm"), hidden, biased=True),
    )
    return (
        Tensor("other", "conv1", hidden, 3 * mels),
        Tensor("other", "conv1", hidden),
        Tensor("other", "conv2", hidden, 3 * hidden),
        Tensor("other", "conv2", hidden),
        _positions(fields.count("max_source_positions"), hidden),
        *norms(("layer_norm",), hidden, biased=True),
        *layer * layers,
    )
