"""Tensor types of llama.cpp's KV cache, and what `auto` means.

Decides bytes of a row of elements. Pure.

Invariants:

1. A name that is not in the table is an error that lists those that are: no type has a size by default.
2. A row that a type's blocks do not divide is an error, as it is when llama.cpp starts.

Source: common/arg.cpp (kv_cache_types), ggml (block sizes) of build 11434.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.quoting import quoted


@dataclass(frozen=True, slots=True)
class TensorType:
    """A type: `block_bytes` for each block of `block` elements."""

    name: str
    block: int
    block_bytes: int

    def row(self, elements: int) -> int:
        """Bytes of a row of that many elements. Raises EngineUnknownError where blocks do not divide it."""
        if elements % self.block:
            raise EngineUnknownError(
                f"kv-dtype: blocks of {self.block} elements of {self.name} do not divide {elements}: use f16"
            )
        return elements // self.block * self.block_bytes


@dataclass(frozen=True, slots=True)
class CacheTypes:
    """The types of K and of V (--cache-type-k, --cache-type-v)."""

    key: TensorType
    value: TensorType


_TYPES: Final[Mapping[str, TensorType]] = {
    kind.name: kind
    for kind in (
        TensorType("f32", 1, 4),
        TensorType("f16", 1, 2),
        TensorType("bf16", 1, 2),
        TensorType("q8_0", 32, 34),
        TensorType("q4_0", 32, 18),
        TensorType("q4_1", 32, 20),
        TensorType("iq4_nl", 32, 18),
        TensorType("q5_0", 32, 22),
        TensorType("q5_1", 32, 24),
    )
}

_ALIASES: Final[Mapping[str, str]] = {
    "fp32": "f32",
    "float32": "f32",
    "fp16": "f16",
    "float16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
}

DEFAULT: Final = "f16"  # of K and of V where none is asked for, whatever the weights are


def cache_types(kv_dtype: str) -> tuple[CacheTypes, tuple[str, ...]]:
    """The types of K and V of "q8_0", "q8_0/q4_0" (K/V) or "auto", and the assumptions behind them."""
    if kv_dtype == "auto":
        return CacheTypes(_TYPES[DEFAULT], _TYPES[DEFAULT]), (f"kv-dtype: {DEFAULT}, llama.cpp's default",)
    key, _, value = kv_dtype.partition("/")
    return CacheTypes(tensor_type(key), tensor_type(value or key)), ()


def tensor_type(name: str) -> TensorType:
    """The type of that name. Raises EngineUnknownError."""
    spelt = _ALIASES.get(name.strip().lower(), name.strip().lower())
    if spelt not in _TYPES:
        raise EngineUnknownError(
            f"KV cache dtype {quoted(name)} is not known for llama.cpp: use auto, {', '.join(sorted(_TYPES))},"
            " or two of them as K/V"
        )
    return _TYPES[spelt]
