"""Element types of SGLang's KV cache, and what `auto` means.

Decides bytes of a number of elements. Pure.

Invariants:

1. A name that is not in the table is an error that lists those that are: no type has a size by default.
2. `auto` is what the checkpoint declares of its cache where SGLang takes it (ModelOpt), else 16 bits: it loads a
   checkpoint of 32 bits in 16 (configs/model_config.py).

It does not know which attention backend takes which type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.layers import Indexer, ModelShape
from kvquota_api.quoting import quoted

_FP4: Final = Fraction(1, 2) + Fraction(1, 16)  # two values per byte and one fp8 scale for 16 of them

# Bytes of one element (mem_cache/kv_cache_dtype.py; scales: model_executor/pool_configurator.py).
_BYTES: Final[Mapping[str, Fraction]] = {
    "float32": Fraction(4),
    "bfloat16": Fraction(2),
    "float16": Fraction(2),
    "fp8_e4m3": Fraction(1),
    "fp8_e5m2": Fraction(1),
    "mxfp8": 1 + Fraction(1, 32),  # one scale for 32 values
    "nvfp4": _FP4,
    "fp4_mx_block16": _FP4,
    "fp4_e2m1": _FP4,
}

_ALIASES: Final[Mapping[str, str]] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "fp8": "fp8_e4m3",
}


@dataclass(frozen=True, slots=True)
class KvDtype:
    """The type of the KV cache: `name` as SGLang spells it, bytes of one element with its share of the scales."""

    name: str
    element_bytes: Fraction

    def size(self, elements: int) -> int:
        """Whole bytes of that many elements."""
        return int(elements * self.element_bytes)


def kv_dtype(name: str) -> KvDtype:
    """The type of that name; EngineUnknownError for one whose size is not known."""
    spelt = _ALIASES.get(name, name)
    if spelt not in _BYTES:
        raise EngineUnknownError(
            f"KV cache dtype {quoted(name)} is not known for SGLang: use auto, {', '.join(sorted(_BYTES))}"
        )
    return KvDtype(spelt, _BYTES[spelt])


def kv_dtype_of(model: ModelShape, inputs: EngineInputs) -> tuple[KvDtype, tuple[str, ...]]:
    """The type that the inputs ask for, and the assumptions behind it. Raises EngineUnknownError."""
    if inputs.kv_dtype != "auto":
        return kv_dtype(inputs.kv_dtype), ()
    name = _automatic(model, inputs)
    return kv_dtype(name), (f"kv-dtype: {name}, what SGLang makes of auto",)


def _automatic(model: ModelShape, inputs: EngineInputs) -> str:
    if any(isinstance(cache, Indexer) for layer in model.layers for cache in layer):
        return "fp8_e4m3" if inputs.platform == "cuda-sm100" else "bfloat16"
    declared = model.quantisation
    if declared is not None and declared.method.startswith("modelopt") and declared.kv_scheme == "fp8":
        return "fp8_e4m3"
    return "bfloat16" if inputs.dtype == "auto" else inputs.dtype
