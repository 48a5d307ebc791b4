"""Why an engine's figures differ from a plan, where its own flags, model or version are the reason; what is taken."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from kvquota_api.memory.cache_plan import CachePlan
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.layers import ModelShape
from kvquota_api.memory.models.reading import read_model
from kvquota_api.memory.planning import plan_cache
from kvquota_api.memory.presets import load_preset
from kvquota_api.memory.startup_log import (
    Difference,
    PlannedMemory,
    compare,
    facts_to_inputs,
    kv_memory,
    memory_fraction,
    parse_log,
)
from kvquota_api.memory.startup_log.cases import Subject

LOGS = Path(__file__).parents[2] / "data" / "startup_logs"
GIB = 2**30


def planned(text: str, preset: str) -> tuple[CachePlan, EngineInputs, ModelShape]:
    """What the log's own flags and budget give for that model."""
    facts = parse_log(text)
    model, inputs, budget = read_model(load_preset(preset)), EngineInputs(**facts_to_inputs(facts)), kv_memory(facts)
    size = 0 if budget is None or facts.engine == "LlamaCpp" else budget.bytes
    return plan_cache(model, inputs, size), inputs, model


def differences(text: str, preset: str, memory: PlannedMemory | None = None) -> dict[str, Difference]:
    plan, inputs, model = planned(text, preset)
    return {each.subject: each for each in compare(parse_log(text), plan, inputs, memory, model)}


def log(name: str) -> str:
    return (LOGS / name).read_text(errors="replace")


REFUSED = log("vllm-0.15.1-refused.log")
SLIDING = log("sglang-sliding.log")
HYBRID = log("sglang-hybrid.log")
SLOTS = log("llamacpp-b10107-slots.log")
OLD = log("llamacpp-b3600-old.log")
EARLY = log("sglang-early.log")
ALL_STAGES = (
    "vLLM 0.15.1 (line 1) counts all 48 layers as needed on one GPU, and the plan the 24 of one of 2 pipeline stages,"
    " which are all that a GPU keeps (vLLM issue 34076): use 0.19.0 or newer"
)
CAUSES: dict[str, tuple[str, str, Subject, str | None]] = {
    "all stages counted as one": (REFUSED, "qwen3-30b-a3b", "minBytes", ALL_STAGES),
    "all stages counted, by a version that counts one": (
        REFUSED.replace("0.15.1", "0.19.0"),
        "qwen3-30b-a3b",
        "minBytes",
        None,
    ),
    "one stage alone": (
        REFUSED.replace("pipeline_parallel_size=2", "pipeline_parallel_size=1").replace("24.0 GiB", "48.0 GiB"),
        "qwen3-30b-a3b",
        "minBytes",
        None,
    ),
    "apart by something else": (REFUSED.replace("24.0 GiB", "20.0 GiB"), "qwen3-30b-a3b", "minBytes", None),
    "a share of sliding layers": (
        SLIDING,
        "mimo-v2-flash",
        "loggedTokens",
        "the engine was started with swa_full_tokens_ratio=1.0 (line 1) and the plan is for the default of 0.8: it has"
        " no option for another",
    ),
    "the default share": (
        SLIDING.replace("ratio=1.0", "ratio=0.8"),
        "mimo-v2-flash",
        "loggedTokens",
        None,
    ),
    "a share that is no number": (
        SLIDING.replace("ratio=1.0", "ratio=most"),
        "mimo-v2-flash",
        "loggedTokens",
        None,
    ),
    "a share of layers that the model has not": (
        SLIDING.replace("context_length=None", "context_length=40960"),
        "qwen3-8b",
        "loggedTokens",
        None,
    ),
    "states of few sequences": (
        HYBRID,
        "nemotron-3-nano-30b-a3b",
        "loggedTokens",
        "the engine keeps the states of 8 sequences (line 3) and the plan of as many as 0.9 of the KV cache holds: plan"
        " with --max-num-seqs 8 --no-prefix-caching",
    ),
    "a share of states": (
        "server_args=ServerArgs(context_length=8192, mamba_full_memory_ratio=0.5)\n"
        "[2026-03-01 09:01:41 TP0] KV Cache is allocated. #tokens: 1557504, K size: 4.46 GB, V size: 4.46 GB\n",
        "nemotron-3-nano-30b-a3b",
        "loggedTokens",
        "the engine was started with mamba_full_memory_ratio=0.5 (line 1) and the plan is for the default of 0.9: it"
        " has no option for another",
    ),
    "tokens that are capped": (
        "server_args=ServerArgs(context_length=8192, max_total_tokens=20000)\n"
        + EARLY.replace("max_total_num_tokens=40960", "max_total_num_tokens=20000"),
        "llama-3.1-8b",
        "loggedTokens",
        "the engine was told to keep at most 20000 tokens (max_total_tokens, line 1), whatever fits",
    ),
    "a cap above what fits": (
        "server_args=ServerArgs(context_length=8192, max_total_tokens=90000)\n"
        + EARLY.replace("max_total_num_tokens=40960", "max_total_num_tokens=20000"),
        "llama-3.1-8b",
        "loggedTokens",
        None,
    ),
    "another architecture": (
        EARLY,
        "deepseek-v3",
        "loggedTokens",
        "the engine's model is a 'LlamaForCausalLM' (line 2) and the plan's a 'DeepseekV3ForCausalLM': plan with the"
        " engine's model",
    ),
    "another model of one architecture": (EARLY, "llama-3.1-70b", "loggedTokens", None),
    "another number of layers": (
        OLD,
        "llama-3.1-405b",
        "kvBytes",
        "the engine's model has 32 layers (line 4) and the plan's 126: plan with the engine's model",
    ),
    "a file without latents": (
        SLOTS,
        "deepseek-v2-lite",
        "kvBytes",
        "the engine keeps keys and values of every head (line 12) and the plan latents: its GGUF file was made before"
        " April 2025, without the tensors of latent attention: plan with --no-mla",
    ),
    "neither latents nor whole heads": (
        SLOTS.replace("size = 4320.00", "size = 4000.00"),
        "deepseek-v2-lite",
        "kvBytes",
        None,
    ),
    "another model of as many layers": (OLD, "llama-2-7b", "kvBytes", None),
}


