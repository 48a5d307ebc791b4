"""What of a model decides the settings of its engine.

Decides by the kinds of cache that its layers keep. Pure.

Invariants:

1. Layers of a drafter do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvquota_api.memory.models.layers import (
    Attention,
    Cache,
    Latent,
    Mamba1State,
    Mamba2State,
    ModelShape,
    Record,
    StateCache,
)

# Models of state layers whose config class does not list them as "linear_attention" (_cpu_mamba_backend in
# vllm/platforms/cpu.py, configuration classes of transformers 5).
_PLAIN_TYPES: Final = frozenset({"falcon_h1"})


@dataclass(frozen=True, slots=True)
class Traits:
    """What of a model decides defaults.

    `sparse_width`: elements of a sparse latent, 0 without any; `linear`: its
    config calls state layers "linear_attention".
    """

    states: bool
    attends: bool
    latent: bool
    sparse_width: int
    records: bool
    linear: bool
    mamba: bool

    @property
    def hybrid(self) -> bool:
        return self.states and self.attends


def traits_of(model: ModelShape) -> Traits:
    caches = [cache for layer in model.layers for cache in layer]

    def has(*kinds: type[Cache]) -> bool:
        return any(isinstance(cache, kinds) for cache in caches)

    return Traits(
        states=any(isinstance(cache, StateCache) for cache in caches),
        attends=has(Attention, Latent, Record),
        latent=has(Latent, Record),
        sparse_width=max(
            (cache.rank + cache.rope for cache in caches if isinstance(cache, Latent) and cache.sparse), default=0
        ),
        records=has(Record),
        linear=model.model_type not in _PLAIN_TYPES,
        mamba=has(Mamba1State, Mamba2State),
    )
