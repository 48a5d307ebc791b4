"""The buffers that llama.cpp allocates for its context."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from kvquota_api.amounts import Tokens
from kvquota_api.memory.blocks import LayerGroup, blocks_for
from kvquota_api.memory.cache_plan import CacheGroup, CachePlan
from kvquota_api.memory.errors import EngineUnknownError, ModelConfigError, PoolTooSmallError
from kvquota_api.memory.inputs import LONGEST, EngineInputs
from kvquota_api.memory.llamacpp import plan_cache
from kvquota_api.memory.llamacpp.cells import state_elements
from kvquota_api.memory.models.families.latent import latent
from kvquota_api.memory.models.fields import Fields
from kvquota_api.memory.models.layers import Attention, Latent, ModelShape
from kvquota_api.memory.models.reading import read_model
from kvquota_api.memory.presets import load_preset
from model_shapes import DENSE, LATENT, MAMBA2, SPARSE, shape

MIB = 2**20
STATED: dict[str, Any] = {"version": "b11434", "block_tokens": 1, "slots": 1, "unified": False, "kv_dtype": "f16"}
GEMMA = shape(Attention(8, 128, 128, window=1024), DENSE, architecture="Gemma3ForCausalLM")


def plan(model: ModelShape, kv_bytes: int = 0, **inputs: Any) -> CachePlan:
    return plan_cache(model, EngineInputs("LlamaCpp", **{**STATED, **inputs}), kv_bytes)


def test_a_dense_model() -> None:
    """Each of two slots has 4096 cells of 4096 bytes; a request holds one of them."""
    found = plan(shape(DENSE), max_model_len=8192, slots=2)

    assert found == CachePlan(
        blocks=8192,
        null_blocks=0,
        block_tokens=1,
        bytes_per_token=4096,
        bytes_per_block=4096,
        kv_bytes=32 * MIB,
        tokens=8192,
        logged_tokens=8192,
        concurrency=Fraction(2),
        max_model_len=4096,
        min_bytes=32 * MIB,
        groups=(CacheGroup("Full", 1, 4096, LayerGroup(kind="State", block_tokens=1, fixed_blocks=4096)),),
    )
    assert blocks_for((group.cost for group in found.groups), Tokens(1)) == 4096


@pytest.mark.parametrize(
    ("context", "slots", "each"),
    [
        pytest.param(8192, 1, 8192, id="one slot"),
        pytest.param(1000, 1, 1024, id="the context is rounded up to 256"),
        pytest.param(16384, 8, 2048, id="divided evenly"),
        pytest.param(1024, 3, 512, id="each slice is rounded up to 256"),
        pytest.param(1024, 4, 256, id="exactly 256"),
        pytest.param(256, 3, 256, id="a slice is never less than 256"),
    ],
)
def test_cells_of_a_slot(context: int, slots: int, each: int) -> None:
    found = plan(shape(DENSE), max_model_len=context, slots=slots)

    assert (found.max_model_len, found.tokens, found.kv_bytes) == (each, each * slots, each * slots * 4096)


def test_more_slots_than_tokens() -> None:
    with pytest.raises(EngineUnknownError, match="300 slots leave no token of a context of 100"):
        plan(shape(DENSE), max_model_len=100, slots=300)


@pytest.mark.parametrize(
    ("context", "slots", "inputs", "cells"),
    [
        pytest.param(32768, 1, {}, 1536, id="window and micro-batch"),
        pytest.param(32768, 1, {"max_num_batched_tokens": 2048}, 3072, id="another micro-batch"),
        pytest.param(32768, 1, {"max_num_batched_tokens": 100}, 1280, id="rounded up to 256"),
        pytest.param(1024, 1, {}, 1024, id="at most the context"),
        pytest.param(32768, 4, {}, 4 * 1536, id="in each slot"),
        pytest.param(32768, 1, {"hybrid_manager": False}, 32768, id="--swa-full: all of it"),
    ],
)
def test_cells_of_sliding_layers(context: int, slots: int, inputs: dict[str, Any], cells: int) -> None:
    """A window of 1024 tokens beside as many full layers."""
    found = plan(GEMMA, max_model_len=context, slots=slots, **inputs)

    assert found.kv_bytes == (context + cells) * 4096


def test_the_micro_batch_is_an_assumption_where_it_counts() -> None:
    noted = "max-num-batched-tokens: 512, llama.cpp's micro-batch, which sliding layers keep too"

    assert noted in plan(GEMMA, max_model_len=4096).assumptions
    assert plan(shape(DENSE), max_model_len=4096).assumptions == ()


@pytest.mark.parametrize(
    ("option", "note"),
    [
        ("version", "engine-version: build 11434 of llama.cpp, the newest that is known"),
        ("block_tokens", "block-size: 1 token, as llama.cpp counts single cells"),
        ("slots", "slots: 1, which holds the whole context; current servers choose 4 that share it"),
        ("unified", "kv-unified: off, so that every slot has a part of its own"),
    ],
)
def test_what_is_not_given_is_an_assumption(option: str, note: str) -> None:
    changes: dict[str, Any] = {option: None}
    left_out = plan(shape(DENSE), max_model_len=4096, **changes)

    assert left_out == replace(plan(shape(DENSE), max_model_len=4096), assumptions=(note,))


def test_the_type_that_is_not_given_is_an_assumption() -> None:
    found = plan(shape(DENSE), max_model_len=4096, kv_dtype="auto")

    assert found.assumptions == ("kv-dtype: f16, llama.cpp's default",)


@pytest.mark.parametrize(("block", "warned"), [(1, False), (16, True)])
def test_blocks_of_tokens_are_passed_over_with_a_warning(block: int, warned: bool) -> None:
    warning = "block-size: llama.cpp counts single cells, not blocks of 16 tokens"

    assert plan(shape(DENSE), max_model_len=4096, block_tokens=block).warnings == (warning,) * warned


WHOLE = Latent(512, 64, whole=Attention(16, 192, 128))
NO_MLA = (
    "latent attention: 1,152 B per token, if the file has the tensors for it; a file made without the MLA tensors"
    " (before April 2025) keeps 10,240 B per token: plan such a file with --no-mla"
)


@pytest.mark.parametrize(
    ("model", "inputs", "each", "warnings"),
    [
        pytest.param(shape(WHOLE), {}, 1152, (NO_MLA,), id="a latent: the file may keep whole heads"),
        pytest.param(shape(WHOLE), {"latent": False}, 16 * (192 + 128) * 2, (), id="whole heads"),
        pytest.param(
            shape(WHOLE), {"latent": False, "kv_dtype": "q8_0/f16"}, 16 * (204 + 256), (), id="K and V in two types"
        ),
        pytest.param(shape(WHOLE, WHOLE), {"latent": False, "draft_layers": 1}, 3 * 10_240, (), id="a draft layer too"),
        pytest.param(shape(LATENT), {}, 1152, (), id="heads that the config does not say"),
        pytest.param(shape(DENSE), {"latent": False}, 4096, (), id="a model without latents"),
    ],
)
def test_a_file_without_the_tensors_of_latent_attention_keeps_whole_heads(
    model: ModelShape, inputs: dict[str, Any], each: int, warnings: tuple[str, ...]
) -> None:
    found = plan(model, max_model_len=4096, **inputs)

    assert (found.bytes_per_token, found.kv_bytes, found.warnings) == (each, 4096 * each, warnings)


@pytest.mark.parametrize("model", [shape(LATENT), shape(SPARSE)], ids=["not said", "an indexer"])
def test_whole_heads_that_are_not_known_are_an_error(model: ModelShape) -> None:
    with pytest.raises(EngineUnknownError, match=r"num_attention_heads, qk_nope_head_dim, v_head_dim\): plan it with"):
        plan(model, max_model_len=4096, latent=False)


def test_the_warning_of_whole_heads_stays_beside_the_one_of_memory() -> None:
    refused = "llama.cpp does not start: its context does not fit"

    assert plan(shape(WHOLE), MIB, max_model_len=4096).warnings == (refused, NO_MLA)


@pytest.mark.parametrize(
    ("preset", "latent", "kv_mib"),
    [
        pytest.param("deepseek-v2-lite", True, 486, id="the latent of V2-Lite"),
        pytest.param("deepseek-v2-lite", False, 4320, id="16 heads of 192 and 128"),
        pytest.param("deepseek-v3", False, 61 * 1280, id="128 heads"),
    ],
)
def test_the_config_says_what_a_latent_stands_for(preset: str, latent: bool, kv_mib: int) -> None:
    """16,384 tokens of 576, or heads x (192 + 128), elements of 16 bits in every layer."""
    found = plan(read_model(load_preset(preset)), max_model_len=16_384, latent=latent)

    assert found.kv_bytes == kv_mib * MIB


@pytest.mark.parametrize("missing", ["num_attention_heads", "qk_nope_head_dim", "v_head_dim"])
def test_a_config_that_leaves_a_size_out_says_nothing_of_whole_heads(missing: str) -> None:
    sizes = {
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "num_attention_heads": 16,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    }
    (full,), (lacking,) = (latent(Fields(each)) for each in (sizes, {**sizes, missing: None}))

    assert isinstance(full, Latent)
    assert isinstance(lacking, Latent)
    assert (full.whole, lacking.whole) == (Attention(16, 192, 128), None)


@pytest.mark.parametrize(
    ("slots", "unified", "cells"),
    [
        pytest.param(1, False, 1536, id="one slot"),
        pytest.param(2, False, 1536, id="each of two"),
        pytest.param(2, True, 1280, id="half of what two share: two windows and one micro-batch"),
    ],
)
def test_a_model_whose_layers_all_slide_is_counted_in_slots(slots: int, unified: bool, cells: int) -> None:
    """A token takes its bytes inside the window; a slot keeps no more than its window."""
    model = shape(Attention(8, 128, 128, window=1024), architecture="Gemma3ForCausalLM")
    found = plan(model, max_model_len=32_768, slots=slots, unified=unified)
    costs = [group.cost for group in found.groups]

    assert (found.bytes_per_token, found.bytes_per_block) == (4096, cells * 4096)
    assert (found.blocks, found.kv_bytes) == (slots, slots * cells * 4096)
    assert blocks_for(costs, Tokens(1)) == 1


def test_a_unified_cache_is_one_stream() -> None:
    """Four slots share 8192 cells; the sliding layers keep four windows and one micro-batch."""
    found = plan(GEMMA, max_model_len=8192, slots=4, unified=True)

    assert found.kv_bytes == (8192 + 4 * 1024 + 512) * 4096
    assert (found.blocks, found.max_model_len, found.concurrency) == (8192, 8192, Fraction(1))
    assert found.groups[0].cost == LayerGroup(kind="Full", block_tokens=1), "a request costs its own tokens"


def test_the_longest_unified_context() -> None:
    """10 MiB hold 2560 cells, whatever the slots."""
    found = plan(shape(DENSE), 10 * MIB, max_model_len=LONGEST, slots=2, unified=True)

    assert (found.max_model_len, found.tokens) == (2560, 2560)


def test_states_of_a_unified_cache_are_kept_once_per_slot() -> None:
    found = plan(shape(MAMBA2, DENSE), max_model_len=4096, slots=4, unified=True)

    assert found.kv_bytes == 4096 * 4096 + 4 * 4 * state_elements(MAMBA2)


def test_states_are_kept_once_per_slot() -> None:
    each = 4 * state_elements(MAMBA2)
    found = plan(shape(MAMBA2, DENSE), max_model_len=4096, slots=4)

    assert found.kv_bytes == 4096 * 4096 + 4 * each
    assert found.groups[1] == CacheGroup("State", 1, each, LayerGroup(kind="State", block_tokens=1))


def test_a_model_of_states_only_is_counted_in_slots() -> None:
    each = 4 * state_elements(MAMBA2)
    found = plan(shape(MAMBA2), max_model_len=4096, slots=4)

    assert (found.blocks, found.bytes_per_block, found.bytes_per_token, found.kv_bytes) == (4, each, 0, 4 * each)
    assert found.groups == (CacheGroup("State", 1, each, LayerGroup(kind="State", block_tokens=1, fixed_blocks=1)),)


@pytest.mark.parametrize(
    ("length", "kv_bytes", "expected"),
    [
        pytest.param(None, 0, 131072, id="nothing said: the model's longest"),
        pytest.param(LONGEST, 0, 131072, id="the longest, in as much memory as it needs"),
        pytest.param(LONGEST, 5 * MIB, 1280, id="the longest that fits"),
        pytest.param(None, 5 * MIB, 1280, id="bytes given: the longest that fits"),
        pytest.param(LONGEST, 2**40, 131072, id="never longer than the model's"),
        pytest.param(8192, 5 * MIB, 8192, id="a length that is asked for stays"),
    ],
)
def test_length_of_the_context(length: int | None, kv_bytes: int, expected: int) -> None:
    found = plan(shape(DENSE), kv_bytes, max_model_len=length)

    assert (found.max_model_len, found.kv_bytes, found.min_bytes) == (expected, expected * 4096, expected * 4096)


@pytest.mark.parametrize(
    ("kv_bytes", "concurrency", "warned"),
    [
        pytest.param(32 * MIB, 1, False, id="exactly enough"),
        pytest.param(32 * MIB - 1, 0, True, id="a byte less"),
    ],
)
def test_a_context_that_does_not_fit_is_planned_with_its_numbers(kv_bytes: int, concurrency: int, warned: bool) -> None:
    found = plan(shape(DENSE), kv_bytes, max_model_len=8192)

    assert (found.kv_bytes, found.min_bytes, found.concurrency) == (32 * MIB, 32 * MIB, Fraction(concurrency))
    assert bool(found.warnings) is warned


def test_the_longest_context_in_slots() -> None:
    """10 MiB hold 2560 cells: 1280 for each of two slots."""
    assert plan(shape(DENSE), 10 * MIB, max_model_len=LONGEST, slots=2).max_model_len == 1280


def test_a_model_shorter_than_the_padding() -> None:
    assert plan(shape(DENSE, max_positions=100), 2**30, max_model_len=LONGEST).max_model_len == 256


@pytest.mark.parametrize("slots", [1, 2])
def test_where_not_even_the_shortest_context_fits(slots: int) -> None:
    with pytest.raises(PoolTooSmallError, match=f"each of {slots} slots: give at least {slots * MIB} bytes"):
        plan(shape(DENSE), MIB - 1, max_model_len=LONGEST, slots=slots)


def test_a_model_whose_longest_length_is_not_known() -> None:
    with pytest.raises(ModelConfigError, match="set --max-model-len"):
        plan(shape(DENSE, max_positions=None))
