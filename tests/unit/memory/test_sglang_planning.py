"""The pools that SGLang makes of its memory."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from kvquota_api.amounts import Tokens
from kvquota_api.memory.blocks import LayerGroup, blocks_for
from kvquota_api.memory.cache_plan import CacheGroup, CachePlan
from kvquota_api.memory.errors import EngineUnknownError, ModelConfigError, PoolTooSmallError
from kvquota_api.memory.inputs import LONGEST, EngineInputs
from kvquota_api.memory.models.layers import Attention, Indexer, Latent, ModelShape
from kvquota_api.memory.sglang import plan_cache
from model_shapes import DENSE, MAMBA2, SPARSE, shape

SLIDING = Attention(8, 128, 128, window=128)
STATE = 2 * 3 * (4096 + 2 * 8 * 128) + 4 * 64 * 64 * 128  # bytes of one MAMBA2 layer's state


def plan(model: ModelShape, kv_bytes: int, **inputs: Any) -> CachePlan:
    """The plan for requests of 1024 tokens and 16 bits, unless changed."""
    return plan_cache(model, EngineInputs("SGLang", **{"max_model_len": 1024, "kv_dtype": "bf16", **inputs}), kv_bytes)


def test_a_dense_model_in_pages_of_16() -> None:
    """4 MiB are 64 pages of 16 tokens of 4096 bytes; one of them is never handed out."""
    assert plan(shape(DENSE), 4 * 2**20, block_tokens=16, version="0.5.23") == CachePlan(
        blocks=63,
        null_blocks=0,
        block_tokens=16,
        bytes_per_token=4096,
        bytes_per_block=16 * 4096,
        kv_bytes=4 * 2**20,
        tokens=1008,
        logged_tokens=1008,
        concurrency=Fraction(63, 64),
        max_model_len=1024,
        min_bytes=65 * 16 * 4096,
        groups=(CacheGroup("Full", 1, 16 * 4096, LayerGroup(kind="Full", block_tokens=16)),),
        warnings=("requests longer than 1008 tokens are refused: the pool holds no more",),
    )


@pytest.mark.parametrize(
    ("model", "block", "expected", "noted", "warned"),
    [
        pytest.param(shape(DENSE), None, 1, True, False, id="one token where nothing is said"),
        pytest.param(shape(DENSE), 64, 64, False, False, id="what is asked for"),
        pytest.param(shape(SPARSE), None, 64, True, False, id="64 for sparse attention"),
        pytest.param(shape(SPARSE), 64, 64, False, False, id="64 asked for and taken"),
        pytest.param(shape(SPARSE), 16, 64, False, True, id="sparse attention takes 64 whatever is asked"),
        pytest.param(
            shape((Indexer(128, ratio=4), Latent(512, 64, sparse=True))), None, 256, True, False, id="pooled keys"
        ),
    ],
)
def test_page(model: ModelShape, block: int | None, expected: int, noted: bool, warned: bool) -> None:
    found = plan(model, 2**30, block_tokens=block)

    assert found.block_tokens == expected
    assert any(note.startswith("block-size") for note in found.assumptions) is noted
    assert any(note.startswith("block-size") for note in found.warnings) is warned


def test_the_version_that_is_not_given_is_an_assumption() -> None:
    note = "engine-version: 0.5.23 of SGLang, the newest that is known"
    stated = plan(shape(DENSE), 2**30, version="0.5.23")

    assert note not in stated.assumptions
    assert plan(shape(DENSE), 2**30) == replace(stated, assumptions=(note, *stated.assumptions))


def test_the_type_that_is_not_given_is_an_assumption() -> None:
    assert "kv-dtype: bfloat16, what SGLang makes of auto" in plan(shape(DENSE), 2**30, kv_dtype="auto").assumptions


def test_the_pool_of_the_stage_with_the_widest_cells_decides() -> None:
    """Two layers on the last of two stages: half the tokens of the first; the bytes are those of the last."""
    found = plan(shape(DENSE, DENSE, DENSE), 2**20, pipeline=2, block_tokens=1)

    assert (found.tokens, found.bytes_per_token, found.kv_bytes) == (127, 8192, 2**20)


@pytest.mark.parametrize(
    ("version", "tokens", "hidden"),
    [
        pytest.param(None, 2**30 // (1152 + 132) // 64 * 64 - 64, False, id="with the indexer's keys"),
        pytest.param("0.5.3", 2**30 // 1152 // 64 * 64 - 64, True, id="before 0.5.3.post1 without them"),
    ],
)
def test_what_the_printed_size_counts(version: str | None, tokens: int, hidden: bool) -> None:
    found = plan(shape(SPARSE), 2**30, version=version)

    assert found.tokens == tokens
    assert any("leaves out the indexer" in warning for warning in found.warnings) is hidden


def gpt_oss(**changes: Any) -> ModelShape:
    return shape(DENSE, SLIDING, architecture="GptOssForCausalLM", **changes)


def test_a_sliding_pool_has_four_fifths_of_the_tokens() -> None:
    """18 KiB hold 10 tokens of 4096 x 1.8 bytes if the spare pages of both pools are taken off: 2."""
    found = plan(gpt_oss(), 1000 * 4096 * 9 // 5 + 2 * 4096, block_tokens=1)

    assert (found.tokens, found.kv_bytes) == (1000, (1001 + 801) * 4096)
    assert found.groups == (
        CacheGroup("Full", 1, 4096, LayerGroup(kind="Full", block_tokens=1)),
        CacheGroup("Sliding", 1, 4096, LayerGroup(kind="State", block_tokens=1)),
    )
    assert blocks_for((group.cost for group in found.groups), Tokens(100)) == 100, "only the full pool is counted"
    assert "swa-full-tokens-ratio: 0.8, SGLang's default" in found.assumptions


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        pytest.param(1000, Fraction(1), id="long requests fill the full pool"),
        pytest.param(100, Fraction(800, 101), id="short ones the sliding pool, which keeps a page more of each"),
    ],
)
def test_concurrency_of_two_pools(length: int, expected: Fraction) -> None:
    found = plan(gpt_oss(), 1000 * 4096 * 9 // 5 + 2 * 4096, block_tokens=1, max_model_len=length)

    assert found.concurrency == expected


@pytest.mark.parametrize(
    ("version", "tokens"),
    [
        pytest.param("0.5.6", 1000, id="fixed at 1 before 0.5.7"),
        pytest.param("0.5.7", 2000 * 5 // 9, id="four fifths since"),
    ],
)
def test_the_ratio_of_mimo_v2(version: str, tokens: int) -> None:
    model = shape(DENSE, SLIDING, architecture="MiMoV2FlashForCausalLM")

    assert plan(model, 2002 * 4096, block_tokens=1, version=version).tokens == tokens


def test_states_take_their_share_first() -> None:
    """Of 190 MiB 90 are for states of 2.2 MB and a spare slot; the pool has what these leave."""
    size = 190 * 2**20
    found = plan(shape(MAMBA2, DENSE), size, block_tokens=1)

    slots = 90 * 2**20 // STATE - 1
    tokens = (size - (slots + 1) * STATE) // 4096 - 1
    assert (found.tokens, found.concurrency) == (tokens, min(Fraction(slots), Fraction(tokens, 1024)))
    assert found.groups[1] == CacheGroup("State", 1, STATE, LayerGroup(kind="State", block_tokens=1))
    assert found.min_bytes == 2 * STATE + 1025 * 4096
    assert "mamba-full-memory-ratio: 0.9, SGLang's default" in found.assumptions


def test_without_prefix_caching_there_is_a_state_for_each_request() -> None:
    found = plan(shape(MAMBA2, DENSE), 190 * 2**20, block_tokens=1, prefix_caching=False, max_num_seqs=3)

    assert found.tokens == (190 * 2**20 - 4 * STATE) // 4096 - 1
    assert found.concurrency == 3


@pytest.mark.parametrize(
    ("state_dtype", "config_dtype", "recurrent_bytes"),
    [
        pytest.param("auto", None, 4, id="fp32 by default"),
        pytest.param("auto", "bf16", 2, id="what the config says"),
        pytest.param("float16", None, 2, id="what is asked for"),
    ],
)
def test_type_of_the_state(state_dtype: str, config_dtype: str | None, recurrent_bytes: int) -> None:
    found = plan(shape(MAMBA2, DENSE, state_dtype=config_dtype), 2**30, state_dtype=state_dtype)

    assert found.groups[1].page_bytes == 2 * 3 * 6144 + recurrent_bytes * 64 * 64 * 128


def test_stages_set_aside_the_state_of_the_stage_with_the_most() -> None:
    """One stage has both recurrent layers, the other the attention: its pool has no more tokens for it."""
    inputs = {"prefix_caching": False, "max_num_seqs": 1, "block_tokens": 1}
    found = plan(shape(MAMBA2, MAMBA2, DENSE, DENSE), 2**25, pipeline=2, **inputs)

    assert found.tokens == (2**25 - 2 * 2 * STATE) // 8192 - 1
    assert [group.kind for group in found.groups] == ["Full"], "requests cost what the attention keeps"
    assert found.kv_bytes == max(2 * 2 * STATE, (found.tokens + 1) * 8192)


@pytest.mark.parametrize(
    ("model", "kv_bytes"),
    [
        pytest.param(shape(DENSE), 4096, id="only the spare page fits"),
        pytest.param(shape(DENSE), 0, id="no bytes"),
        pytest.param(shape(MAMBA2, DENSE), STATE, id="no state fits"),
    ],
)
def test_where_nothing_fits_the_plan_has_no_blocks(model: ModelShape, kv_bytes: int) -> None:
    found = plan(model, kv_bytes, block_tokens=1)

    assert (found.blocks, found.tokens, found.kv_bytes, found.concurrency) == (0, 0, 0, Fraction(0))
    assert found.min_bytes > kv_bytes


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        pytest.param(LONGEST, 255, id="what fits"),
        pytest.param(None, 131072, id="the model's own longest"),
        pytest.param(100, 100, id="what is asked for"),
    ],
)
def test_longest_request(length: int | None, expected: int) -> None:
    found = plan(shape(DENSE), 2**20, block_tokens=1, max_model_len=length)

    assert found.max_model_len == expected
    assert any(note.startswith("max-model-len: 131072 tokens") for note in found.assumptions) is (length is None)


def test_a_large_pool_fits_the_longest_request_of_the_model() -> None:
    assert plan(shape(DENSE), 2**30, block_tokens=1, max_model_len=LONGEST).max_model_len == 131072


@pytest.mark.parametrize(
    ("model", "inputs", "error", "text"),
    [
        pytest.param(shape(DENSE), {"max_model_len": LONGEST}, PoolTooSmallError, "holds no page", id="nothing fits"),
        pytest.param(
            shape(DENSE, max_positions=None), {"max_model_len": None}, ModelConfigError, "max-model-len", id="no length"
        ),
        pytest.param(shape(MAMBA2), {}, EngineUnknownError, "keep no token to the end", id="states only"),
        pytest.param(
            shape(SLIDING, architecture="GptOssForCausalLM"), {}, EngineUnknownError, "keep no token", id="windows only"
        ),
        pytest.param(
            shape(MAMBA2, DENSE), {"speculative_tokens": 2}, EngineUnknownError, "speculation with", id="speculation"
        ),
    ],
)
def test_what_cannot_be_planned(model: ModelShape, inputs: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        plan(model, 4096, **inputs)


def test_data_parallel_replicas_are_said() -> None:
    assert any(note.startswith("data-parallel") for note in plan(shape(DENSE), 2**20, data=2).assumptions)
