"""The layers read from a config against those that vLLM 0.32 built from it: every shape of live.json."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvquota_api.memory.models.layers import (
    Attention,
    Cache,
    CompressorState,
    CrossAttention,
    GatedDeltaState,
    Indexer,
    KimiDeltaState,
    Latent,
    Mamba1State,
    Mamba2State,
    ModelShape,
    PoolTail,
    Record,
)
from kvquota_api.memory.models.reading import read_model

LIVE: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "memory" / "live.json").read_text())
Kinds = Counter[tuple[object, ...]]


def is_plain(row: dict[str, Any]) -> bool:
    """Whether a row shows the layers as the config has them: one GPU, no drafter, sliding layers kept."""
    asked, done = row["args"], row["resolved"]
    speculates = asked.get("speculative_config") or done["num_speculative_tokens"]
    return not speculates and asked["tp"] == asked["pp"] == 1 and not done["disable_hybrid_kv_cache_manager"]


PLAIN = {row["config"]: row["result"]["groups"] for row in LIVE["rows"] if is_plain(row)}


def kinds_built(groups: list[dict[str, Any]]) -> Kinds:
    """Layers of an engine's groups, by kind and sizes."""
    kinds: Kinds = Counter()
    for group in groups:
        for part in group.get("mixed", [group]):
            kinds[kind_built({"sliding_window": group.get("sliding_window"), **part})] += (
                group["count"] * part["layers"]
            )
    return kinds


def kind_built(group: dict[str, Any]) -> tuple[object, ...]:
    match group["cls"]:
        case "FullAttentionSpec" | "SlidingWindowSpec" | "ChunkedLocalAttentionSpec":
            sizes = (group["num_kv_heads"], group["head_size"], group["head_size_v"])
            return ("attention", *sizes, group["sliding_window"], group.get("attention_chunk_size"))
        case "CrossAttentionSpec":
            return ("cross", group["num_kv_heads"], group["head_size"], group["head_size_v"])
        case "MambaSpec" if "shapes" in group:
            return ("state", *(tuple(shape) for shape in group["shapes"]))
        case "MambaSpec":
            return ("state",)
        case "CircularBufferSpec":
            return ("tail", group["head_size"])
        case _:
            return ("latent", group["head_size"])


def kinds_read(model: ModelShape, *, sizes_of_states: bool) -> Kinds:
    """Caches of a model, by kind and sizes as the engine has them on one GPU."""
    kinds: Kinds = Counter()
    for layer in model.layers:
        for cache in layer:
            kind = kind_read(cache)
            kinds[kind[:1] if kind[0] == "state" and not sizes_of_states else kind] += 1
    return kinds


def kind_read(cache: Cache) -> tuple[object, ...]:
    match cache:
        case Attention():
            return ("attention", cache.kv_heads, cache.key_dim, cache.value_dim, cache.window, cache.chunk)
        case CrossAttention():
            return ("cross", cache.kv_heads, cache.key_dim, cache.value_dim)
        case Latent():
            return ("latent", cache.rank + cache.rope)
        case Indexer():
            return ("latent", cache.head_dim + cache.head_dim // 128 * 4)
        case Record():
            return ("latent", cache.dim)
        case CompressorState():
            return ("latent", cache.width)
        case PoolTail():
            return ("tail", cache.head_dim)
        case Mamba1State():
            return ("state", (cache.conv - 1, cache.inner), (cache.inner, cache.state))
        case Mamba2State():
            inner = cache.heads * cache.head_dim + 2 * cache.groups * cache.state
            return ("state", (cache.conv - 1, inner), (cache.heads, cache.head_dim, cache.state))
        case GatedDeltaState():
            inner = 2 * cache.key_heads * cache.key_dim + cache.value_heads * cache.value_dim
            return ("state", (cache.conv - 1, inner), (cache.value_heads, cache.value_dim, cache.key_dim))
        case KimiDeltaState():
            square = (cache.heads, cache.head_dim, cache.head_dim)
            return ("state", (cache.conv - 1, 3 * cache.heads * cache.head_dim), square)
        case _:
            raise AssertionError(f"no live shape has a {type(cache).__name__}")


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_the_layers_are_those_that_the_engine_built(name: str) -> None:
    groups = PLAIN[name]
    sizes_of_states = not any(part["cls"] == "MambaSpec" for group in groups for part in group.get("mixed", []))

    read = kinds_read(read_model(LIVE["configs"][name]), sizes_of_states=sizes_of_states)

    assert read == kinds_built(groups)


def test_every_live_shape_but_one_of_two_stages_shows_its_layers() -> None:
    elsewhere = sorted(set(LIVE["configs"]) - set(PLAIN))

    assert elsewhere == ["llama-gqa++"]
