"""The tensors of the modules that models are built from: attention, feed-forward, experts, norms.

Pure. Sizes in elements. Names are those most checkpoints use; a family that differs passes its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kvquota_api.memory.parameters.tensors import Part, Tensor, Tensors

QkNorm = Literal["None", "Head", "All"]  # one norm over each head, or over all of them at once


def split_rows(part: Part, module: str, rows: int, columns: int, *, units: int = 0, biased: bool = False) -> Tensors:
    """A linear layer whose outputs are shared out, in `units` (default: single outputs), with its bias."""
    weight = Tensor(part, module, rows, columns, units=units or rows, linear=True)
    return (weight, *((Tensor(part, module, rows, units=units or rows),) if biased else ()))


def split_columns(part: Part, module: str, rows: int, columns: int, *, units: int = 0, biased: bool = False) -> Tensors:
    """A linear layer whose inputs are shared out; every GPU keeps its bias whole."""
    weight = Tensor(part, module, rows, columns, units=units or columns, linear=True)
    return (weight, *((Tensor(part, module, rows),) if biased else ()))


def whole(part: Part, module: str, rows: int, columns: int, *, biased: bool = False) -> Tensors:
    """A linear layer that every GPU keeps whole."""
    weight = Tensor(part, module, rows, columns, linear=True)
    return (weight, *((Tensor(part, module, rows),) if biased else ()))


def norm(module: str, size: int, *, biased: bool = False) -> Tensors:
    """A norm's scale, and shift."""
    return (Tensor("norm", module, size),) * (2 if biased else 1)


@dataclass(frozen=True, slots=True)
class Heads:
    """An attention module over `hidden` inputs: MHA, GQA, MQA.

    `key_dim`, `value_dim`: elements per head; `gated`: its queries come with an output gate of the same size; `keys`,
    `values`: whether the layer has projections of its own for them (vLLM keeps that of keys for values too);
    `split_norms`: norms over all heads are shared out with them; `outputs`: 0 means `hidden`; `sinks`: one per head.
    """

    hidden: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    qkv_biased: bool = False
    output_biased: bool = False
    qk_norm: QkNorm = "None"
    gated: bool = False
    keys: bool = True
    values: bool = True
    sinks: bool = False
    split_norms: bool = False
    outputs: int = 0

    def tensors(self, name: str = "self_attn") -> Tensors:
        """Those of the module."""
        part: Part = "attention"
        queries = self.heads * self.key_dim * (2 if self.gated else 1)
        keys, values = self.kv_heads * self.key_dim, self.kv_heads * self.value_dim
        q = split_rows(part, f"{name}.q_proj", queries, self.hidden, units=self.heads, biased=self.qkv_biased)
        k = split_rows(part, f"{name}.k_proj", keys, self.hidden, units=self.kv_heads, biased=self.qkv_biased)
        if not self.values:
            k = tuple(replace(each, again=True) for each in k)
        v = split_rows(part, f"{name}.v_proj", values, self.hidden, units=self.kv_heads, biased=self.qkv_biased)
        out = split_columns(
            part,
            f"{name}.o_proj",
            self.outputs or self.hidden,
            self.heads * self.value_dim,
            units=self.heads,
            biased=self.output_biased,
        )
        own = (*q, *(k if self.keys else ()), *(v if self.keys and self.values else ()), *out)
        sinks = (Tensor(part, f"{name}.sinks", self.heads, units=self.heads),) if self.sinks else ()
        return (*own, *sinks, *self._norms(name))

    def _norms(self, name: str) -> Tensors:
        if self.qk_norm == "None":
            return ()
        heads = (self.heads, self.kv_heads) if self.qk_norm == "All" else (1, 1)
        query, key = (
            Tensor("norm", f"{name}.{each}_norm", number * self.key_dim, units=number if self.split_norms else 1)
            for each, number in zip(("q", "k"), heads, strict=True)
        )
        return (query, key) if self.keys else (query,)


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """MLA: `query_rank` None means that queries are projected at once."""

    hidden: int
    heads: int
    query_rank: int | None
    rank: int
    nope: int
    rope: int
    value_dim: int
    biased: bool = False

    def tensors(self, name: str = "self_attn") -> Tensors:
        """Those of the module: the way down to the latents is kept whole, the way up shared out by heads."""
        part: Part = "attention"
        rows = self.heads * (self.nope + self.value_dim)
        value_up = (Tensor(part, f"{name}.kv_b_proj", rows, self.rank, units=self.heads, linear=True, again=True),)
        down = whole(part, f"{name}.kv_a_proj_with_mqa", self.rank + self.rope, self.hidden, biased=self.biased)
        out = split_columns(
            part,
            f"{name}.o_proj",
            self.hidden,
            self.heads * self.value_dim,
            units=self.heads,
            biased=self.biased,
        )
        return (*self._queries(name), *down, *norm(f"{name}.kv_a_layernorm", self.rank), *value_up, *out)

    def _queries(self, name: str) -> Tensors:
        size = self.heads * (self.nope + self.rope)
        if self.query_rank is None:
            return split_rows("attention", f"{name}.q_proj", size, self.hidden, units=self.heads)
        return (
            *whole("attention", f"{name}.q_a_proj", self.query_rank, self.hidden, biased=self.biased),
            *norm(f"{name}.q_a_layernorm", self.query_rank),
            *split_rows("attention", f"{name}.q_b_proj", size, self.query_rank, units=self.heads),
        )


def gated_mlp(name: str, hidden: int, intermediate: int, *, part: Part = "mlp", biased: bool = False) -> Tensors:
    """Gate, up and down."""
    return (
        *split_rows(part, f"{name}.gate_proj", intermediate, hidden, biased=biased),
        *plain_mlp(name, hidden, intermediate, part=part, biased=biased),
    )


def plain_mlp(name: str, hidden: int, intermediate: int, *, part: Part = "mlp", biased: bool = False) -> Tensors:
    """Up and down."""
    return (
        *split_rows(part, f"{name}.up_proj", intermediate, hidden, biased=biased),
        *split_columns(part, f"{name}.down_proj", hidden, intermediate, biased=biased),
    )


def experts(name: str, number: int, one: Tensors) -> Tensors:
    """`number` copies of the feed-forward module `one`, under `name`."""
    return tuple(
        replace(tensor, part="experts", module=f"{name}.{tensor.module.rpartition('.')[2]}", copies=number)
        for tensor in one
    )


def router(module: str, number: int, hidden: int, *, biased: bool = False) -> Tensors:
    """What chooses among `number` experts: kept whole and never quantised."""
    return (Tensor("router", module, number, hidden), *((Tensor("router", module, number),) if biased else ()))
