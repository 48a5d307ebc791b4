"""What a cell and a sequence take in llama.cpp, from the sizes of the layers."""

from typing import Any

import pytest

from kvquota_api.memory.errors import EngineUnknownError, PlanError, UnknownArchitectureError
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.llamacpp.cells import Cells, cells_of, state_elements
from kvquota_api.memory.llamacpp.types import CacheTypes, cache_types, tensor_type
from kvquota_api.memory.models.layers import (
    Attention,
    CrossAttention,
    GatedDeltaState,
    Indexer,
    KimiDeltaState,
    Latent,
    LightningState,
    Mamba1State,
    ModelShape,
    ShortConvState,
    StateCache,
)
from model_shapes import DENSE, LATENT, MAMBA2, SPARSE, shape

SLIDING = Attention(8, 128, 128, window=1024)


def cells(model: ModelShape, kv_dtype: str = "f16", **inputs: Any) -> Cells:
    types, _ = cache_types(kv_dtype)
    return cells_of(model, EngineInputs("LlamaCpp", **inputs), types)


@pytest.mark.parametrize(
    ("name", "block", "block_bytes"),
    [
        ("f32", 1, 4),
        ("f16", 1, 2),
        ("bf16", 1, 2),
        ("q8_0", 32, 34),
        ("q5_1", 32, 24),
        ("q5_0", 32, 22),
        ("q4_1", 32, 20),
        ("q4_0", 32, 18),
        ("iq4_nl", 32, 18),
        ("float16", 1, 2),
        ("F16", 1, 2),
    ],
)
def test_tensor_types(name: str, block: int, block_bytes: int) -> None:
    assert tensor_type(name).row(4 * block) == 4 * block_bytes


def test_a_row_that_blocks_do_not_divide_is_refused() -> None:
    with pytest.raises(EngineUnknownError, match="blocks of 32 elements of q8_0 do not divide 80: use f16"):
        tensor_type("q8_0").row(80)


@pytest.mark.parametrize("name", ["fp8", "nvfp4", "q8_0/fp8", ""])
def test_an_unknown_type_is_named_with_those_that_are_known(name: str) -> None:
    with pytest.raises(EngineUnknownError, match=r"is not known for llama.cpp: use auto, bf16, f16, .* as K/V"):
        cache_types(name)


@pytest.mark.parametrize(
    ("kv_dtype", "key", "value", "notes"),
    [
        pytest.param("auto", "f16", "f16", ("kv-dtype: f16, llama.cpp's default",), id="f16 by default"),
        pytest.param("q8_0", "q8_0", "q8_0", (), id="one type for both"),
        pytest.param("q8_0/q4_0", "q8_0", "q4_0", (), id="K and V"),
    ],
)
def test_types_of_k_and_v(kv_dtype: str, key: str, value: str, notes: tuple[str, ...]) -> None:
    assert cache_types(kv_dtype) == (CacheTypes(tensor_type(key), tensor_type(value)), notes)


@pytest.mark.parametrize(
    ("model", "kv_dtype", "version", "expected"),
    [
        pytest.param(shape(DENSE), "f16", None, 4096, id="8 heads of K and V of 128 elements"),
        pytest.param(shape(DENSE), "q8_0", None, 8 * 2 * 136, id="8.5 bits"),
        pytest.param(shape(DENSE), "q8_0/q4_0", None, 8 * (136 + 72), id="K and V of different types"),
        pytest.param(shape(Attention(4, 192, 128)), "f16", None, 2560, id="K and V of different size"),
        pytest.param(shape(LATENT), "f16", None, 1152, id="a latent has no V"),
        pytest.param(shape(LATENT), "q8_0", None, 612, id="a latent in 8.5 bits"),
        pytest.param(shape(LATENT), "f16", "b7837", 1152, id="none since build 7837"),
        pytest.param(shape(LATENT), "f16", "7836", 1152 + 1024, id="before, V was kept beside it"),
        pytest.param(shape(LATENT), "f16", "2026-01-25", 1152, id="none since January 2026"),
        pytest.param(shape(LATENT), "f16", "2025", 1152 + 1024, id="a year is no build"),
        pytest.param(shape(LATENT), "f16", "b2025", 1152 + 1024, id="but this is"),
        pytest.param(shape(SPARSE), "f16", None, 1152 + 256, id="keys of an indexer"),
        pytest.param(shape((DENSE, Indexer(128))), "f16", None, 4096 + 512, id="an indexer's keys and one head of V"),
        pytest.param(shape(SLIDING), "f16", None, 4096, id="a window of a model that llama.cpp keeps whole"),
    ],
)
def test_bytes_of_a_cell(model: ModelShape, kv_dtype: str, version: str | None, expected: int) -> None:
    assert cells(model, kv_dtype, version=version) == Cells(expected, 0, 0, 1, 0, 0, 0)


