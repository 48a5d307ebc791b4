"""How heads are spread over the GPUs of tensor parallelism, and which forms of parallelism a model takes.

Decides heads per GPU, and refuses what vLLM refuses. Pure.

Invariants:

1. Every GPU has at least one KV head: beyond their number they are repeated.

Source: vllm/config/model.py `verify_with_parallel_config`, `get_num_kv_heads` of 0.32.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.layers import Attention, ModelShape
from kvquota_api.memory.stages import stages_of

# Architectures without SupportsPP in vllm/model_executor/models of 0.32.
_ONE_STAGE: Final = frozenset(
    {
        "AriaForConditionalGeneration",
        "DeepseekV4ForConditionalGeneration",
        "DiffusionGemmaForBlockDiffusion",
        "FireRedASR2ForConditionalGeneration",
        "Gemma3nForCausalLM",
        "Gemma3nForConditionalGeneration",
        "HrmTextForCausalLM",
        "IQuestLoopCoderForCausalLM",
        "Idefics3ForConditionalGeneration",
        "Mamba2ForCausalLM",
        "NemotronParseForConditionalGeneration",
        "PaddleOCRVLForConditionalGeneration",
        "Phi4MMForCausalLM",
        "SmolVLMForConditionalGeneration",
        "WhisperForConditionalGeneration",
        "Zamba2ForCausalLM",
    }
)
_SHARING: Final = ("Gemma4",)  # families whose last layers read the cache of layers before


def local_heads(heads: int, tensor: int) -> int:
    """KV heads on one GPU of `tensor`."""
    if heads % tensor and tensor % heads:
        raise EngineUnknownError(
            f"{heads} KV heads cannot be spread over a tensor parallel size of {tensor}: "
            "choose a size that divides them, or a multiple of them"
        )
    return max(1, heads // tensor)


def check_parallel(model: ModelShape, inputs: EngineInputs) -> None:
    """EngineUnknownError for sizes of tensor and decode context parallelism that vLLM refuses for this model."""
    tensor, shards = inputs.tensor, inputs.decode_context
    if model.heads % tensor:
        raise EngineUnknownError(
            f"total number of attention heads ({model.heads}) must be divisible by tensor parallel size ({tensor}): "
            "choose a size that divides them"
        )
    if tensor % shards:
        raise EngineUnknownError(
            f"tensor parallel size {tensor} must be divisible by decode context parallel size {shards}: "
            "change one of them"
        )
    if shards > 1:
        _check_decode_context(model, inputs)
    if inputs.pipeline > 1:
        _check_pipeline(model, inputs.pipeline)


def _check_pipeline(model: ModelShape, stages: int) -> None:
    if model.architecture in _ONE_STAGE:
        raise EngineUnknownError(
            f"pipeline parallelism is not supported for {model.architecture}: use one stage, and tensor parallelism"
        )
    if model.architecture.startswith(_SHARING) and _shares_across(model, stages):
        raise EngineUnknownError(
            f"layers of {model.architecture} would read the cache of layers on another pipeline stage: use one stage"
        )


def _shares_across(model: ModelShape, stages: int) -> bool:
    """Whether a layer without a cache of its own is on another stage than the last one with a cache."""
    of = list(zip(stages_of(len(model.layers), stages, "vLLM"), model.layers, strict=True))
    last = max((stage for stage, layer in of if layer), default=0)
    return any(stage != last for stage, layer in of if not layer)


def _check_decode_context(model: ModelShape, inputs: EngineInputs) -> None:
    """Decode context parallelism uses the GPUs that would hold the same KV heads again."""
    for cache in _attention(model):
        most = inputs.tensor // cache.kv_heads
        if inputs.decode_context > most or inputs.tensor <= cache.kv_heads:
            raise EngineUnknownError(
                f"decode context parallel size {inputs.decode_context} needs a tensor parallel size of that many times "
                f"the {cache.kv_heads} KV heads, not {inputs.tensor}: change one of them"
            )
        if (model.heads // cache.kv_heads) % inputs.decode_context:
            raise EngineUnknownError(
                f"{model.heads // cache.kv_heads} query heads per KV head must be divisible by decode context parallel "
                f"size {inputs.decode_context}: change it"
            )


def _attention(model: ModelShape) -> Iterable[Attention]:
    return (cache for layer in model.layers for cache in layer if isinstance(cache, Attention))
