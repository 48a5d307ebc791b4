"""The pool of blocks that TensorRT-LLM makes of its memory."""

from fractions import Fraction
from typing import Any

import pytest

from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.memory.cache_plan import CacheGroup, CachePlan
from kvquota_api.memory.errors import EngineUnknownError, PlanError, PoolTooSmallError, UnknownArchitectureError
from kvquota_api.memory.inputs import LONGEST, EngineInputs
from kvquota_api.memory.models.layers import Attention, CrossAttention, Indexer, Latent, ModelShape, Quantisation
from kvquota_api.memory.tensorrt import plan_cache
from model_shapes import DENSE, LATENT, MAMBA2, SPARSE, shape


def plan(model: ModelShape, kv_bytes: int = 2**30, **inputs: Any) -> CachePlan:
    return plan_cache(model, EngineInputs("TensorRTLLM", **{"max_model_len": 1024, **inputs}), kv_bytes)


def test_a_dense_model() -> None:
    """4,000,000 bytes are 976 whole tokens of 4096 bytes: 30.5 blocks of 32, and so 31."""
    assert plan(shape(DENSE), 4_000_000, version="1.2.0", block_tokens=32, kv_dtype="bf16") == CachePlan(
        blocks=31,
        null_blocks=0,
        block_tokens=32,
        bytes_per_token=4096,
        bytes_per_block=32 * 4096,
        kv_bytes=31 * 32 * 4096,
        tokens=992,
        logged_tokens=992,
        concurrency=Fraction(31, 32),
        max_model_len=1024,
        min_bytes=2**22,
        groups=(CacheGroup("Full", 1, 32 * 4096, LayerGroup(kind="Full", block_tokens=32)),),
        warnings=("requests longer than 992 tokens are refused: max_seq_len is lowered to what the pool holds",),
    )


@pytest.mark.parametrize(
    ("kv_bytes", "blocks"),
    [
        pytest.param(32 * 4096 * 10, 10, id="exactly"),
        pytest.param(32 * 4096 * 10 + 4095, 10, id="less than a token more"),
        pytest.param(32 * 4096 * 10 + 4096, 11, id="a token more"),
        pytest.param(4095, 0, id="less than a token"),
    ],
)
def test_blocks_are_rounded_up_and_tokens_down(kv_bytes: int, blocks: int) -> None:
    assert plan(shape(DENSE), kv_bytes).blocks == blocks


@pytest.mark.parametrize(
    ("model", "inputs", "expected"),
    [
        pytest.param(shape(DENSE), {}, 4096, id="16 bits"),
        pytest.param(shape(DENSE), {"kv_dtype": "fp8"}, 2048, id="fp8"),
        pytest.param(shape(DENSE), {"kv_dtype": "int8"}, 2048, id="int8"),
        pytest.param(shape(DENSE), {"kv_dtype": "nvfp4"}, 1024 + 128, id="nvfp4: half a byte, a scale for 16"),
        pytest.param(shape(DENSE), {"dtype": "float32"}, 8192, id="auto: the model's compute type"),
        pytest.param(shape(DENSE, quantisation=Quantisation("modelopt", "fp8")), {}, 2048, id="auto: as declared"),
        pytest.param(shape(DENSE, quantisation=Quantisation("awq", None)), {}, 4096, id="auto: none declared"),
        pytest.param(shape(DENSE), {"tensor": 4}, 1024, id="divided by 4 GPUs"),
        pytest.param(shape(Attention(3, 128, 128)), {"tensor": 2}, 1024, id="heads that do not divide: rounded up"),
        pytest.param(shape(Attention(2, 128, 128)), {"tensor": 8}, 512, id="fewer heads than GPUs: one head each"),
        pytest.param(shape(LATENT), {"tensor": 8}, 1152, id="a latent is the same on every GPU"),
        pytest.param(shape(SPARSE), {}, 1152 + 132, id="keys of an indexer"),
        pytest.param(shape(SPARSE), {"kv_dtype": "fp8"}, 576 + 132, id="which are always bytes"),
        pytest.param(shape(SPARSE, Latent(512, 64, sparse=True)), {}, 2 * 1284, id="in every layer"),
        pytest.param(shape(DENSE, ()), {}, 4096, id="a layer that keeps nothing"),
        pytest.param(shape(*[DENSE] * 3), {"pipeline": 2}, 8192, id="the stage with more layers"),
        pytest.param(shape(*[DENSE] * 4), {"pipeline": 2, "draft_layers": 1}, 3 * 4096, id="drafters on the last"),
    ],
)
def test_bytes_of_a_token(model: ModelShape, inputs: dict[str, Any], expected: int) -> None:
    assert plan(model, **inputs).bytes_per_token == expected