@pytest.mark.parametrize(("text", "preset", "subject", "cause"), CAUSES.values(), ids=CAUSES)
def test_a_difference_that_an_engine_explains_has_its_cause(
    text: str, preset: str, subject: Subject, cause: str | None
) -> None:
    found = differences(text, preset)[subject]
    assert (found.verdict, found.cause) == ("Different", cause)


def test_without_its_model_the_stages_are_not_known() -> None:
    plan, inputs, _ = planned(REFUSED, "qwen3-30b-a3b")
    assert [(each.subject, each.cause) for each in compare(parse_log(REFUSED), plan, inputs)] == [("minBytes", None)]


def test_layers_that_keep_nothing_are_no_stages() -> None:
    plan, inputs, model = planned(REFUSED, "qwen3-30b-a3b")
    half = replace(plan, groups=(replace(plan.groups[0], layers=24),))
    assert [each.cause for each in compare(parse_log(REFUSED), half, replace(inputs, pipeline=1), None, model)] == [
        "the plan was made for other flags: --pp is 2 for the engine and 1 for the plan"
    ]


def test_a_version_that_cannot_be_read_explains_nothing() -> None:
    plan, inputs, model = planned(REFUSED, "qwen3-30b-a3b")
    text = REFUSED.replace("v0.15.1", "v0dev")
    assert [each.cause for each in compare(parse_log(text), plan, inputs, None, model)] == [None]


CONTEXTS = {
    "as the log says": ({}, "Equal", None),
    "another context": (
        {"max_model_len": 8192},
        "Different",
        "the plan was made for other flags: --max-model-len is 4096 for the engine and 8192 for the plan",
    ),
    "another type": (
        {"kv_dtype": "q8_0"},
        "Different",
        "the plan was made for other flags: --kv-dtype is 'f16' for the engine and 'q8_0' for the plan",
    ),
    "another context and the same type by another name": (
        {"max_model_len": 8192, "kv_dtype": "fp16"},
        "Different",
        "the plan was made for other flags: --max-model-len is 4096 for the engine and 8192 for the plan",
    ),
    "the same type by another name": ({"kv_dtype": "fp16"}, "Equal", None),
    "the same context in other slots": ({"kv_dtype": "float16", "slots": 2}, "Equal", None),
}


@pytest.mark.parametrize(("flags", "verdict", "cause"), CONTEXTS.values(), ids=CONTEXTS)
def test_what_llama_cpp_takes_is_compared_with_what_the_plan_needs(
    flags: dict[str, object], verdict: str, cause: str | None
) -> None:
    facts, model = parse_log(OLD), read_model(load_preset("llama-3.1-8b"))
    inputs = EngineInputs(**(facts_to_inputs(facts) | flags))
    said = {each.subject: each for each in compare(facts, plan_cache(model, inputs, 0), inputs, None, model)}
    assert (said["kvBytes"].verdict, said["kvBytes"].cause) == (verdict, cause)


def test_a_step_more_is_a_difference_where_the_need_is_exact() -> None:
    text = OLD.replace("KV self size  =  512.00 MiB", "KV self size  =  512.02 MiB")
    assert differences(text, "llama-3.1-8b")["kvBytes"].verdict == "Different"


def test_keys_and_values_of_other_types_are_told_apart() -> None:
    facts = parse_log(log("llamacpp-b6000-swa.log"))
    assert facts_to_inputs(facts)["kv_dtype"] == "q8_0/f16"


def test_what_tensorrt_llm_rounded_up_is_not_rounded_up_again() -> None:
    text = log("tensorrt-llm-0.13.log")
    found = differences(text, "llama-2-7b")
    assert [(found[name].verdict, found[name].delta) for name in ("blocks", "loggedTokens")] == [
        ("WithinRounding", Fraction(-1)),
        ("WithinRounding", Fraction(-64)),
    ]
    fewer = differences(text.replace("pool: 631", "pool: 630"), "llama-2-7b")
    assert fewer["blocks"].verdict == "Different"


