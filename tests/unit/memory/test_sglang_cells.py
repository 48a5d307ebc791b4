"""What a token and a sequence take in SGLang, from the sizes of the layers."""

from typing import Any

import pytest

from kvquota_api.memory.errors import EngineUnknownError, PlanError, UnknownArchitectureError
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.layers import (
    Attention,
    CrossAttention,
    GatedDeltaState,
    Indexer,
    KimiDeltaState,
    Latent,
    LightningState,
    Mamba1State,
    Mamba2State,
    ModelShape,
    Quantisation,
    ShortConvState,
    StateCache,
)
from kvquota_api.memory.sglang.cells import Cells, Kept, stages
from kvquota_api.memory.sglang.dtypes import kv_dtype, kv_dtype_of
from kvquota_api.memory.sglang.releases import rules_of
from kvquota_api.memory.sglang.states import StateElements, StateTypes, state_bytes, state_elements
from model_shapes import DENSE, LATENT, MAMBA2, SPARSE, shape

SLIDING = Attention(8, 128, 128, window=4096)


def kept(model: ModelShape, dtype: str = "bfloat16", version: str | None = None, **inputs: Any) -> Kept:
    return Kept(model, EngineInputs("SGLang", **inputs), kv_dtype(dtype), StateTypes(2, 4), rules_of(version))


def cells(model: ModelShape, dtype: str = "bfloat16", version: str | None = None, **inputs: Any) -> Cells:
    """The cells of the only stage."""
    (only,) = stages(kept(model, dtype, version, **inputs))
    return only


@pytest.mark.parametrize(
    ("layer", "dtype", "tensor", "expected"),
    [
        pytest.param(DENSE, "bfloat16", 1, 4096, id="8 heads of K and V, 128 elements of 2 bytes"),
        pytest.param(DENSE, "bf16", 4, 1024, id="divided by 4 GPUs"),
        pytest.param(Attention(2, 128, 128), "bf16", 8, 512, id="fewer heads than GPUs: one head each"),
        pytest.param(Attention(3, 128, 128), "bf16", 2, 512, id="heads that do not divide: rounded down"),
        pytest.param(Attention(4, 192, 128), "bf16", 1, 2560, id="K and V of different size"),
        pytest.param(DENSE, "fp8", 1, 2048, id="fp8"),
        pytest.param(DENSE, "mxfp8", 1, 2048 + 64, id="mxfp8: a scale for 32 values"),
        pytest.param(DENSE, "nvfp4", 1, 1024 + 128, id="nvfp4: half a byte, a scale for 16 values"),
        pytest.param(LATENT, "bf16", 8, 1152, id="a latent is the same on every GPU"),
        pytest.param(LATENT, "fp8_e4m3", 8, 576, id="a latent in fp8"),
        pytest.param(LATENT, "fp4_mx_block16", 1, 288 + 36, id="a latent in fp4"),
        pytest.param(Latent(512, 64, sparse=True), "bf16", 1, 1152, id="a sparse latent in 16 bits"),
        pytest.param(
            Latent(512, 64, sparse=True), "fp8", 1, 656, id="a sparse latent in fp8: scales, position in bf16"
        ),
        pytest.param(
            Attention(8, 128, 128, window=4096), "bf16", 1, 4096, id="a window of a model without sliding pool"
        ),
    ],
)
def test_bytes_of_a_token(layer: Attention | Latent, dtype: str, tensor: int, expected: int) -> None:
    assert cells(shape(layer), dtype, tensor=tensor) == Cells(full=expected, full_layers=1)


@pytest.mark.parametrize(
    ("platform", "version", "expected"),
    [
        pytest.param("cuda-sm100", None, 576, id="sm100: plain rows"),
        pytest.param("cuda-sm100", "0.5.9", 656, id="sm100 before 0.5.10: rows with scales"),
        pytest.param("cuda-sm90", None, 656, id="sm90: rows with scales"),
    ],
)
def test_sparse_fp8_by_platform_and_version(platform: Any, version: str | None, expected: int) -> None:
    model = shape(Latent(512, 64, sparse=True))

    assert cells(model, "fp8", version, platform=platform).full == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        pytest.param(None, 2 * 132, id="layers that share an indexer keep no keys"),
        pytest.param("0.5.15", 3 * 132, id="before 0.5.18 they do"),
    ],
)
def test_keys_of_the_indexer(version: str | None, expected: int) -> None:
    model = shape(SPARSE, SPARSE, Latent(512, 64, sparse=True))

    assert cells(model, version=version).indexer == expected


def test_an_indexer_that_keeps_one_key_for_several_tokens() -> None:
    assert cells(shape((Indexer(128, ratio=4), Latent(512, 64, sparse=True)))).indexer == 33


