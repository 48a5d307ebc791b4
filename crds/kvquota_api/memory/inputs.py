"""What an engine is started with, as far as its memory depends on it. Pure values, the same for all engines.

Invariants:

1. None means "not given": the engine's module takes the default of that version and platform and says so in the plan's
   assumptions.
2. Sizes are of one GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

EngineName = Literal["vLLM", "SGLang", "LlamaCpp", "TensorRTLLM"]
Platform = Literal["cuda-sm80", "cuda-sm90", "cuda-sm100", "cpu"]
LONGEST: Final = -1  # max_model_len: the longest that fits


@dataclass(frozen=True, slots=True)
class EngineInputs:
    """The flags of one engine.

    `tensor`, `pipeline`, `data`, `decode_context`: GPUs by kind of parallelism, at least 1. `dtype`: the model's
    compute type; `weight_dtype`, `kv_dtype`, `state_dtype`: of weights, KV cache and recurrent state, "auto": what
    engine and config say. `block_tokens`, `max_model_len` (LONGEST: what fits), `max_num_batched_tokens`: tokens.
    `speculative`: the engine's own description of its drafter (vLLM --speculative-config); `draft_layers`: layers of
    the drafter that keep a cache like the model's own layers. `slots`: parallel sequences that the context is divided
    over, `unified`: they share one, `latent`: the model's file has what latent attention needs, else every head is kept
    whole (llama.cpp). `server_context`: started as a server, not from a program, which
    changes vLLM's defaults.
    """

    engine: EngineName
    version: str | None = None
    platform: Platform = "cuda-sm90"
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    decode_context: int = 1
    dtype: str = "auto"
    weight_dtype: str = "auto"
    kv_dtype: str = "auto"
    state_dtype: str = "auto"
    block_tokens: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    hybrid_manager: bool = True
    speculative_tokens: int = 0
    draft_layers: int = 0
    speculative: Mapping[str, Any] | None = None
    slots: int | None = None
    unified: bool | None = None
    latent: bool = True
    server_context: bool = True

    @property
    def streams(self) -> int:
        """Parts that llama.cpp divides its context into: one per slot, unless slots share it. 1 for other engines."""
        return 1 if self.unified else self.slots or 1