@pytest.mark.parametrize(
    ("version", "asked", "expected"),
    [
        pytest.param(None, None, 32, id="32 tokens"),
        pytest.param("1.2.0rc3", None, 32, id="in this version too"),
        pytest.param("0.13.0.dev2024082000", None, 64, id="64 before 0.18"),
        pytest.param("0.13.0", 128, 128, id="what is asked for"),
    ],
)
def test_block(version: str | None, asked: int | None, expected: int) -> None:
    found = plan(shape(DENSE), version=version, block_tokens=asked)

    assert found.block_tokens == expected
    assert any(note.startswith("block-size") for note in found.assumptions) is (asked is None)


def test_what_is_not_given_is_an_assumption() -> None:
    stated: dict[str, Any] = {"version": "1.2.0", "block_tokens": 32, "kv_dtype": "bf16"}

    assert plan(shape(DENSE), **stated).assumptions == ()
    assert plan(shape(DENSE)).assumptions == (
        "engine-version: 0.18 of TensorRT-LLM or newer, for which the same rules are known",
        "kv-dtype: bfloat16, what TensorRT-LLM makes of auto",
        "block-size: 32 tokens, TensorRT-LLM's default",
    )


def test_sliding_layers_keep_every_token() -> None:
    noted = "max_attention_window: not set, so that sliding layers keep every token"
    sliding = shape(Attention(8, 128, 128, window=128), Attention(8, 128, 128, chunk=128))

    assert plan(sliding).bytes_per_token == 8192
    assert noted in plan(sliding).assumptions
    assert noted not in plan(shape(DENSE)).assumptions


@pytest.mark.parametrize(
    ("length", "kv_bytes", "expected"),
    [
        pytest.param(LONGEST, 2**20, 256, id="what fits"),
        pytest.param(LONGEST, 2**40, 131072, id="at most the model's"),
        pytest.param(None, 2**20, 131072, id="the model's own longest"),
    ],
)
def test_longest_request(length: int | None, kv_bytes: int, expected: int) -> None:
    assert plan(shape(DENSE), kv_bytes, max_model_len=length).max_model_len == expected


@pytest.mark.parametrize(
    ("model", "inputs", "error", "text"),
    [
        pytest.param(shape(DENSE), {"tensor": 3}, EngineUnknownError, "3 GPUs cannot share 32 heads", id="heads"),
        pytest.param(shape(DENSE), {"decode_context": 2}, EngineUnknownError, "context parallelism", id="context"),
        pytest.param(shape(DENSE), {"pipeline": 2}, EngineUnknownError, "over 2 pipeline stages", id="too many stages"),
        pytest.param(shape(DENSE), {"kv_dtype": "q8_0"}, EngineUnknownError, "'q8_0' is not known", id="type"),
        pytest.param(shape(DENSE), {"version": "main"}, EngineUnknownError, "write it like 1.2.0", id="version"),
        pytest.param(shape(MAMBA2), {}, UnknownArchitectureError, "Mamba2State", id="recurrent layers"),
        pytest.param(shape(CrossAttention(8, 64, 64)), {}, UnknownArchitectureError, "CrossAttention", id="encoder"),
        pytest.param(shape(Attention(4, 192, 128)), {}, UnknownArchitectureError, "Attention", id="K unlike V"),
        pytest.param(shape(Latent(512, 64, window=8)), {}, UnknownArchitectureError, "Latent", id="a sliding latent"),
        pytest.param(shape((DENSE, Indexer(128))), {}, UnknownArchitectureError, "Indexer", id="no latent"),
        pytest.param(shape((LATENT, Indexer(128, 4))), {}, UnknownArchitectureError, "Indexer", id="pooled keys"),
    ],
)
def test_what_is_not_known(model: ModelShape, inputs: dict[str, Any], error: type[PlanError], text: str) -> None:
    with pytest.raises(error, match=text):
        plan(model, **{"version": None, **inputs, "block_tokens": None})


def test_where_nothing_fits() -> None:
    """A plan with the numbers, but for the longest length that fits: there is none."""
    assert plan(shape(DENSE), 100).blocks == 0
    assert plan(shape(DENSE), -(2**30)).blocks == 0
    with pytest.raises(PoolTooSmallError, match="holds no block"):
        plan(shape(DENSE), 100, max_model_len=LONGEST)
