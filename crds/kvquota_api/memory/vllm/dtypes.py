"""Element types by the names that vLLM takes, and how many bytes a token's K, V or latent takes in them.

Decides bytes of one token of one layer on one GPU. Pure.

Invariants:

1. A name that is not in the tables is an error that lists those that are: no type has a size by default.
2. Sizes are whole bytes.

It does not know which backend takes which type: that is `backends`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.quoting import quoted

COMPUTE_BYTES: Final[Mapping[str, int]] = {"float32": 4, "bfloat16": 2, "float16": 2}

_ALIASES: Final[Mapping[str, str]] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
}

# Bytes of an element of the KV cache (vllm/utils/torch_utils.py: STR_DTYPE_TO_TORCH_DTYPE).
_KV_BYTES: Final[Mapping[str, int]] = {
    **COMPUTE_BYTES,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int8_per_token_head": 1,
    "fp8_per_token_head": 1,
}

_SCALED: Final = frozenset({"int8_per_token_head", "fp8_per_token_head", "int4_per_token_head"})
_SCALES_BYTES: Final = 2 * 4  # two fp32 scales per token and head (TritonAttentionBackend.customize_spec)

# Bytes of a token of the packed latents, whatever its rank (MLAAttention.get_kv_cache_spec).
_PACKED_LATENTS: Final[Mapping[str, int]] = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}

_NVFP4: Final = frozenset({"nvfp4", "nvfp4_4over6"})


@dataclass(frozen=True, slots=True)
class KvFormat:
    """How the KV cache is stored: `name` as vLLM spells it, `element_bytes` of the types that are plain arrays;
    `packed`: by a backend that knows the types that are not."""

    name: str
    element_bytes: int
    packed: bool = True

    @property
    def quantised(self) -> bool:
        return self.name not in COMPUTE_BYTES

    @property
    def scaled(self) -> bool:
        """Whether only some backends know it: values with their scales, as head_bytes counts them."""
        return self.name in _SCALED or self.name in _NVFP4

    def head_bytes(self, key_dim: int, value_dim: int) -> int:
        """Bytes of K and V of one token in one head.

        The backend for values of another width than keys (FlashAttentionDiffKVBackend) leaves the scales out.
        """
        if self.packed and self.name in _SCALED:
            half = 2 if self.name == "int4_per_token_head" else 1
            scales = 0 if value_dim not in (0, key_dim) else _SCALES_BYTES
            return key_dim // half + value_dim // half + scales
        if self.packed and self.name in _NVFP4:
            return _nvfp4_bytes(key_dim) + _nvfp4_bytes(value_dim)
        return (key_dim + value_dim) * self.element_bytes

    def latent_bytes(self, width: int) -> int:
        """Bytes of one token's latent of `width` elements."""
        if self.name in _PACKED_LATENTS:
            return _PACKED_LATENTS[self.name]
        return self.head_bytes(width, 0)


def kv_format(name: str) -> KvFormat:
    """The format of that name; EngineUnknownError for one whose size is not known."""
    spelt = _ALIASES.get(name, name)
    if spelt in _KV_BYTES:
        return KvFormat(spelt, _KV_BYTES[spelt])
    if spelt in _SCALED or spelt in _NVFP4 or spelt in _PACKED_LATENTS:
        return KvFormat(spelt, 1)
    known = ", ".join(sorted({*_KV_BYTES, *_SCALED, *_NVFP4, *_PACKED_LATENTS}))
    raise EngineUnknownError(f"KV cache dtype {quoted(name)} is not known for vLLM: use auto, {known}")


def compute_dtype(name: str, of: str) -> str:
    """The compute type of that name, as vLLM spells it; `of` says in the error what it was for."""
    spelt = _ALIASES.get(name, name)
    if spelt not in COMPUTE_BYTES:
        known = ", ".join(COMPUTE_BYTES)
        raise EngineUnknownError(f"{of} {quoted(name)} is not known for vLLM: use auto, {known}")
    return spelt


def _nvfp4_bytes(width: int) -> int:
    """Two values per byte and one fp8 scale for 16 of them (nvfp4_kv_cache_full_dim)."""
    return width // 2 + width // 16
