"""Which pipeline stage a layer is on.

Decides the split of layers over stages. Pure.

Invariants:

1. Every layer is on exactly one stage, in order; stages differ by at most one layer.
2. The last stage never gets a layer of the remainder (vllm/distributed/utils.py: get_pp_indices).

It does not know VLLM_PP_LAYER_PARTITION.
"""

from __future__ import annotations

from kvquota_api.memory.errors import EngineUnknownError


def stages_of(layers: int, stages: int) -> tuple[int, ...]:
    """The stage of each of `layers` layers; EngineUnknownError with fewer layers than stages."""
    if stages > layers:
        raise EngineUnknownError(f"{layers} layers cannot be spread over {stages} pipeline stages: use fewer stages")
    sizes = [layers // stages] * stages
    for behind in range(2, layers % stages + 2):
        sizes[-behind] += 1
    return tuple(stage for stage, size in enumerate(sizes) for _ in range(size))