@pytest.mark.parametrize(
    ("architecture", "version", "manager", "sliding"),
    [
        pytest.param("GptOssForCausalLM", None, True, 2, id="a pool of its own"),
        pytest.param("GptOssForCausalLM", "0.5.7", True, 0, id="not before 0.5.8"),
        pytest.param("GptOssForCausalLM", None, False, 0, id="not with --disable-hybrid-swa-memory"),
        pytest.param("Gemma3ForCausalLM", None, True, 0, id="not for Gemma 3"),
    ],
)
def test_sliding_layers(architecture: str, version: str | None, manager: bool, sliding: int) -> None:
    """Half of the layers look back 4096 tokens or within a chunk of 8192."""
    chunked = Attention(8, 128, 128, chunk=8192)
    model = shape(SLIDING, chunked, DENSE, DENSE, architecture=architecture)

    found = cells(model, version=version, hybrid_manager=manager)

    expected = Cells(
        full=(4 - sliding) * 4096,
        sliding=sliding * 4096,
        full_layers=4 - sliding,
        sliding_layers=sliding,
        window=8192 if sliding else 0,
    )
    assert found == expected


@pytest.mark.parametrize(
    ("state", "tensor", "expected"),
    [
        pytest.param(MAMBA2, 1, StateElements(3 * (4096 + 2 * 8 * 128), 64 * 64 * 128), id="Mamba 2"),
        pytest.param(MAMBA2, 4, StateElements(3 * 1536, 16 * 64 * 128), id="Mamba 2 over 4 GPUs"),
        pytest.param(
            Mamba2State(64, 64, 128, groups=1, conv=4),
            4,
            StateElements(3 * 1280, 16 * 64 * 128),
            id="groups are repeated",
        ),
        pytest.param(
            GatedDeltaState(16, 32, 128, 128, 4), 2, StateElements(3 * 4096, 16 * 128 * 128), id="gated delta net"
        ),
        pytest.param(KimiDeltaState(32, 128, 4), 2, StateElements(3 * 3 * 2048, 16 * 128 * 128), id="Kimi delta"),
        pytest.param(ShortConvState(2048, 3), 2, StateElements(2 * 1024, 0), id="short convolution"),
        pytest.param(LightningState(64, 128), 4, StateElements(0, 16 * 128 * 128), id="lightning attention"),
    ],
)
def test_elements_of_a_state(state: StateCache, tensor: int, expected: StateElements) -> None:
    assert state_elements(state, tensor) == expected
    assert state_bytes(state, tensor, StateTypes(conv=2, recurrent=4)) == 2 * expected.conv + 4 * expected.recurrent


def test_recurrent_layers_are_counted_beside_the_others() -> None:
    """An MLP keeps nothing; the state is that of both recurrent layers."""
    each = state_bytes(MAMBA2, 1, StateTypes(2, 4))

    assert cells(shape(MAMBA2, (), DENSE, MAMBA2)) == Cells(full=4096, state=2 * each, full_layers=1, state_layers=2)


def test_attention_and_state_side_by_side_in_one_layer() -> None:
    each = state_bytes(MAMBA2, 1, StateTypes(2, 4))

    assert cells(shape((DENSE, MAMBA2))) == Cells(full=4096, state=each, full_layers=1, state_layers=1)


def test_stages_are_cut_with_the_longer_ones_last() -> None:
    found = stages(kept(shape(*[DENSE] * 11), pipeline=4))

    assert [stage.full_layers for stage in found] == [2, 3, 3, 3]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        pytest.param(shape(*[DENSE] * 4), Cells(full=5 * 4096, full_layers=5), id="like the model's layers"),
        pytest.param(
            shape(SPARSE, Latent(512, 64, sparse=True)),
            Cells(full=3 * 1152, indexer=2 * 132, full_layers=3),
            id="with keys for choosing in each",
        ),
    ],
)
def test_a_draft_layer(model: ModelShape, expected: Cells) -> None:
    assert cells(model, draft_layers=1) == expected


