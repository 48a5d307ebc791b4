"""How one card is divided: weights, activation, KV pool, other, safety margin.

Decides the sizes of the parts that are not stated, what an engine's budget leaves for its KV cache, and whether the
parts fit. Pure.

    card = weights + activation + other + KV pool + safety margin
           `-- the engine's budget: requested = card x utilisation ----' (without CUDA graphs before vLLM 0.21)

Invariants:

1. A partition whose parts sum to more than the card is never cut to fit: `overflow` says so with all numbers.
2. A part that is not stated is counted, or estimated by a formula with a source, and is one of the `assumptions`.
3. Where the size of the KV cache is stated, no budget is looked at: engines do the same.

All parts are of one GPU. It does not know what the engine really takes: that is measured. Sources: docs/memory.md R1,
§5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from kvquota_api.amounts import Bytes, format_bytes
from kvquota_api.memory.errors import EngineUnknownError, PartitionTooLargeError
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.layers import ModelShape
from kvquota_api.memory.parameters import weights_per_gpu
from kvquota_api.memory.vllm.resolving import settle
from kvquota_api.memory.vllm.versions import PLANNED, Release, release_of

GIB: Final = 2**30

# Bytes per (sequence of a step x entry of the vocabulary): the sampler's buffers set the peak, not the transformer.
# 38.4-39.6 on six start-up logs of vLLM 0.11 (docs/memory.md §5); the rest of the step is 0.05-0.1 GiB.
SAMPLER_BYTES: Final = Fraction(396, 10)
STEP_BYTES: Final = GIB // 10
SEQUENCES: Final = 256  # of a step: what engines before vLLM's V1, and other engines, set by themselves
LOGIT_BYTES: Final = 4 * 512  # per entry of the vocabulary: llama.cpp computes 512 tokens (-ub) at once, in 32 bits

# CUDA context and communication buffers by GPUs in the tensor group (docs/memory.md §5, suggested defaults).
NON_TORCH_BYTES: Final = ((1, 15 * GIB // 100), (2, 55 * GIB // 100), (4, 14 * GIB // 10), (8, 21 * GIB // 10))
CUDA_GRAPH_BYTES: Final = GIB  # 0.5-2 GiB planned (docs/memory.md §5): estimates differ from use both ways
GRAPHLESS: Final = ("LlamaCpp",)  # engines whose graphs take nothing worth planning

# --gpu-memory-utilization of vLLM: 0.90 up to 0.19, 0.92 later (CacheConfig.gpu_memory_utilization).
UTILISATION: Final = Fraction(92, 100)
UTILISATION_BEFORE_0_20: Final = Fraction(90, 100)
HIGHER_SINCE: Final[Release] = (0, 20, 0)
GRAPHS_IN_BUDGET_SINCE: Final[Release] = (
    0,
    21,
    0,
)  # the release from which vLLM profiles CUDA graphs and takes them off
V1_SINCE: Final[Release] = (0, 8, 0)  # before it, a step had 256 sequences on every card
STATIC_FRACTION: Final = Fraction(
    88, 100
)  # SGLang's mem_fraction_static before it is lowered for chunks and parallelism
FREE_FRACTION: Final = Fraction(90, 100)  # TensorRT-LLM's free_gpu_memory_fraction


@dataclass(frozen=True, slots=True)
class Partition:
    """The parts of one card in bytes; `free` is what no part takes."""

    card: Bytes
    weights: Bytes
    activation: Bytes
    kv_pool: Bytes
    safety_margin: Bytes
    other: Bytes

    @property
    def total(self) -> int:
        """Sum of the parts."""
        return self.weights + self.activation + self.kv_pool + self.safety_margin + self.other

    @property
    def free(self) -> int:
        """What no part takes; negative where the parts do not fit."""
        return self.card - self.total


@dataclass(frozen=True, slots=True)
class Parts:
    """What lies beside the KV cache, in bytes. `graphs`: CUDA graphs, a part of `other`; 0 where `other` was stated."""

    weights: Bytes
    activation: Bytes
    other: Bytes
    graphs: Bytes
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """What an engine leaves for its KV cache, negative where its own parts are larger than its budget, and what it
    leaves of the card."""

    kv_bytes: int
    safety_margin: Bytes
    assumptions: tuple[str, ...]


def estimated_parts(
    config: Mapping[str, Any],
    model: ModelShape,
    inputs: EngineInputs,
    *,
    weights: Bytes | None = None,
    activation: Bytes | None = None,
    other: Bytes | None = None,
) -> Parts:
    """What lies beside the KV cache; what is None is counted or estimated. Raises PlanError for what is not known."""
    notes: list[str] = []
    counted = _weights(config, model, inputs, notes) if weights is None else weights
    peak = _activation(config, model, inputs, notes) if activation is None else activation
    graphs = Bytes(0)
    if other is None:
        graphs = Bytes(0 if inputs.engine in GRAPHLESS or inputs.platform == "cpu" else CUDA_GRAPH_BYTES)
        other = Bytes(non_torch(inputs.tensor) + graphs)
        notes.append(f"CUDA context, communication and graphs are estimated at {format_bytes(other)}")
    return Parts(counted, peak, other, graphs, tuple(notes))


def budget(inputs: EngineInputs, card: Bytes, parts: Parts, part: Fraction | None) -> Budget:
    """What the engine leaves for its KV cache where it may use `part` of the card, its own default where that is None.
    Raises EngineUnknownError."""
    if inputs.platform == "cpu":
        raise EngineUnknownError(
            "on the CPU the size of the KV cache is stated (--kv-memory): no part of a card is taken"
        )
    match inputs.engine:
        case "vLLM":
            return _vllm_budget(inputs, card, parts, part)
        case "SGLang":
            return _sglang_budget(card, parts, part)
        case "TensorRTLLM":
            return _tensorrt_budget(card, parts, part)
        case _:
            return _plain_budget(card, parts, part)


def non_torch(tensor: int) -> Bytes:
    """CUDA context and communication buffers on one GPU of a group of `tensor`."""
    known = [size for gpus, size in NON_TORCH_BYTES if gpus >= tensor]
    return Bytes(known[0] if known else NON_TORCH_BYTES[-1][1])


def estimated_activation(vocabulary: int, sequences: int) -> Bytes:
    """Peak of one step, from `vocabulary` entries and the sequences of a step; not divided by tensor parallelism."""
    return Bytes(int(SAMPLER_BYTES * sequences * vocabulary) + STEP_BYTES)


def overflow(partition: Partition) -> PartitionTooLargeError | None:
    """Why the parts do not fit on the card, with all numbers; None where they do."""
    if partition.free >= 0:
        return None
    parts = " + ".join(
        f"{name} {format_bytes(size)}"
        for name, size in (
            ("weights", partition.weights),
            ("activation", partition.activation),
            ("kvPool", partition.kv_pool),
            ("other", partition.other),
            ("safetyMargin", partition.safety_margin),
        )
    )
    return PartitionTooLargeError(
        f"the parts of one card sum to {format_bytes(partition.total)}, {format_bytes(-partition.free)} more than its"
        f" {format_bytes(partition.card)}: {parts}"
    )


def _weights(config: Mapping[str, Any], model: ModelShape, inputs: EngineInputs, notes: list[str]) -> Bytes:
    asked = inputs.speculative is not None or inputs.draft_layers > 0
    own = asked and _drafts_by_itself(model, inputs)
    counted = weights_per_gpu(
        config,
        inputs.weight_dtype,
        tensor=inputs.tensor,
        pipeline=inputs.pipeline,
        dtype=inputs.dtype,
        drafts="WithDraft" if own else "Without",
        engine=inputs.engine,
        platform=inputs.platform,
    )
    notes.append(f"weights are counted from the model's config: {format_bytes(counted.size)} on the fullest GPU")
    notes.extend(counted.assumptions)
    if asked and not own:
        notes.append("the weights of the drafter are not counted: state the size of all weights where it is large")
    return counted.size


def _drafts_by_itself(model: ModelShape, inputs: EngineInputs) -> bool:
    """Whether the drafter is the checkpoint's own layers for multi-token prediction: by its name or their number."""
    if inputs.speculative is None:
        return len(model.draft_layers) == inputs.draft_layers
    method = inputs.speculative.get("method")
    return isinstance(method, str) and (method == "mtp" or method.endswith("_mtp"))