def test_a_budget_that_the_plan_passes_is_another_one() -> None:
    text = "Available KV cache memory: 10.0 GiB\nnum_gpu_blocks: 5120\n"
    plan, _, _ = planned(text, "llama-3.1-8b")
    above = replace(plan, kv_bytes=10 * GIB + 6 * 2**20, blocks=5123)
    found = {each.subject: each.verdict for each in compare(parse_log(text), above)}
    assert found == {"blocks": "Different", "kvBytes": "WithinRounding"}


def test_what_the_plan_has_from_the_log_is_no_agreement() -> None:
    memory = PlannedMemory(kv=5 * GIB, taken=frozenset({"kvBytes"}))
    found = differences(EARLY, "llama-3.1-8b", memory)
    assert {subject: each.verdict for subject, each in found.items()} == {
        "loggedTokens": "WithinRounding",
        "kvBytes": "TakenFromLog",
    }
    assert differences(EARLY, "llama-3.1-8b", replace(memory, taken=frozenset()))["kvBytes"].verdict == "Equal"


PARTS = {
    "another part": (
        Fraction(9, 10),
        "the engine may use 0.8 of the card (line 1) and the plan 0.9: plan with --gpu-memory-utilization 0.8",
    ),
    "the same part": (Fraction(8, 10), None),
    "no part": (None, None),
}


@pytest.mark.parametrize(("part", "cause"), PARTS.values(), ids=PARTS)
def test_another_part_of_the_card_is_the_cause_of_another_budget(part: Fraction | None, cause: str | None) -> None:
    text = "server_args=ServerArgs(context_length=8192, mem_fraction_static=0.8)\n" + EARLY
    plan, inputs, model = planned(text, "llama-3.1-8b")
    found = compare(parse_log(text), replace(plan, kv_bytes=6 * GIB), inputs, PlannedMemory(part=part), model)
    assert [each.cause for each in found if each.subject == "kvBytes"] == [cause]


def test_a_size_that_the_plan_was_told_is_the_cause_of_another_budget() -> None:
    found = differences(EARLY, "llama-3.1-8b", PlannedMemory(kv=6 * GIB))["kvBytes"]
    assert found.cause == "the plan was told 6 GiB and the engine has 5 GiB (line 3): plan without --kv-memory"


def test_the_smallest_card_is_compared_as_the_plan_is_of_it() -> None:
    text = "".join(
        f"(Worker_TP{rank} pid={rank}) Free memory on device ({total}/{total} GiB) on startup. Desired GPU memory"
        f" utilization is ({part}, 70.0 GiB).\n"
        for rank, total, part in ((0, "79.18", "0.9"), (1, "79.11", "0.85"))
    )
    facts, (plan, _, _) = parse_log(text), planned(EARLY, "llama-3.1-8b")
    (card,) = compare(facts, plan, memory=PlannedMemory(card=round(Fraction("79.11") * GIB)))
    (other,) = compare(facts, plan, memory=PlannedMemory(card=80 * GIB))
    part = memory_fraction(facts)
    assert (card.verdict, card.line, card.cause) == ("Equal", 2, None)
    assert other.cause == (
        "the plan was told 80 GiB and the engine's smallest card has 79.11 GiB (line 2): plan without --gpu-memory"
    )
    assert part is not None
    assert (part.value, part.line) == (Fraction("0.85"), 2)


EXACT = {
    "that may be the same": ("0.9", Fraction("0.9"), Fraction(1, 20_000), 2),
    "one of them less": ("0.85", Fraction("0.85"), Fraction(1, 200), 1),
}


@pytest.mark.parametrize(("coarse", "value", "rounding", "line"), EXACT.values(), ids=EXACT)
def test_of_parts_of_several_processes_the_least_counts_as_exactly_as_it_is_printed(
    coarse: str, value: Fraction, rounding: Fraction, line: int
) -> None:
    text = (
        "(Worker_TP1 pid=2) Free memory on device (79.0/79.0 GiB) on startup. Desired GPU memory utilization is"
        f" ({coarse}, 70.0 GiB).\n"
        "(Worker_TP0 pid=1) The current --gpu-memory-utilization=0.9000 is equivalent to 0.89\n"
    )
    part = memory_fraction(parse_log(text))
    assert part is not None
    assert (part.value, part.rounding, part.line) == (value, rounding, line)


def test_the_shortest_of_the_printed_lengths_is_planned() -> None:
    text = (
        "(EngineCore_DP0 pid=3) Maximum concurrency for 8,192 tokens per request: 10.00x\n"
        "(EngineCore_DP1 pid=4) Maximum concurrency for 4,096 tokens per request: 20.00x\n"
    )
    assert facts_to_inputs(parse_log(text))["max_model_len"] == 4096
