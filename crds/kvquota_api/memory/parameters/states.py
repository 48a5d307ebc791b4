"""The tensors of recurrent layers: Mamba, Mamba2, gated delta nets, Kimi delta attention, short convolutions.

Pure. Sizes in elements. Input projections are named as in the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvquota_api.memory.parameters.modules import split_columns, split_rows, whole
from kvquota_api.memory.parameters.tensors import Tensor, Tensors


def _vector(module: str, size: int, units: int) -> Tensor:
    return Tensor("state", module, size, units=units)


def _convolution(module: str, channels: int, width: int, units: int, *, biased: bool) -> Tensors:
    weight = Tensor("state", module, channels, width, units=units)
    return (weight, *((_vector(module, channels, units),) if biased else ()))


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Selective state space: `inner` channels of `state` elements, time steps of rank `rank`."""

    hidden: int
    inner: int
    state: int
    rank: int
    conv: int
    conv_biased: bool
    biased: bool
    normed: bool = False

    def tensors(self, name: str) -> Tensors:
        """Those of the mixer; `normed`: with a norm over the time step and both inputs of the state (Jamba)."""
        norms = (self.rank, self.state, self.state) if self.normed else ()
        return (
            *split_rows("state", f"{name}.in_proj", 2 * self.inner, self.hidden, biased=self.biased),
            *_convolution(f"{name}.conv1d", self.inner, self.conv, self.inner, biased=self.conv_biased),
            *split_columns("state", f"{name}.x_proj", self.rank + 2 * self.state, self.inner),
            *split_rows("state", f"{name}.dt_proj", self.inner, self.rank, biased=True),
            Tensor("state", f"{name}.A_log", self.inner, self.state, units=self.inner),
            _vector(f"{name}.D", self.inner, self.inner),
            *split_columns("state", f"{name}.out_proj", self.hidden, self.inner, biased=self.biased),
            *(Tensor("norm", f"{name}.dt_layernorm", size) for size in norms),
        )


@dataclass(frozen=True, slots=True)
class Mamba2:
    """`heads` of `head_dim` x `state` elements in `groups`."""

    hidden: int
    heads: int
    head_dim: int
    state: int
    groups: int
    conv: int
    conv_biased: bool
    biased: bool
    normed: bool = True

    def tensors(self, name: str) -> Tensors:
        """Those of the mixer. A GPU keeps a whole group at least."""
        inner, grouped, module = self.heads * self.head_dim, 2 * self.groups * self.state, f"{name}.in_proj"
        bias = (_vector(module, 2 * inner + grouped + self.heads, self.heads),) if self.biased else ()
        return (
            *split_rows("state", module, 2 * inner + self.heads, self.hidden, units=self.heads),
            *split_rows("state", module, grouped, self.hidden, units=self.groups),
            *bias,
            *_convolution(f"{name}.conv1d", inner, self.conv, inner, biased=self.conv_biased),
            *_convolution(f"{name}.conv1d", grouped, self.conv, self.groups, biased=self.conv_biased),
            *(_vector(f"{name}.{each}", self.heads, self.heads) for each in ("A_log", "D", "dt_bias")),
            *((Tensor("norm", f"{name}.norm", inner, units=self.heads),) if self.normed else ()),
            *split_columns("state", f"{name}.out_proj", self.hidden, inner, units=self.heads, biased=self.biased),
        )


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """Gated delta net: `value_heads` of `key_dim` x `value_dim`."""

    hidden: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int

    def tensors(self, name: str) -> Tensors:
        """Those of the module."""
        keys, values = 2 * self.key_heads * self.key_dim, self.value_heads * self.value_dim
        heads = self.value_heads
        return (
            *split_rows("state", f"{name}.in_proj_qkv", keys, self.hidden, units=self.key_heads),
            *split_rows("state", f"{name}.in_proj_qkv", values, self.hidden, units=heads),
            *split_rows("state", f"{name}.in_proj_z", values, self.hidden, units=heads),
            *(Tensor("state", f"{name}.in_proj_{each}", heads, self.hidden, units=heads) for each in ("a", "b")),
            *_convolution(f"{name}.conv1d", keys + values, self.conv, keys + values, biased=False),
            *(_vector(f"{name}.{each}", heads, heads) for each in ("A_log", "dt_bias")),
            Tensor("norm", f"{name}.norm", self.value_dim),
            *split_columns("state", f"{name}.out_proj", self.hidden, values, units=heads),
        )


@dataclass(frozen=True, slots=True)
class KimiDelta:
    """Kimi delta attention: `heads` of `head_dim` squared; a forget gate of rank `head_dim`, an output gate of that
    rank too or, where `full_gate`, of full rank."""

    hidden: int
    heads: int
    head_dim: int
    conv: int
    full_gate: bool = False

    def tensors(self, name: str) -> Tensors:
        """Those of the module."""
        size, heads = self.heads * self.head_dim, self.heads
        full, low = ("qkvg", "f") if self.full_gate else ("qkv", "fg")
        into = [f"{name}.{each}_proj" for each in full]
        gates = [(f"{name}.{each}_a_proj", f"{name}.{each}_b_proj") for each in low]
        return (
            *(each for module in into for each in split_rows("state", module, size, self.hidden, units=heads)),
            *(each for down, _ in gates for each in whole("state", down, self.head_dim, self.hidden)),
            *(each for _, up in gates for each in split_rows("state", up, size, self.head_dim, units=heads)),
            *split_rows("state", f"{name}.b_proj", heads, self.hidden),
            *_convolution(f"{name}.conv1d", 3 * size, self.conv, 3 * size, biased=False),
            _vector(f"{name}.dt_bias", size, heads),
            _vector(f"{name}.A_log", heads, heads),
            Tensor("norm", f"{name}.o_norm", self.head_dim),
            *split_columns("state", f"{name}.o_proj", self.hidden, size, units=heads),
        )


def short_convolution(name: str, hidden: int, width: int, *, biased: bool) -> Tensors:
    """LFM2's gated convolution over `hidden` channels."""
    return (
        *split_rows("state", f"{name}.in_proj", 3 * hidden, hidden, biased=biased),
        *_convolution(f"{name}.conv", hidden, width, hidden, biased=biased),
        *split_columns("state", f"{name}.out_proj", hidden, hidden, biased=biased),
    )
