"""How one card is divided: weights, activation, KV pool, other, safety margin.

Decides the sizes of the parts and whether they fit. Pure.

Invariants:

1. The parts never sum to more than the card; a partition that would is PartitionTooLargeError, never cut to fit.
2. Every part that the spec does not state is estimated by a formula with a source, and said in the plan's assumptions.

All parts are of one GPU. It does not know what the engine really takes: that is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvquota_api.amounts import Bytes, format_bytes
from kvquota_api.memory.errors import PartitionTooLargeError

GIB: Final = 2**30

# Bytes per (sequence of a step x entry of the vocabulary): the sampler's buffers set the peak, not the transformer.
# 38.4-39.6 on six start-up logs of vLLM 0.11 (docs/memory.md §5); the rest of the step is 0.05-0.1 GiB.
SAMPLER_BYTES: Final = 39.6
STEP_BYTES: Final = GIB // 10
LARGE_CARD_BYTES: Final = 70 * GIB
DEFAULT_MAX_NUM_SEQS: Final = (256, 1024)  # sequences of a step that vLLM sets by itself, on a smaller and a large card

# CUDA context and communication buffers by GPUs in the tensor group (docs/memory.md §5, suggested defaults).
NON_TORCH_BYTES: Final = ((1, 15 * GIB // 100), (2, 55 * GIB // 100), (4, 14 * GIB // 10), (8, 21 * GIB // 10))
CUDA_GRAPH_BYTES: Final = GIB  # 0.5-2 GiB planned (docs/memory.md §5): estimates differ from use both ways


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


def default_max_num_seqs(card: Bytes) -> int:
    """Sequences of a step when the engine's flags do not say."""
    return DEFAULT_MAX_NUM_SEQS[card >= LARGE_CARD_BYTES]


def estimated_activation(vocabulary: int, max_num_seqs: int) -> Bytes:
    """Peak of one step, from `vocabulary` entries and the sequences of a step; not divided by tensor parallelism."""
    return Bytes(int(SAMPLER_BYTES * max_num_seqs * vocabulary) + STEP_BYTES)


def estimated_other(tensor: int) -> Bytes:
    """CUDA context, communication buffers and graphs on one GPU of a group of `tensor`."""
    known = [size for gpus, size in NON_TORCH_BYTES if gpus >= tensor]
    return Bytes((known[0] if known else NON_TORCH_BYTES[-1][1]) + CUDA_GRAPH_BYTES)


def check_fits(partition: Partition, ways_out: str) -> None:
    """Raise PartitionTooLargeError, with the numbers and `ways_out`, where the parts do not fit on the card."""
    if partition.free >= 0:
        return
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
    raise PartitionTooLargeError(
        f"the parts of one card sum to {format_bytes(partition.total)}, {format_bytes(-partition.free)} more than its"
        f" {format_bytes(partition.card)}: {parts}. {ways_out}"
    )
