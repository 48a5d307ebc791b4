"""Groups of models whose pages of several sizes lie side by side in a block (DeepSeek-V4, GLM-5-next).

Decides groups for the layout in which the block is the outermost dimension. Pure.

Invariants:

1. Every layer is in exactly one group.
2. Groups of recurrent state are cut so that no state makes a block wider than attention needs.

Source: vllm/v1/core/kv_cache_utils.py `_get_packed_kv_cache_groups`, `_approximate_gcd` of 0.32.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.vllm.building import PlacedSpec
from kvquota_api.memory.vllm.unifying import same_type

_STATE_KINDS = ("State", "Ring")
_WINDOW_KINDS = ("Sliding", "SlidingLatent")


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Layers of one type, and by page size."""

    members: tuple[PlacedSpec, ...]
    by_page: dict[int, list[PlacedSpec]]

    @property
    def balanced(self) -> bool:
        """As many layers of each page size: a pattern that repeats."""
        return len({len(members) for members in self.by_page.values()}) == 1

    @property
    def repeats(self) -> int:
        return max(len(members) for members in self.by_page.values())

    def widest(self, parts: int) -> int:
        """Bytes of the widest of `parts` groups that it is cut into."""
        return sum(-(-len(members) // parts) * page for page, members in self.by_page.items())


def packed_groups(members: Sequence[PlacedSpec]) -> list[tuple[PlacedSpec, ...]] | None:
    """The groups, or None where all pages are equal."""
    if len({member.spec.page_bytes for member in members}) <= 1:
        return None
    buckets = _buckets(members)
    repeats = _repeats_per_group(buckets)
    anchor = max(
        bucket.widest(len(bucket.members) if _holds_state(bucket, repeats) else _parts(bucket, repeats))
        for bucket in buckets
    )
    groups: list[tuple[PlacedSpec, ...]] = []
    for bucket in buckets:
        groups += _cut(bucket, _fitting_parts(bucket, repeats, anchor))
    return groups


def _buckets(members: Sequence[PlacedSpec]) -> list[_Bucket]:
    found: list[list[PlacedSpec]] = []
    for member in members:
        for bucket in found:
            if same_type([bucket[0].spec, member.spec]):
                bucket.append(member)
                break
        else:
            found.append([member])
    return [_Bucket(tuple(bucket), _by_page(bucket)) for bucket in found]


def _by_page(members: Sequence[PlacedSpec]) -> dict[int, list[PlacedSpec]]:
    pages: defaultdict[int, list[PlacedSpec]] = defaultdict(list)
    for member in members:
        pages[member.spec.page_bytes].append(member)
    return dict(pages)


def _repeats_per_group(buckets: Sequence[_Bucket]) -> int | None:
    """Layers of a pattern that all groups repeat equally often, None without a pattern of several pages."""
    least = max((bucket.repeats for bucket in buckets if bucket.balanced and len(bucket.by_page) > 1), default=0)
    if not least:
        return None
    return _approximate_gcd([bucket.repeats for bucket in buckets if bucket.balanced], least)


def _approximate_gcd(values: Sequence[int], least: int) -> int:
    """The size of at least `least` whose multiples pad the values least; of equal ones the largest."""
    sizes = range(least, max(*values, least) + 1)
    return min(sizes, key=lambda size: (sum(-value % size for value in values), -size))


def _holds_state(bucket: _Bucket, repeats: int | None) -> bool:
    kind = bucket.members[0].spec.kind
    return kind in _STATE_KINDS or (repeats is None and kind in _WINDOW_KINDS)


def _parts(bucket: _Bucket, repeats: int | None) -> int:
    return -(-bucket.repeats // repeats) if bucket.balanced and repeats is not None else 1


def _fitting_parts(bucket: _Bucket, repeats: int | None, anchor: int) -> int:
    parts = _parts(bucket, repeats)
    if not _holds_state(bucket, repeats):
        return parts
    per_block = max(anchor // bucket.members[0].spec.page_bytes, 1)
    return max(parts, -(-len(bucket.members) // per_block))


def _cut(bucket: _Bucket, parts: int) -> list[tuple[PlacedSpec, ...]]:
    if parts == 1:
        return [bucket.members]
    if not bucket.balanced or parts > bucket.repeats:
        raise EngineUnknownError(
            f"{len(bucket.members)} sliding layers with pages of {len(bucket.by_page)} sizes "
            f"cannot be cut into {parts} groups: vLLM does not start with this model"
        )
    pattern = list(zip(*bucket.by_page.values(), strict=True))
    return [tuple(member for repeat in pattern[part::parts] for member in repeat) for part in range(parts)]
