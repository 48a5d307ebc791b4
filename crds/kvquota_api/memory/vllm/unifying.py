"""Making pages of different layers equal, and treating local layers like full ones.

Decides which specs may share a group and how pages are made equal. Pure.

Invariants:

1. After `unify_pages` all pages are equal to the largest; no layer gets less than it needs.
2. `promote` changes what is kept, never the size of a row.

Source: vllm/v1/core/kv_cache_utils.py `unify_kv_cache_spec_page_size`, `_promote_local_kv_cache_specs`, the `merge` of
the specs of 0.32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.vllm.specs import LayerSpec

_FULL_KINDS = ("Full", "Latent")


def mergeable(specs: Sequence[LayerSpec]) -> bool:
    """Whether one spec can stand for all (KVCacheSpec.merge)."""
    first = _without_locality(specs[0])
    if any(_without_locality(spec) != first for spec in specs[1:]):
        return False
    return not _mixed_locality(specs)


def same_type(specs: Sequence[LayerSpec]) -> bool:
    """Whether the layers always need the same number of token slots (UniformTypeKVCacheSpecs.is_uniform_type)."""
    first = specs[0]
    if any(spec.block_tokens != first.block_tokens or spec.sharded != first.sharded for spec in specs):
        return False
    return all(_alike(first, spec) for spec in specs)


def unify_pages(specs: Sequence[LayerSpec]) -> tuple[LayerSpec, ...] | None:
    """Every spec with the largest page: by larger blocks, or padded; None where latents can have neither."""
    largest = max(spec.page_bytes for spec in specs)
    unified = [_enlarged(spec, largest) for spec in specs]
    return None if None in unified else tuple(spec for spec in unified if spec is not None)


def promote(specs: Sequence[LayerSpec]) -> tuple[LayerSpec, ...]:
    """Local layers like full ones, where there are full ones; EngineUnknownError where they cannot be one type."""
    if mergeable(specs) or same_type(specs):
        return tuple(specs)
    if any(spec.kind in _FULL_KINDS for spec in specs):
        blocks = {spec.block_tokens for spec in specs if spec.kind in _FULL_KINDS}
        block = blocks.pop() if len(blocks) == 1 else None
        specs = tuple(_promoted(spec, block) for spec in specs)
    if _clashing(specs) or not (mergeable(specs) or same_type(specs)):
        raise EngineUnknownError(
            "the layers of this model cannot be kept as one kind, vLLM does not start: "
            "leave the hybrid KV cache manager on"
        )
    return tuple(specs)


def _alike(first: LayerSpec, spec: LayerSpec) -> bool:
    if first.kind in _FULL_KINDS:
        return spec.kind in _FULL_KINDS
    if first.kind == "Sliding":
        return spec.kind in ("Sliding", "SlidingLatent") and spec.window == first.window
    if first.kind == "SlidingLatent":
        return spec.kind == "SlidingLatent" and spec.window == first.window
    if first.kind == "Chunked":
        return spec.kind == "Chunked" and spec.chunk == first.chunk
    if first.kind == "State":
        same = spec.page_bytes == first.page_bytes and spec.fixed_blocks == first.fixed_blocks
        return spec.kind == "State" and same
    return spec.kind == first.kind


def _without_locality(spec: LayerSpec) -> LayerSpec:
    return replace(spec, window=None, chunk=None) if spec.kind == "Full" else spec


def _mixed_locality(specs: Sequence[LayerSpec]) -> bool:
    """Full layers that were local ones of different reach or kind, which vLLM does not merge."""
    windows, chunks = _reaches(specs)
    return len(windows) + len(chunks) > 1


def _clashing(specs: Sequence[LayerSpec]) -> bool:
    """Full layers of different reach, with which vLLM gives up (FullAttentionSpec.merge_window_sizes)."""
    windows, chunks = _reaches(specs)
    return all(spec.kind == "Full" for spec in specs) and max(len(windows), len(chunks)) > 1


def _reaches(specs: Sequence[LayerSpec]) -> tuple[set[int | None], set[int | None]]:
    full = [spec for spec in specs if spec.kind == "Full"]
    return {spec.window for spec in full} - {None}, {spec.chunk for spec in full} - {None}


def _enlarged(spec: LayerSpec, page: int) -> LayerSpec | None:
    if spec.page_bytes == page:
        return spec
    if spec.kind == "State":
        return replace(spec, padded=page)
    if page % spec.page_bytes == 0:
        larger = replace(spec, block_tokens=spec.block_tokens * (page // spec.page_bytes))
        return larger if larger.page_bytes == page else None
    return None if spec.kind == "Latent" else replace(spec, padded=page)


def _promoted(spec: LayerSpec, block: int | None) -> LayerSpec:
    if spec.kind == "SlidingLatent":
        raise EngineUnknownError(
            "vLLM cannot keep sliding latents like full ones: leave the hybrid KV cache manager on"
        )
    if spec.kind not in ("Sliding", "Chunked"):
        return spec
    return replace(spec, kind="Full", block_tokens=spec.block_tokens if block is None else block, retained=0)
