"""Whether requests that begin alike hold the blocks of their beginning together.

Decides it from what the spec says of the engine and from the model's groups of layers. Pure. In doubt they do not: then
each request is charged for all of its blocks, which is never too little.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kvquota_api.engine_spec import Engine
from kvquota_api.memory.blocks import LayerGroup

# Keep one copy of a prefix for all that run at the same time. llama.cpp keeps one for each slot; of others nothing is
# known.
_SHARING: Final = frozenset({"vLLM", "SGLang", "TensorRTLLM"})


def shares_prefixes(engine: Engine, groups: Iterable[LayerGroup]) -> bool:
    """By what the spec says; else the engines share where all layers keep every token, while for others it depends on
    the version."""
    if engine.type not in _SHARING:
        return False
    if engine.prefix_caching is not None:
        return engine.prefix_caching
    return all(group.kind == "Full" for group in groups)