def _activation(config: Mapping[str, Any], model: ModelShape, inputs: EngineInputs, notes: list[str]) -> Bytes:
    if inputs.engine == "LlamaCpp":
        peak = Bytes(LOGIT_BYTES * model.vocabulary + STEP_BYTES)
        notes.append(f"compute buffers are estimated at {format_bytes(peak)}, for 512 tokens at once")
        return peak
    sequences = _sequences(model, inputs)
    peak = estimated_activation(model.vocabulary, sequences)
    notes.append(
        f"activation is estimated at {format_bytes(peak)} for {sequences} sequences in a step and {model.vocabulary}"
        " entries of the vocabulary, as vLLM 0.11 logged on H100; other samplers and cards need less"
    )
    if config.get("vision_config"):
        notes.append("what encoding images needs is not in the activation: it depends on their size and number")
    return peak


def _sequences(model: ModelShape, inputs: EngineInputs) -> int:
    """Sequences of a step: stated, or the engine's default."""
    if inputs.max_num_seqs is not None:
        return inputs.max_num_seqs
    if inputs.engine != "vLLM" or _release(inputs) < V1_SINCE:
        return SEQUENCES
    return settle(model, inputs).sequences


def _release(inputs: EngineInputs) -> Release:
    return PLANNED if inputs.version is None else release_of(inputs.version)


