"""What the planner knows of engines: their blocks, and which shapes they refuse to start with.

Decides the block size and the blocks that are never handed out. Pure. What depends on flags that the spec does not
state is an EngineUnknownError that names the field, never a guess.
"""

from __future__ import annotations

from typing import Final

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.memory.architectures import DenseModel
from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.model_pool import Engine

DEFAULT_BLOCK_TOKENS: Final = {"vLLM": 16, "SGLang": 1}  # on a GPU, when the flags do not say
NULL_BLOCKS: Final = {"vLLM": 1}  # taken out of its pool at start and never handed out (docs/memory.md R7)


def block_tokens(engine: Engine) -> Tokens:
    """Tokens in one block. Raises EngineUnknownError."""
    if engine.block_size is not None:
        return Tokens(engine.block_size)
    if engine.type not in DEFAULT_BLOCK_TOKENS:
        raise EngineUnknownError(f"spec.engine.blockSize: the block size of {engine.type} depends on its flags: set it")
    return Tokens(DEFAULT_BLOCK_TOKENS[engine.type])


def null_blocks(engine: Engine) -> Blocks:
    """Blocks that the engine never hands out."""
    return Blocks(NULL_BLOCKS.get(engine.type, 0))


def check_parallelism(engine: Engine, model: DenseModel) -> None:
    """Raise EngineUnknownError where the engine would not start, or spreads the model as the planner does not know."""
    spread, tensor = engine.parallelism, engine.parallelism.tensor
    if model.heads % tensor or (model.kv_heads % tensor and tensor % model.kv_heads):
        raise EngineUnknownError(
            f"spec.engine.parallelism.tensor: {tensor} GPUs cannot share {model.heads} heads and {model.kv_heads} KV"
            " heads evenly, so the engine would not start: choose a number that divides both"
        )
    if spread.pipeline > model.layers:
        raise EngineUnknownError(
            f"spec.engine.parallelism.pipeline: the model has only {model.layers} layers: lower it"
        )
    if spread.decode_context > 1:
        raise EngineUnknownError("spec.engine.parallelism.decodeContext: the planner knows only 1: set it to 1")
    if engine.speculation.draft_layers:
        raise EngineUnknownError(
            "spec.engine.speculation.draftLayers: the planner knows no draft layers yet: set it to 0"
        )
