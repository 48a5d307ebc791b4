"""Which layers share a block table.

Decides the groups of a whole model, before it is cut into stages. Pure.

Invariants:

1. Every layer is in exactly one group, in the order of the model.
2. Layers of one group need the same number of blocks.

Source: vllm/v1/core/kv_cache_utils.py `get_kv_cache_groups`, `_get_kv_cache_groups_uniform_page_size`,
`_get_packed_kv_cache_groups` of 0.32.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.vllm.building import PlacedSpec
from kvquota_api.memory.vllm.packing import packed_groups
from kvquota_api.memory.vllm.specs import LayerSpec
from kvquota_api.memory.vllm.unifying import mergeable, promote, same_type, unify_pages

Layout = Literal["layer-outermost", "block-outermost"]

_UNEQUAL: Final = "the pages of latents and of other layers cannot be made equal: vLLM does not start with this model"
_CLOSE: Final = 1.5  # kinds whose layer counts differ by less are padded to the larger count


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share block tables; `members` keep their own specs where pages differ."""

    members: tuple[PlacedSpec, ...]

    @property
    def leader(self) -> LayerSpec:
        return self.members[0].spec


def layout_of(placed: Sequence[PlacedSpec]) -> Layout:
    """DeepSeek-V4 and GLM-5-next lay the pages of all layers side by side in a block (BLHNC), others layer by layer."""
    packs = any(member.spec.kind == "Ring" or member.spec.row_align > 1 for member in placed)
    return "block-outermost" if packs else "layer-outermost"


def without_locality(placed: Sequence[PlacedSpec]) -> tuple[PlacedSpec, ...]:
    """Local layers kept like full ones: the hybrid KV cache manager is off (unify_hybrid_kv_cache_specs)."""
    kept = [member.spec for member in placed if member.spec.kind != "Ring"]
    promoted = iter(promote(kept) if kept else ())
    return tuple(member if member.spec.kind == "Ring" else replace(member, spec=next(promoted)) for member in placed)


def groups_of(placed: Sequence[PlacedSpec], layout: Layout) -> tuple[Group, ...]:
    """The groups of a model."""
    members = tuple(placed)
    specs = [member.spec for member in members]
    if mergeable(specs) or same_type(specs):
        return (Group(members),)
    if layout == "block-outermost":
        packed = packed_groups(members)
        if packed is not None:
            return tuple(Group(group) for group in packed)
    unified = unify_pages(specs)
    if unified is None:
        return _fallback(members)
    return tuple(Group(group) for group in _uniform_pages(_with(members, unified)))


def _with(members: Sequence[PlacedSpec], specs: Sequence[LayerSpec]) -> tuple[PlacedSpec, ...]:
    return tuple(replace(member, spec=spec) for member, spec in zip(members, specs, strict=True))


def _uniform_pages(members: Sequence[PlacedSpec]) -> list[tuple[PlacedSpec, ...]]:
    """Groups of equally many layers, as many as the smallest kind has, or the largest where they are close."""
    buckets = _buckets(members)
    counts = [len(bucket) for bucket in buckets]
    size = max(counts) if max(counts) < min(counts) * _CLOSE else min(counts)
    groups: list[tuple[PlacedSpec, ...]] = []
    for bucket in buckets:
        parts = -(-len(bucket) // size)
        groups += [tuple(bucket[part::parts]) for part in range(parts)]
    return groups


def _buckets(members: Sequence[PlacedSpec]) -> list[list[PlacedSpec]]:
    """Layers by spec, in the order in which each first appears."""
    by_spec: defaultdict[LayerSpec, list[PlacedSpec]] = defaultdict(list)
    for member in members:
        by_spec[member.spec].append(member)
    return list(by_spec.values())


def _fallback(members: Sequence[PlacedSpec]) -> tuple[Group, ...]:
    """Latents beside sliding windows: all kept like full attention (_try_get_full_allocation_fallback_groups)."""
    kinds = {member.spec.kind for member in members}
    if not {"Latent", "Sliding"} <= kinds or kinds & {"SlidingLatent", "Chunked"}:
        raise EngineUnknownError(_UNEQUAL)
    try:
        promoted = promote([member.spec for member in members])
    except EngineUnknownError:
        raise EngineUnknownError(_UNEQUAL) from None
    return (Group(_with(members, promoted)),)