@pytest.mark.parametrize(
    ("model", "inputs", "error", "text"),
    [
        pytest.param(shape(DENSE), {"tensor": 3}, EngineUnknownError, "3 GPUs cannot share 32 heads", id="heads"),
        pytest.param(shape(DENSE), {"decode_context": 2}, EngineUnknownError, "decode context", id="context parallel"),
        pytest.param(shape(DENSE), {"pipeline": 2}, EngineUnknownError, "over 2 pipeline stages", id="too many stages"),
        pytest.param(
            shape(DENSE, DENSE), {"pipeline": 2, "draft_layers": 1}, EngineUnknownError, "use one of them", id="draft"
        ),
        pytest.param(shape(MAMBA2), {"draft_layers": 1}, EngineUnknownError, "without full attention", id="no layer"),
        pytest.param(
            shape(CrossAttention(20, 64, 64)), {}, UnknownArchitectureError, "CrossAttention", id="cross attention"
        ),
        pytest.param(shape(Latent(512, 64, window=128)), {}, UnknownArchitectureError, "Latent", id="a sliding latent"),
        pytest.param(shape((DENSE, Indexer(128))), {}, UnknownArchitectureError, "indexer without", id="indexer"),
        pytest.param(shape(DENSE, ()), {}, EngineUnknownError, "share or skip", id="layers that share a cache"),
        pytest.param(
            shape(SPARSE), {"dtype": "fp8_e5m2"}, EngineUnknownError, "bfloat16 or fp8_e4m3, not fp8_e5m2", id="type"
        ),
        pytest.param(shape(Mamba1State(8, 16, 4), DENSE), {}, EngineUnknownError, "Mamba 1", id="Mamba 1"),
        pytest.param(
            shape(ShortConvState(30, 3), DENSE), {"tensor": 4}, EngineUnknownError, "30 channels of state", id="state"
        ),
    ],
)
def test_what_is_not_known(model: ModelShape, inputs: dict[str, Any], error: type[PlanError], text: str) -> None:
    with pytest.raises(error, match=text):
        cells(model, **inputs)


@pytest.mark.parametrize(
    ("model", "inputs", "expected"),
    [
        pytest.param(shape(DENSE), {}, "bfloat16", id="16 bits"),
        pytest.param(shape(DENSE, dtype="fp32"), {}, "bfloat16", id="32 bits are loaded in 16"),
        pytest.param(shape(DENSE), {"dtype": "float16"}, "float16", id="the type asked for"),
        pytest.param(
            shape(DENSE, quantisation=Quantisation("modelopt", "fp8")), {}, "fp8_e4m3", id="declared by ModelOpt"
        ),
        pytest.param(
            shape(DENSE, quantisation=Quantisation("compressed-tensors", "fp8")),
            {},
            "bfloat16",
            id="declared by others",
        ),
        pytest.param(shape(DENSE, quantisation=Quantisation("modelopt", None)), {}, "bfloat16", id="none declared"),
        pytest.param(shape(SPARSE), {}, "bfloat16", id="sparse attention"),
        pytest.param(shape(SPARSE), {"platform": "cuda-sm100"}, "fp8_e4m3", id="sparse attention on sm100"),
    ],
)
def test_what_auto_means(model: ModelShape, inputs: dict[str, Any], expected: str) -> None:
    found, notes = kv_dtype_of(model, EngineInputs("SGLang", **inputs))

    assert found == kv_dtype(expected)
    assert notes == (f"kv-dtype: {expected}, what SGLang makes of auto",)


def test_a_type_that_is_asked_for_is_no_assumption() -> None:
    assert kv_dtype_of(shape(DENSE), EngineInputs("SGLang", kv_dtype="fp8_e5m2")) == (kv_dtype("fp8_e5m2"), ())


def test_an_unknown_type_is_named_with_those_that_are_known() -> None:
    with pytest.raises(EngineUnknownError, match=r"'q8_0' is not known for SGLang: use auto, bfloat16, .*fp8_e4m3"):
        kv_dtype("q8_0")


@pytest.mark.parametrize("version", ["0.5.23", "v0.5.23", "0.5.23.post1", "0.5.24rc1", "0.5.24.dev3+g12ab"])
def test_new_versions_have_the_newest_rules(version: str) -> None:
    newest, found = rules_of(None), rules_of(version)

    assert (found.prints_indexer, found.frees_mimo_ratio, found.plain_sparse_fp8, found.spares_shared_indexers) == (
        newest.prints_indexer,
        newest.frees_mimo_ratio,
        newest.plain_sparse_fp8,
        newest.spares_shared_indexers,
    )


@pytest.mark.parametrize(
    ("version", "prints"), [("0.5.3", False), ("0.5.3.post1", True), ("0.5.4", True), ("0.4.9", False)]
)
def test_a_post_release_can_change_a_rule(version: str, prints: bool) -> None:
    assert rules_of(version).prints_indexer is prints


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        pytest.param("2025-10-07 (main)", (0, 5, 3, 0), id="a day, with a remark"),
        pytest.param("2025-12", (0, 5, 4, 0), id="a month: its start"),
        pytest.param("2026", (0, 5, 6, 2), id="a year: its start"),
        pytest.param("2030-01-01", (0, 5, 23, 0), id="later than all that is known"),
        pytest.param("2024-06", (0, 5, 2, 0), id="earlier"),
    ],
)
def test_a_date_stands_for_the_last_release_until_then(version: str, expected: tuple[int, ...]) -> None:
    assert rules_of(version).release == expected


def test_a_version_that_cannot_be_read() -> None:
    with pytest.raises(EngineUnknownError, match=r"'main' cannot be read: write it like 0\.5\.23"):
        rules_of("main")
