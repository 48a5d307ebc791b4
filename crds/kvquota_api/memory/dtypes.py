"""In which types a pool's weights and its KV cache are stored.

Decides what `auto` means, from the model's config (docs/memory.md R2). Pure; what the config leaves open is a
ModelConfigError that says which field of the spec to set.
"""

from __future__ import annotations

from typing import Final

from kvquota_api.memory.architectures import DenseModel
from kvquota_api.memory.errors import ModelConfigError
from kvquota_api.model_pool import ServedModel

ELEMENT_BYTES: Final = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


def weight_dtype(spec: ServedModel, model: DenseModel) -> str:
    """The stored type of the linear layers. Raises ModelConfigError."""
    if spec.weight_dtype != "auto":
        return spec.weight_dtype
    if model.checkpoint_quantised:
        raise ModelConfigError(
            "quantization_config: the checkpoint is quantised: set spec.model.weightDtype to its type"
        )
    return _plain_dtype(model, "spec.model.weightDtype")


def kv_element_bytes(spec: ServedModel, model: DenseModel) -> int:
    """Bytes of one element of K or V. Raises ModelConfigError."""
    if spec.kv_cache_dtype != "auto":
        return ELEMENT_BYTES[spec.kv_cache_dtype]
    if model.kv_scheme_declared:
        raise ModelConfigError("quantization_config: it declares a type of the KV cache: set spec.model.kvCacheDtype")
    if spec.weight_dtype in ("fp32", "bf16", "fp16"):
        return ELEMENT_BYTES[spec.weight_dtype]
    if spec.weight_dtype == "auto":
        return ELEMENT_BYTES[weight_dtype(spec, model)]
    return ELEMENT_BYTES[_plain_dtype(model, "spec.model.kvCacheDtype")]


def _plain_dtype(model: DenseModel, field: str) -> str:
    """The checkpoint's own type; float32 is not taken for one, as engines load such a checkpoint in 16 bits."""
    if model.dtype is None or model.dtype == "fp32":
        found = "missing" if model.dtype is None else "float32, which engines may load in 16 bits"
        raise ModelConfigError(f"torch_dtype: {found}: set {field}")
    return model.dtype