def _vllm_budget(inputs: EngineInputs, card: Bytes, parts: Parts, part: Fraction | None) -> Budget:
    """CUDA graphs were taken from what the budget leaves, before vLLM took them off it."""
    release = _release(inputs)
    default = UTILISATION if release >= HIGHER_SINCE else UTILISATION_BEFORE_0_20
    requested = _requested(card, default if part is None else part)
    outside = 0 if release >= GRAPHS_IN_BUDGET_SINCE else parts.graphs
    return Budget(
        kv_bytes=requested - parts.weights - parts.activation - (parts.other - outside),
        safety_margin=Bytes(max(0, card - requested - outside)),
        assumptions=_defaulted("--gpu-memory-utilization", default, part),
    )


def _sglang_budget(card: Bytes, parts: Parts, part: Fraction | None) -> Budget:
    """Weights and KV cache take a part of what is free before loading; activation and graphs live in the rest."""
    free = max(0, card - (parts.other - parts.graphs))
    static = _requested(free, STATIC_FRACTION if part is None else part)
    rest = free - static - parts.activation - parts.graphs
    return Budget(
        kv_bytes=static - parts.weights,
        safety_margin=Bytes(max(0, rest)),
        assumptions=(
            *_defaulted("--mem-fraction-static", STATIC_FRACTION, part),
            *(("SGLang lowers it for large chunks and groups: its log says by how much",) if part is None else ()),
        ),
    )


def _tensorrt_budget(card: Bytes, parts: Parts, part: Fraction | None) -> Budget:
    """A part of what is free after the engine is loaded."""
    free = card - parts.weights - parts.activation - parts.other
    kv_bytes = int(free * (FREE_FRACTION if part is None else part))
    return Budget(kv_bytes, Bytes(max(0, free - kv_bytes)), _defaulted("free_gpu_memory_fraction", FREE_FRACTION, part))


def _plain_budget(card: Bytes, parts: Parts, part: Fraction | None) -> Budget:
    """llama.cpp has no budget of its own: all of the card, or the part that is asked for."""
    requested = _requested(card, Fraction(1) if part is None else part)
    kv_bytes = requested - parts.weights - parts.activation - parts.other
    return Budget(kv_bytes, Bytes(card - requested), ())


def _requested(size: int, part: Fraction) -> int:
    """Rounded up, as vLLM does (request_memory)."""
    return -(-size * part.numerator // part.denominator)


def _defaulted(flag: str, default: Fraction, part: Fraction | None) -> tuple[str, ...]:
    return (f"{flag} is the engine's default: {float(default):.2f}",) if part is None else ()
