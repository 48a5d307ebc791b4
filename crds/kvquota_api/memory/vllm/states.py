"""How much recurrent state one layer keeps per sequence on one GPU.

Decides bytes of a state and the blocks that a running sequence holds of it. Pure.

Invariants:

1. The size of a state does not depend on the length of the sequence.
2. What tensor parallelism does not divide is an error, as in vLLM; only a single group of Mamba-2 is repeated.

Source: vllm/model_executor/layers/mamba/mamba_utils.py and the layers' `get_kv_cache_spec` of 0.32.
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
from kvquota_api.memory.vllm.dtypes import COMPUTE_BYTES


@dataclass(frozen=True, slots=True)
class StateTypes:
    """Types of a state: `compute` of the convolution's part, `recurrent` of the rest, "auto": the family's own.

    `drafted`: speculative tokens per step. `tensor`: GPUs that share the heads.
    """

    compute: str
    recurrent: str
    tensor: int
    drafted: int


def state_bytes(state: StateCache, types: StateTypes) -> int:
    """Bytes of the state of one layer on one GPU."""
    match state:
        case Mamba1State():
            inner = _split(state.inner, types, "channels")
            return _rows(state.conv - 1, inner, types) + inner * state.state * _recurrent(types, types.compute)
        case Mamba2State():
            return _mamba2(state, types)
        case GatedDeltaState():
            heads = _split(state.value_heads, types, "value heads")
            width = 2 * state.key_heads * state.key_dim + state.value_heads * state.value_dim
            kept = heads * state.key_dim * state.value_dim * _recurrent(types, types.compute)
            return _conv(state.conv, _split(width, types, "channels"), types) + kept
        case KimiDeltaState():
            heads = _split(state.heads, types, "heads")
            kept = heads * state.head_dim**2 * _recurrent(types, "float32")
            return _conv(state.conv, 3 * heads * state.head_dim, types) + kept
        case ShortConvState():
            return _conv(state.conv, _split(state.channels, types, "channels"), types)
        case _:
            return _split(state.heads, types, "heads") * state.head_dim**2 * COMPUTE_BYTES[types.compute]


def _mamba2(state: Mamba2State, types: StateTypes) -> int:
    """A single group is repeated on every GPU (extra_groups_for_head_shards)."""
    heads = _split(state.heads, types, "heads")
    groups = types.tensor if state.groups == 1 else state.groups
    _split(groups, types, "groups")
    width = state.heads * state.head_dim + 2 * groups * state.state
    kept = heads * state.head_dim * state.state * _recurrent(types, types.compute)
    return _conv(state.conv, _split(width, types, "channels"), types) + kept


def _conv(kernel: int, width: int, types: StateTypes) -> int:
    """Past inputs of a convolution; drafted tokens need a row each."""
    return _rows(kernel - 1 + types.drafted, width, types)


def _rows(rows: int, width: int, types: StateTypes) -> int:
    return rows * width * COMPUTE_BYTES[types.compute]


def _recurrent(types: StateTypes, default: str) -> int:
    return COMPUTE_BYTES[default if types.recurrent == "auto" else types.recurrent]


def _split(count: int, types: StateTypes, what: str) -> int:
    if count % types.tensor:
        raise EngineUnknownError(
            f"{count} {what} of a state layer cannot be divided by a tensor parallel size of {types.tensor}: "
            "choose a size that divides them"
        )
    return count // types.tensor
