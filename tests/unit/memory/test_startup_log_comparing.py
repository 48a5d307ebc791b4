"""Where an engine's figures differ from a plan, and by how much."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.memory.cache_plan import CacheGroup, CachePlan
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.reading import read_model
from kvquota_api.memory.planning import plan_cache
from kvquota_api.memory.presets import load_preset
from kvquota_api.memory.startup_log import (
    Difference,
    PlannedMemory,
    compare,
    facts_to_inputs,
    kv_memory,
    parse_log,
)

LOGS = Path(__file__).parents[2] / "data" / "startup_logs"
GIB = 2**30
MIB = 2**20
FULL = CacheGroup("Full", 32, 2 * MIB, LayerGroup(kind="Full", block_tokens=16))
INPUTS = EngineInputs(engine="vLLM", version="0.32.0", max_model_len=8192, kv_dtype="bf16")
PLAN = CachePlan(
    blocks=5120,
    null_blocks=1,
    block_tokens=16,
    bytes_per_token=131_072,
    bytes_per_block=2 * MIB,
    kv_bytes=10 * GIB,
    tokens=81_920,
    logged_tokens=81_920,
    concurrency=Fraction(10),
    max_model_len=8192,
    min_bytes=GIB + 2 * MIB,
    groups=(FULL,),
)
AGREES = (
    "(Worker pid=2) Available KV cache memory: 10.0 GiB\n"
    "(EngineCore pid=1) GPU KV cache size: 81,920 tokens, Maximum concurrency for 8,192 tokens per request: 10.00x\n"
)


def differences(text: str, plan: CachePlan = PLAN, **given: Any) -> dict[str, Difference]:
    found = compare(parse_log(text), plan, given.get("inputs", INPUTS), given.get("memory"))
    by_subject: dict[str, Difference] = {each.subject: each for each in found}
    assert len(by_subject) == len(found)
    return by_subject


def verdicts(text: str, plan: CachePlan = PLAN, **given: Any) -> dict[str, str]:
    return {subject: each.verdict for subject, each in differences(text, plan, **given).items()}


def causes(text: str, plan: CachePlan = PLAN, **given: Any) -> dict[str, str | None]:
    found = differences(text, plan, **given)
    return {subject: each.cause for subject, each in found.items() if each.verdict == "Different"}


def test_a_log_that_agrees_is_equal_in_every_subject() -> None:
    rounding = Fraction(5_368_710)
    blocks = Fraction(rounding // (2 * MIB) + 1)
    assert compare(parse_log(AGREES), PLAN) == (
        Difference("loggedTokens", Fraction(81_920), Fraction(81_920), blocks * 16, 2),
        Difference("concurrency", Fraction(10), Fraction(10), Fraction(1, 200) + blocks / 512, 2),
        Difference("maxModelLen", Fraction(8192), Fraction(8192), Fraction(0), 2),
        Difference("kvBytes", Fraction(10 * GIB), Fraction(10 * GIB), rounding + 2 * MIB - 1, 1),
    )


def test_a_log_that_says_nothing_has_nothing_to_compare() -> None:
    assert compare(parse_log(""), PLAN) == ()


def test_a_plan_that_prints_no_size_is_not_compared_in_it() -> None:
    assert "loggedTokens" not in verdicts(AGREES, replace(PLAN, logged_tokens=None))


def test_how_far_two_figures_are_apart_is_told_both_ways() -> None:
    fewer = differences("num_gpu_blocks: 4608")["blocks"]
    none = differences("num_gpu_blocks: 4608", replace(PLAN, blocks=0, kv_bytes=0))["blocks"]
    assert (fewer.delta, fewer.relative, fewer.verdict) == (Fraction(-512), Fraction(-1, 10), "Different")
    assert (none.delta, none.relative, none.verdict) == (Fraction(4608), None, "Different")


ROUNDED = {
    "blocks that the rounded budget is worth": ("num_gpu_blocks: 5117\n", "blocks", "WithinRounding"),
    "more blocks than that": ("num_gpu_blocks: 5115\n", "blocks", "Different"),
    "tokens that the rounded budget is worth": ("GPU KV cache size: 81,872 tokens\n", "loggedTokens", "WithinRounding"),
    "more tokens than that": ("GPU KV cache size: 81,840 tokens\n", "loggedTokens", "Different"),
}


@pytest.mark.parametrize(("line", "subject", "verdict"), ROUNDED.values(), ids=ROUNDED)
def test_what_the_log_rounded_off_is_no_difference(line: str, subject: str, verdict: str) -> None:
    assert verdicts("Available KV cache memory: 10.0 GiB\n" + line)[subject] == verdict


EXACT = {
    "bytes that were told": "non-default args: {'kv_cache_memory_bytes': 10737418240}\n",
    "a budget that the plan was not made from": "Available KV cache memory: 11.0 GiB\n",
    "no budget": "",
}


@pytest.mark.parametrize("budget", EXACT.values(), ids=EXACT)
def test_without_a_rounded_budget_every_block_counts(budget: str) -> None:
    assert verdicts(budget + "num_gpu_blocks: 5119\n")["blocks"] == "Different"


def test_of_several_processes_the_one_with_the_least_cache_counts() -> None:
    text = (
        "(Worker_TP0 pid=1) Available KV cache memory: 12.0 GiB\n(Worker_TP1 pid=2) Available KV cache memory: 10.0"
        " GiB\n"
        "(EngineCore_DP0 pid=3) num_gpu_blocks: 6000\n(EngineCore_DP1 pid=4) num_gpu_blocks: 5120\n"
    )
    assert verdicts(text) == {"blocks": "Equal", "kvBytes": "Equal"}


def test_the_parts_of_the_card_are_compared_with_what_the_most_loaded_process_says() -> None:
    text = (
        "(Worker_TP0 pid=1) Model loading took 15.0000 GiB and 3 seconds\n"
        "(Worker_TP1 pid=2) Model loading took 16.0000 GiB and 3 seconds\n"
        "(Worker_TP0 pid=1) Free memory on device (78.0/79.0 GiB) on startup. Desired GPU memory utilization is"
        " (0.9, 71.1"
        " GiB). Actual usage is 15.0 GiB for weight, 5.0 GiB for peak activation, 0.5 GiB for non-torch memory, and"
        " 1.0 GiB"
        " for CUDAGraph memory.\n"
        "(Worker_TP1 pid=2) Estimated CUDA graph memory: 2.0 GiB total\n"
    )
    memory = PlannedMemory(
        card=79 * GIB, weights=16 * GIB, activation=5 * GIB, non_torch=GIB // 2, graphs=2 * GIB, kv=None
    )
    assert {subject: (each.verdict, each.line) for subject, each in differences(text, memory=memory).items()} == {
        "card": ("Equal", 3),
        "weights": ("Equal", 2),
        "activation": ("Equal", 3),
        "nonTorch": ("Equal", 3),
        "graphs": ("Equal", 4),
    }


def test_a_budget_is_compared_with_the_budget_of_the_plan_where_that_is_known() -> None:
    found = differences(AGREES, memory=PlannedMemory(kv=10 * GIB + 7 * MIB))["kvBytes"]
    assert (found.verdict, found.rounding) == ("Different", Fraction(5_368_710))


def test_a_refusal_is_compared_with_what_the_longest_request_needs() -> None:
    text = (
        "To serve at least one request with the model's max seq len (8192), (1.25 GiB KV cache is needed, which is"
        " larger"
        " than the available KV cache memory (0.5 GiB). Based on the available memory, the estimated maximum model"
        " length"
        " is 4096.\n"
    )
    assert verdicts(text) == {"minBytes": "Different"}
    assert verdicts(text.replace("1.25", "1.0")) == {"minBytes": "WithinRounding"}
    assert verdicts(text, replace(PLAN, max_model_len=4096)) == {}


LLAMA = "llama_kv_cache: size = 10240.00 MiB ( 81920 cells,  32 layers,  1/1 seqs), K (f16): 1 MiB, V (f16): 1 MiB\n"


def test_the_cells_of_the_largest_cache_are_the_tokens_where_none_are_printed() -> None:
    small = LLAMA.replace("10240.00", "0.00").replace("81920", "1024")
    assert verdicts(LLAMA + small) == {"loggedTokens": "Equal", "kvBytes": "Equal"}


SLIDING = CacheGroup("Sliding", 26, 2 * MIB, LayerGroup(kind="Sliding", block_tokens=32, window_tokens=1024))
STATES = CacheGroup("State", 32, 2 * MIB, LayerGroup(kind="State", block_tokens=544, fixed_blocks=1))
BLOCKS = {
    "the only block": ((FULL,), INPUTS, "16", "Equal"),
    "one of several": ((FULL, SLIDING), INPUTS, "32", "Equal"),
    "none of several": ((FULL, SLIDING), INPUTS, "64", "Different"),
    "a block of states is no attention block": ((FULL, STATES), INPUTS, "544", "Different"),
    "one rank's part of a block": (
        (replace(FULL, cost=LayerGroup(kind="Full", block_tokens=64)),),
        replace(INPUTS, decode_context=4),
        "16",
        "Equal",
    ),
    "states alone": ((STATES,), None, "16", "Equal"),
}


@pytest.mark.parametrize(("groups", "inputs", "tokens", "verdict"), BLOCKS.values(), ids=BLOCKS)
def test_the_block_is_compared_with_the_groups_of_the_plan(
    groups: tuple[CacheGroup, ...], inputs: EngineInputs | None, tokens: str, verdict: str
) -> None:
    text = f"Setting attention block size to {tokens} tokens to ensure"
    assert verdicts(text, replace(PLAN, groups=groups), inputs=inputs) == {"blockTokens": verdict}


def test_tensorrt_llm_prints_its_block_as_a_figure() -> None:
    assert verdicts("[TensorRT-LLM][INFO] Number of tokens per block: 64.") == {"blockTokens": "Different"}


def test_no_difference_has_no_cause() -> None:
    assert [each.cause for each in compare(parse_log(AGREES), PLAN, INPUTS)] == [None] * 4


def test_a_difference_without_a_trace_has_no_cause() -> None:
    assert causes("num_gpu_blocks: 4000\n") == {"blocks": None}
    assert causes("num_gpu_blocks: 4000\n", inputs=None) == {"blocks": None}


PARTS = "Model loading took {weights} GiB and 3 seconds\nEstimated CUDA graph memory: {graphs} GiB total\n"
MEMORY = PlannedMemory(weights=16 * GIB, graphs=GIB)


def test_parts_of_the_card_are_estimates_and_what_the_cache_holds_is_not() -> None:
    text = AGREES + PARTS.format(weights="15.0000", graphs="2.0")
    assert {subject: each.estimated for subject, each in differences(text, memory=MEMORY).items()} == {
        "loggedTokens": False,
        "concurrency": False,
        "maxModelLen": False,
        "kvBytes": False,
        "weights": True,
        "graphs": True,
    }


REAL = {
    "vLLM 0.7 on one card": ("vllm-0.7.3-v0.log", "llama-3.1-8b"),
    "vLLM 0.10 on two cards": ("vllm-0.10.1-v1-tp2.log", "qwen2.5-7b"),
    "vLLM 0.33 on two cards, twice": ("vllm-0.33.0-kubectl-wrapped.log", "qwen3-32b"),
}


@pytest.mark.parametrize(("name", "preset"), REAL.values(), ids=REAL)
def test_the_plan_of_what_a_log_says_agrees_with_the_log(name: str, preset: str) -> None:
    facts = parse_log((LOGS / name).read_text(errors="replace"))
    inputs, budget = EngineInputs(**facts_to_inputs(facts)), kv_memory(facts)
    assert budget is not None
    found = compare(facts, plan_cache(read_model(load_preset(preset)), inputs, budget.bytes), inputs)
    assert len(found) >= 4
    assert [each for each in found if each.verdict == "Different"] == []
