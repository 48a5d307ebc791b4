"""What a model's weights are made of: one tensor of its checkpoint, and all of them by layer.

Pure values. Invariants:

1. A tensor counts once: a head that is the embedding again is no tensor, only `tied`.
2. Sizes are those of the whole model; `shard` is what one GPU of a tensor group holds.
3. Every tensor of a layer is in that layer, so that a pipeline stage can be cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Part = Literal[
    "embedding", "head", "attention", "mlp", "experts", "shared", "router", "norm", "state", "vision", "other"
]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor, or `copies` of the same size.

    `module`: its name in the checkpoint, without the layer's own; `rows` x `columns`: outputs x inputs, of a vector one
    column; `units`: what tensor parallelism can share out (heads, channels); one unit: every GPU keeps the whole;
    `least`: units that a GPU of a group has at least, padded where there are fewer; `linear`: a matrix that a quantised
    checkpoint may store in fewer bits; `again`: vLLM keeps it once more, unquantised.
    """

    part: Part
    module: str
    rows: int
    columns: int = 1
    copies: int = 1
    units: int = 1
    least: int = 1
    linear: bool = False
    again: bool = False

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        return self.rows * self.columns * self.copies

    def shard(self, tensor: int) -> int:
        """Parameters on one of `tensor` GPUs: whole units, one at least."""
        own = self.units if tensor == 1 else max(-(-self.units // tensor), self.least)
        return self.parameters * own // self.units


Tensors = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """All weights of a model.

    `first`: what the first pipeline stage has beside its layers (embedding, vision); `last`: the last stage (final
    norm, head); `draft`: the layers for multi-token prediction, loaded only for speculation; `tied`: the head is the
    embedding again; `assumptions`: sentences on what is not counted.
    """

    first: Tensors
    layers: tuple[Tensors, ...]
    last: Tensors
    tied: bool
    draft: tuple[Tensors, ...] = ()
    assumptions: tuple[str, ...] = ()

    def tensors(self) -> Iterator[Tensor]:
        """All but the draft layers."""
        for group in (self.first, *self.layers, self.last):
            yield from group

    @property
    def total(self) -> int:
        """Parameters, without the draft layers."""
        return sum(tensor.parameters for tensor in self.tensors())

    def by_part(self) -> Mapping[str, int]:
        """Parameters of each part that is not empty, without the draft layers."""
        parts: Counter[str] = Counter()
        for tensor in self.tensors():
            parts[tensor.part] += tensor.parameters
        return dict(parts)
