"""The longest request of an engine that has no rule of its own for it.

Decides `max_model_len` where the inputs leave it to the engine. Pure.

Invariants:

1. What the inputs say is never changed; what they leave open is the model's own longest length, and is said.
"""

from __future__ import annotations

from kvquota_api.memory.errors import ModelConfigError
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.layers import ModelShape


def length_asked(model: ModelShape, inputs: EngineInputs) -> tuple[int, tuple[str, ...]]:
    """Tokens of the longest request (LONGEST: what fits), and the assumptions behind them.

    Raises ModelConfigError where neither the inputs nor the config say it.
    """
    if inputs.max_model_len is not None:
        return inputs.max_model_len, ()
    return positions_of(model), (f"max-model-len: {positions_of(model)} tokens, the longest of the model's config",)


def positions_of(model: ModelShape) -> int:
    """Tokens of the longest request that the model was made for. Raises ModelConfigError."""
    if model.max_positions is None:
        raise ModelConfigError("max_position_embeddings: missing: set --max-model-len")
    return model.max_positions
