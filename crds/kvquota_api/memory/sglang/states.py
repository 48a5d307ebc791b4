"""Recurrent state of a sequence in SGLang, per layer and GPU.

Decides bytes of the convolution's past inputs and of the state proper. Pure.

Invariants:

1. Heads are divided by tensor parallelism; what does not divide is an error, as it is when SGLang starts.
2. A kind that SGLang is not known to keep is an error that names it.

Source: configs/mamba_utils.py (Mamba2StateShape, KimiLinearStateShape) of 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.models.layers import (
    GatedDeltaState,
    KimiDeltaState,
    Mamba1State,
    Mamba2State,
    ShortConvState,
    StateCache,
)


@dataclass(frozen=True, slots=True)
class StateElements:
    """Elements of one layer's state on one GPU: `conv` of past inputs, `recurrent` of the state proper."""

    conv: int
    recurrent: int


@dataclass(frozen=True, slots=True)
class StateTypes:
    """Bytes of one element of either part (SGLANG_MAMBA_CONV_DTYPE, --mamba-ssm-dtype)."""

    conv: int
    recurrent: int


def state_bytes(cache: StateCache, tensor: int, types: StateTypes) -> int:
    """Bytes that one sequence takes in one layer on one of `tensor` GPUs. Raises EngineUnknownError."""
    elements = state_elements(cache, tensor)
    return elements.conv * types.conv + elements.recurrent * types.recurrent


def state_elements(cache: StateCache, tensor: int) -> StateElements:
    """Elements of one layer's state on one of `tensor` GPUs. Raises EngineUnknownError."""
    match cache:
        case Mamba1State():
            raise EngineUnknownError("SGLang is not known to run layers of Mamba 1: plan another engine")
        case Mamba2State(heads=heads, head_dim=head_dim, state=state, groups=groups, conv=conv):
            channels = heads * head_dim + 2 * _extended(groups, tensor) * state
            return StateElements(_part(channels, tensor) * (conv - 1), _part(heads, tensor) * head_dim * state)
        case GatedDeltaState(key_heads=keys, value_heads=values, key_dim=key_dim, value_dim=value_dim, conv=conv):
            channels = values * value_dim + 2 * _extended(keys, tensor) * key_dim
            return StateElements(_part(channels, tensor) * (conv - 1), _part(values, tensor) * value_dim * key_dim)
        case KimiDeltaState(heads=heads, head_dim=head_dim, conv=conv):
            return StateElements(
                3 * _part(heads * head_dim, tensor) * (conv - 1), _part(heads, tensor) * head_dim * head_dim
            )
        case ShortConvState(channels=channels, conv=conv):
            return StateElements(_part(channels, tensor) * (conv - 1), 0)
        case _:
            return StateElements(0, _part(cache.heads, tensor) * cache.head_dim * cache.head_dim)


def _extended(groups: int, tensor: int) -> int:
    """Groups with the copies that let every GPU have the group of its heads."""
    return groups if groups % tensor == 0 else tensor


def _part(count: int, tensor: int) -> int:
    if count % tensor:
        raise EngineUnknownError(
            f"tensor-parallel: {tensor} GPUs cannot share {count} channels of state: choose a divisor"
        )
    return count // tensor