@pytest.mark.parametrize(
    ("architecture", "manager", "sliding"),
    [
        pytest.param("Gemma3ForCausalLM", True, 1, id="keeps the window"),
        pytest.param("Gemma3ForCausalLM", False, 0, id="--swa-full keeps all"),
        pytest.param("MistralForCausalLM", True, 0, id="Mistral keeps all"),
    ],
)
def test_sliding_layers(architecture: str, manager: bool, sliding: int) -> None:
    found = cells(shape(SLIDING, DENSE, architecture=architecture), hybrid_manager=manager)

    full = 2 - sliding
    assert found == Cells(full * 4096, sliding * 4096, 0, full, sliding, 0, 1024 * sliding)


def test_chunked_layers_keep_their_chunk() -> None:
    model = shape(Attention(8, 128, 128, chunk=8192), DENSE, architecture="Llama4ForConditionalGeneration")

    assert cells(model) == Cells(4096, 4096, 0, 1, 1, 0, 8192)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param(Mamba1State(8192, 16, 4), 3 * 8192 + 8192 * 16, id="Mamba 1"),
        pytest.param(MAMBA2, 3 * (4096 + 2 * 8 * 128) + 64 * 64 * 128, id="Mamba 2"),
        pytest.param(
            GatedDeltaState(16, 32, 128, 128, 4), 3 * (4096 + 2 * 2048) + 32 * 128 * 128, id="gated delta net"
        ),
        pytest.param(KimiDeltaState(32, 128, 4), 3 * 3 * 4096 + 32 * 128 * 128, id="Kimi delta"),
        pytest.param(ShortConvState(2048, 3), 2 * 2048, id="short convolution"),
        pytest.param(LightningState(64, 128), 64 * 128 * 128, id="lightning attention"),
    ],
)
def test_elements_of_a_state(state: StateCache, expected: int) -> None:
    """All of them in fp32, whatever the types of K and V."""
    assert state_elements(state) == expected
    assert cells(shape(state, DENSE, ()), "q8_0").state == 4 * expected


def test_attention_and_state_side_by_side_in_one_layer() -> None:
    assert cells(shape((DENSE, MAMBA2))) == Cells(4096, 0, 4 * state_elements(MAMBA2), 1, 0, 1, 0)


@pytest.mark.parametrize(
    ("architecture", "copies"),
    [
        pytest.param("NemotronHForCausalLM", 4, id="one more for each drafted token"),
        pytest.param("Qwen3NextForCausalLM", 1, id="no state can be rolled back"),
    ],
)
def test_states_with_speculation(architecture: str, copies: int) -> None:
    found = cells(shape(MAMBA2, DENSE, architecture=architecture), speculative_tokens=3)

    assert found.state == copies * 4 * state_elements(MAMBA2)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        pytest.param(shape(DENSE, DENSE), 3 * 4096, id="like the last layer"),
        pytest.param(shape(SPARSE), 2 * 1152 + 256, id="without an indexer of its own"),
    ],
)
def test_a_draft_layer(model: ModelShape, expected: int) -> None:
    found = cells(model, draft_layers=1)

    assert (found.full, found.full_layers) == (expected, len(model.layers) + 1)


@pytest.mark.parametrize("version", ["b10107", "10107", "build 10107 (857c97607)", "build: 10107 (857c97607)"])
def test_builds_that_can_be_read(version: str) -> None:
    assert cells(shape(LATENT), version=version).full == 1152


@pytest.mark.parametrize(
    ("model", "inputs", "error", "text"),
    [
        pytest.param(shape(DENSE), {"tensor": 2}, EngineUnknownError, "depends on their free memory", id="tensor"),
        pytest.param(shape(DENSE), {"pipeline": 2}, EngineUnknownError, "depends on their free memory", id="pipeline"),
        pytest.param(
            shape(CrossAttention(20, 64, 64)), {}, UnknownArchitectureError, "CrossAttention", id="cross attention"
        ),
        pytest.param(shape(Latent(512, 64, window=8)), {}, UnknownArchitectureError, "Latent", id="a sliding latent"),
        pytest.param(
            shape((Indexer(128, ratio=4), LATENT)), {}, UnknownArchitectureError, "Indexer", id="pooled indexer keys"
        ),
        pytest.param(shape(LATENT), {"kv_dtype": "q8_0/q4_0"}, EngineUnknownError, "give one type", id="two types"),
        pytest.param(shape(LATENT), {"version": "main"}, EngineUnknownError, "write its build", id="version"),
        pytest.param(shape(MAMBA2), {"draft_layers": 1}, EngineUnknownError, "set none", id="draft layers"),
        pytest.param(
            shape(SLIDING, Attention(8, 128, 128, window=512), architecture="Gemma3ForCausalLM"),
            {},
            UnknownArchitectureError,
            r"has \[512, 1024\]",
            id="two windows",
        ),
    ],
)
def test_what_is_not_known(model: ModelShape, inputs: dict[str, Any], error: type[PlanError], text: str) -> None:
    with pytest.raises(error, match=text):
        cells(model, **inputs)
