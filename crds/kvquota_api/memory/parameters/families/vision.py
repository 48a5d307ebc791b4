"""The vision towers of models that see, with what joins them to the language part.

Pure. `vision` is the model's `vision_config`, `hidden` the width of the language part. What a config leaves unsaid
is as in its model class in transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from kvquota_api.memory.models.fields import Fields
from kvquota_api.memory.parameters.families.decoder import divided
from kvquota_api.memory.parameters.modules import (
    Heads,
    gated_mlp,
    norm,
    plain_mlp,
    split_columns,
    split_rows,
    whole,
)
from kvquota_api.memory.parameters.tensors import Tensor, Tensors


def seen(tensors: Iterable[Tensor]) -> Tensors:
    """The same, as parts of the vision tower; checkpoints keep it in 16 bits."""
    return _changed(
        tuple(tensors), lambda each: replace(each, part="vision", module=f"visual.{each.module}", linear=False)
    )


def kept_whole(tensors: Tensors) -> Tensors:
    """The same where the engine keeps the tower whole on every GPU."""
    return _changed(tensors, lambda each: replace(each, units=1))


def _changed(tensors: Tensors, change: Callable[[Tensor], Tensor]) -> Tensors:
    """Every tensor changed; the very same tensors, as equal layers have them, stay the very same."""
    made = {key: change(each) for key, each in {id(each): each for each in tensors}.items()}
    return tuple(made[id(each)] for each in tensors)


def _square(hidden: int, heads: int, *, biased: bool) -> Heads:
    size = -(-hidden // heads)
    return Heads(hidden, heads, heads, size, size, qkv_biased=biased, output_biased=biased)


def _patches(vision: Fields, hidden: int, temporal: int = 1) -> int:
    """Elements of the projection of a patch."""
    side = vision.count("patch_size")
    channels = vision.count(vision.first(("in_channels", "in_chans", "num_channels")), missing=3)
    return hidden * channels * temporal * side * side


def _layer(hidden: int, heads: int, width: int) -> Tensors:
    return (
        *_square(hidden, heads, biased=True).tensors("attn"),
        *plain_mlp("mlp", hidden, width, biased=True),
        *norm("norm1", hidden, biased=True),
        *norm("norm2", hidden, biased=True),
    )


def _merger(name: str, normed: int, merged: int, outputs: int) -> Tensors:
    return (
        *norm(f"{name}.norm", normed, biased=True),
        *split_rows("vision", f"{name}.linear_fc1", merged, merged, biased=True),
        *split_columns("vision", f"{name}.linear_fc2", outputs, merged, biased=True),
    )


def qwen3_vl(vision: Fields, hidden: int) -> Tensors:
    """Qwen3-VL, Qwen3.5 and 3.6: one merger, and one for each layer of `deepstack_visual_indexes`."""
    own, outputs = vision.count("hidden_size"), vision.count("out_hidden_size", missing=hidden)
    merged = own * vision.count("spatial_merge_size") ** 2
    deep = len(vision.sequence("deepstack_visual_indexes")) if vision.has("deepstack_visual_indexes") else 0
    layer = _layer(own, vision.count("num_heads"), vision.count("intermediate_size"))
    return seen(
        (
            Tensor("vision", "patch_embed", _patches(vision, own, vision.count("temporal_patch_size"))),
            Tensor("vision", "patch_embed", own),
            Tensor("vision", "pos_embed", vision.count("num_position_embeddings"), own),
            *layer * vision.layers(("depth",)),
            *_merger("merger", own, merged, outputs),
            *_merger("deepstack_merger_list", merged, merged, outputs) * deep,
        )
    )


def qwen2_5_vl(vision: Fields, hidden: int) -> Tensors:
    """Qwen2.5-VL."""
    own, outputs = vision.count("hidden_size"), vision.count("out_hidden_size", missing=hidden)
    merged = own * vision.count("spatial_merge_size", missing=2) ** 2
    layer = (
        *_square(own, vision.count("num_heads"), biased=True).tensors("attn"),
        *gated_mlp("mlp", own, vision.count("intermediate_size"), biased=True),
        *norm("norm1", own),
        *norm("norm2", own),
    )
    return seen(
        (
            Tensor("vision", "patch_embed", _patches(vision, own, vision.count("temporal_patch_size", missing=2))),
            *layer * vision.layers(("depth",)),
            *norm("merger.ln_q", own),
            *_two_layers(merged, merged, outputs),
        )
    )


def _two_layers(inputs: int, between: int, outputs: int) -> Tensors:
    return (
        *split_rows("vision", "merger.mlp.0", between, inputs, biased=True),
        *split_columns("vision", "merger.mlp.2", outputs, between, biased=True),
    )


def qwen2_vl(vision: Fields, hidden: int) -> Tensors:
    """Qwen2-VL: `embed_dim` inside, `hidden_size` outside."""
    own, outputs = vision.count("embed_dim"), vision.count("hidden_size", missing=hidden)
    merged = own * vision.count("spatial_merge_size", missing=2) ** 2
    layer = _layer(own, vision.count("num_heads"), own * vision.count("mlp_ratio", missing=4))
    return seen(
        (
            Tensor("vision", "patch_embed", _patches(vision, own, vision.count("temporal_patch_size", missing=2))),
            *layer * vision.layers(("depth",)),
            *norm("merger.ln_q", own, biased=True),
            *_two_layers(merged, merged, outputs),
        )
    )


def siglip(vision: Fields, hidden: int) -> Tensors:
    """Gemma 3: SigLIP, joined by one projection."""
    own, heads = vision.count("hidden_size"), vision.count("num_attention_heads")
    width = vision.count("intermediate_size")
    side = vision.count("image_size") // vision.count("patch_size")
    pooled = (
        Tensor("vision", "head.probe", own),
        *_square(own, heads, biased=True).tensors("head.attention"),
        *plain_mlp("head.mlp", own, width, biased=True),
        *norm("head.layernorm", own, biased=True),
    )
    return seen(
        (
            Tensor("vision", "patch_embedding", _patches(vision, own) + own),
            Tensor("vision", "position_embedding", side * side, own),
            *_layer(own, heads, width) * vision.layers(("num_hidden_layers",)),
            *norm("post_layernorm", own, biased=True),
            *(pooled if vision.flag("vision_use_head", missing=True) else ()),
            Tensor("vision", "multi_modal_projector", own, hidden),
            *norm("mm_soft_emb_norm", own),
        )
    )


def pixtral(vision: Fields, hidden: int) -> Tensors:
    """Mistral Small 3: Pixtral, with patches merged two by two."""
    own, heads = vision.count("hidden_size"), vision.count("num_attention_heads")
    layer = (
        *_square(own, heads, biased=False).tensors("attention"),
        *gated_mlp("feed_forward", own, vision.count("intermediate_size")),
        *norm("attention_norm", own),
        *norm("ffn_norm", own),
    )
    return seen(
        (
            Tensor("vision", "patch_conv", _patches(vision, own)),
            *norm("ln_pre", own),
            *layer * vision.layers(("num_hidden_layers",)),
            *norm("projector.norm", own),
            *whole("vision", "projector.merging_layer", own, 4 * own),
            *whole("vision", "projector.linear_1", hidden, own),
            *whole("vision", "projector.linear_2", hidden, hidden),
        )
    )


def gemma4(vision: Fields, hidden: int) -> Tensors:
    """Gemma 4: two tables of positions, joined by one projection."""
    own, heads, size = vision.count("hidden_size"), vision.count("num_attention_heads"), vision.count("head_dim")
    layer = (
        *Heads(own, heads, vision.count("num_key_value_heads"), size, size, qk_norm="Head").tensors("self_attn"),
        *gated_mlp("mlp", own, vision.count("intermediate_size")),
        *norm("norms", 4 * own),
    )
    return kept_whole(
        seen(
            (
                Tensor("vision", "position_embedding_table", 2 * vision.count("position_embedding_size"), own),
                Tensor("vision", "input_proj", _patches(vision, own)),
                *layer * vision.layers(("num_hidden_layers",)),
                Tensor("vision", "embedding_projection", hidden, own),
            )
        )
    )


def llama4(vision: Fields, hidden: int) -> Tensors:
    """Llama 4: a tower, an adapter behind pixel shuffling, a projection."""
    own, width = vision.count("hidden_size"), vision.count("intermediate_size")
    side = vision.count("image_size") // vision.count("patch_size")
    inside, outside = vision.count("projector_input_dim"), vision.count("projector_output_dim")
    return seen(
        (
            Tensor("vision", "patch_embedding", _patches(vision, own), units=own),
            Tensor("vision", "class_embedding", own),
            Tensor("vision", "positional_embedding", side * side + 1, own),
            *norm("layernorm_pre", own, biased=True),
            *norm("layernorm_post", own, biased=True),
            *_layer(own, vision.count("num_attention_heads"), width) * vision.layers(("num_hidden_layers",)),
            *split_rows("vision", "vision_adapter.fc1", inside, width),
            *split_columns("vision", "vision_adapter.fc2", outside, inside),
            *split_rows("vision", "multi_modal_projector", hidden, vision.count("vision_output_dim")),
        )
    )


def kimi_k25(vision: Fields, hidden: int) -> Tensors:
    """Kimi K2.5: MoonViT, patches merged two by two."""
    own = vision.count(vision.first(("hidden_size", "vt_hidden_size")))
    heads = vision.count(vision.first(("num_attention_heads", "vt_num_attention_heads")))
    width = vision.count(vision.first(("intermediate_size", "vt_intermediate_size")))
    layers = vision.layers(("num_hidden_layers", "vt_num_hidden_layers"))
    positions = vision.count("init_pos_emb_height") * vision.count("init_pos_emb_width")
    joined = 4 * own
    return seen(
        (
            Tensor("vision", "patch_embed", _patches(vision, own) + own),
            Tensor("vision", "pos_emb", positions, own),
            *_layer(own, heads, width) * layers,
            *norm("final_layernorm", own, biased=True),
            *norm("mm_projector.pre_norm", own, biased=True),
            *whole("vision", "mm_projector.in_proj", joined, joined, biased=True),
            *whole("vision", "mm_projector.out_proj", hidden, joined, biased=True),
        )
    )


def minimax_m3(vision: Fields, hidden: int) -> Tensors:
    """MiniMax-M3: patches of two frames, merged two by two behind the projection."""
    own, heads = vision.count("hidden_size"), vision.count("num_attention_heads")
    merge = vision.part("img_token_compression_config")
    joined = hidden * merge.count("spatial_merge_size") ** 2
    layer = _layer(own, heads, vision.count("intermediate_size"))
    return seen(
        (
            Tensor("vision", "embeddings.proj", _patches(vision, own, merge.count("temporal_patch_size"))),
            *norm("pre_layrnorm", own, biased=True),
            *layer * vision.layers(("num_hidden_layers",)),
            *_two_layers(own, hidden, hidden),
            *_two_layers(joined, hidden, hidden),
        )
    )


def kimi_k3(vision: Fields, hidden: int) -> Tensors:
    """Kimi K3: a tower without biases, whose attention is wider than its layers; patches merged two by two."""
    own, heads = vision.count("vt_hidden_size"), vision.count("vt_num_attention_heads")
    size = divided(vision, vision.count("qkv_hidden_size"), "vt_num_attention_heads")
    positions = vision.count("init_pos_emb_height") * vision.count("init_pos_emb_width")
    joined = 4 * own
    layer = (
        *Heads(own, heads, heads, size, size).tensors("attn"),
        *plain_mlp("mlp", own, vision.count("vt_intermediate_size")),
        *norm("norm0", own),
        *norm("norm1", own),
    )
    return seen(
        (
            Tensor("vision", "patch_embed", _patches(vision, own)),
            Tensor("vision", "pos_emb", positions, own),
            *layer * vision.layers(("vt_num_hidden_layers",)),
            *norm("final_layernorm", own),
            *whole("vision", "mm_projector.linear_1", joined, joined),
            *whole("vision", "mm_projector.linear_2", hidden, joined),
            *norm("mm_projector.post_norm", hidden),
        )
    )
