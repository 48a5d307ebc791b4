"""Which pipeline stage a layer is on, by engine.

Decides the split of layers over stages, for caches and weights alike. Pure.

Invariants:

1. Every layer is on exactly one stage, in order; stages differ by at most one layer.
2. Where the stages are not equal, vLLM spares the last one (vllm/distributed/utils.py: get_pp_indices), SGLang gives
   the last ones one layer more, TensorRT-LLM the first ones.

It does not know a split that is given by hand (VLLM_PP_LAYER_PARTITION and the like), nor which stage a drafter is on.
"""

from __future__ import annotations

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.inputs import EngineName


def stages_of(layers: int, stages: int, engine: EngineName) -> tuple[int, ...]:
    """The stage of each of `layers` layers; EngineUnknownError with fewer layers than stages."""
    if stages > layers:
        raise EngineUnknownError(f"{layers} layers cannot be spread over {stages} pipeline stages: use fewer stages")
    size, rest = divmod(layers, stages)
    longer = _longer(stages, rest, engine)
    return tuple(stage for stage in range(stages) for _ in range(size + (stage in longer)))


def _longer(stages: int, rest: int, engine: EngineName) -> range:
    """The `rest` stages that have one layer more."""
    if not rest:
        return range(0)
    if engine == "vLLM":
        return range(stages - 1 - rest, stages - 1)
    if engine == "SGLang":
        return range(stages - rest, stages)
    if engine == "TensorRTLLM":
        return range(rest)
    raise EngineUnknownError("how llama.cpp spreads layers is not known: use one pipeline stage")
