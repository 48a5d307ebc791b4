"""Bytes of recurrent state of one layer on one GPU."""

import pytest

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.models.layers import (
    GatedDeltaState,
    KimiDeltaState,
    LightningState,
    Mamba1State,
    Mamba2State,
    ShortConvState,
    StateCache,
)
from kvquota_api.memory.vllm.states import StateTypes, state_bytes

PLAIN = StateTypes("bfloat16", "auto", tensor=1, drafted=0)
WIDE = StateTypes("bfloat16", "float32", tensor=1, drafted=0)
SPREAD = StateTypes("bfloat16", "auto", tensor=4, drafted=0)
DRAFTED = StateTypes("bfloat16", "auto", tensor=1, drafted=3)

MAMBA_1 = Mamba1State(inner=8192, state=16, conv=4)
MAMBA_2 = Mamba2State(heads=128, head_dim=64, state=128, groups=1, conv=4)
DELTA = GatedDeltaState(key_heads=16, value_heads=32, key_dim=128, value_dim=128, conv=4)
KIMI = KimiDeltaState(heads=32, head_dim=128, conv=4)
CONV = ShortConvState(channels=2048, conv=3)
LIGHTNING = LightningState(heads=32, head_dim=128)


@pytest.mark.parametrize(
    ("state", "types", "size"),
    [
        pytest.param(MAMBA_1, PLAIN, 3 * 8192 * 2 + 8192 * 16 * 2, id="Mamba-1"),
        pytest.param(MAMBA_1, DRAFTED, 3 * 8192 * 2 + 8192 * 16 * 2, id="Mamba-1 keeps nothing for drafts"),
        pytest.param(MAMBA_1, SPREAD, 3 * 2048 * 2 + 2048 * 16 * 2, id="Mamba-1 on four GPUs"),
        pytest.param(MAMBA_2, PLAIN, 3 * (8192 + 256) * 2 + 128 * 64 * 128 * 2, id="Mamba-2"),
        pytest.param(MAMBA_2, WIDE, 3 * (8192 + 256) * 2 + 128 * 64 * 128 * 4, id="Mamba-2 in float32"),
        pytest.param(
            MAMBA_2, SPREAD, 3 * (8192 + 4 * 256) // 4 * 2 + 32 * 64 * 128 * 2, id="its one group repeated on four GPUs"
        ),
        pytest.param(DELTA, PLAIN, 3 * 8192 * 2 + 32 * 128 * 128 * 2, id="a gated delta net"),
        pytest.param(DELTA, DRAFTED, 6 * 8192 * 2 + 32 * 128 * 128 * 2, id="a row for every drafted token"),
        pytest.param(KIMI, PLAIN, 3 * 12288 * 2 + 32 * 128 * 128 * 4, id="Kimi's delta in float32 by itself"),
        pytest.param(
            KIMI, StateTypes("bfloat16", "bfloat16", 1, 0), 3 * 12288 * 2 + 32 * 128 * 128 * 2, id="or narrower"
        ),
        pytest.param(CONV, PLAIN, 2 * 2048 * 2, id="a short convolution"),
        pytest.param(LIGHTNING, WIDE, 32 * 128 * 128 * 2, id="lightning attention follows the model's type"),
    ],
)
def test_state_bytes(state: StateCache, types: StateTypes, size: int) -> None:
    assert state_bytes(state, types) == size


def test_groups_that_the_gpus_do_not_divide_are_refused() -> None:
    with pytest.raises(EngineUnknownError, match="2 groups of a state layer"):
        state_bytes(Mamba2State(heads=128, head_dim=64, state=128, groups=2, conv=4), SPREAD)


def test_heads_that_the_gpus_do_not_divide_are_refused() -> None:
    with pytest.raises(EngineUnknownError, match=r"32 heads of a state layer .* tensor parallel size of 3: choose"):
        state_bytes(KIMI, StateTypes("bfloat16", "auto", 3, 0))
