"""What a log says of an engine's flags, in the words of EngineInputs."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.startup_log import card_memory, facts_to_inputs, memory_fraction, model_name, parse_log

LOGS = Path(__file__).parents[2] / "data" / "startup_logs"

SAID: dict[str, tuple[str | None, dict[str, Any]]] = {
    "vllm-0.6.3-refused.log": (
        "meta-llama/Llama-3.1-8B-Instruct",
        {
            "engine": "vLLM",
            "version": "0.6.3.post1",
            "tensor": 1,
            "pipeline": 1,
            "dtype": "bfloat16",
            "kv_dtype": "auto",
            "block_tokens": 16,
            "max_model_len": 29000,
            "max_num_seqs": 256,
            "prefix_caching": False,
        },
    ),
    "vllm-0.8.5-v0-rocm-tp2.log": (
        "Qwen/Qwen2.5-14B-Instruct",
        {
            "engine": "vLLM",
            "version": "0.8.5.post1",
            "tensor": 2,
            "pipeline": 1,
            "dtype": "bfloat16",
            "kv_dtype": "auto",
            "max_model_len": 4096,
        },
    ),
    "vllm-0.10.1-v1-tp2.log": (
        "Qwen/Qwen2-7B-Instruct",
        {
            "engine": "vLLM",
            "version": "0.10.1.1",
            "tensor": 2,
            "pipeline": 1,
            "dtype": "bfloat16",
            "kv_dtype": "auto",
            "max_model_len": 16384,
            "max_num_batched_tokens": 2048,
            "prefix_caching": True,
        },
    ),
    "vllm-0.19.2-hybrid.log": (
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
        {
            "engine": "vLLM",
            "version": "0.19.2rc1.dev134+g97a3c2b11",
            "tensor": 1,
            "pipeline": 1,
            "data": 1,
            "decode_context": 1,
            "dtype": "bfloat16",
            "kv_dtype": "fp8",
            "state_dtype": "float32",
            "max_model_len": 131072,
            "max_num_batched_tokens": 2048,
            "max_num_seqs": 32,
            "prefix_caching": False,
            "async_scheduling": True,
            "hybrid_manager": True,
            "speculative_tokens": 3,
            "speculative": {
                "method": "mtp",
                "model": "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
                "num_speculative_tokens": 3,
            },
        },
    ),
    "vllm-0.20.2-mla-dcp-colour.log": (
        "lukealonso/GLM-5.1-NVFP4-MTP",
        {
            "engine": "vLLM",
            "version": "0.20.2rc1.dev249+g4a1b2c3d4",
            "tensor": 8,
            "pipeline": 1,
            "data": 1,
            "decode_context": 4,
            "dtype": "bfloat16",
            "kv_dtype": "fp8_ds_mla",
            "max_model_len": 202752,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 64,
            "prefix_caching": True,
            "speculative_tokens": 3,
            "speculative": {"method": "mtp", "model": "lukealonso/GLM-5.1-NVFP4-MTP", "num_speculative_tokens": 3},
        },
    ),
    "vllm-0.32.0-cpu.log": (
        "/models/tiny",
        {
            "engine": "vLLM",
            "version": "0.32.0",
            "platform": "cpu",
            "tensor": 1,
            "pipeline": 1,
            "data": 1,
            "decode_context": 1,
            "dtype": "bfloat16",
            "kv_dtype": "auto",
            "block_tokens": 32,
            "max_model_len": 2048,
            "prefix_caching": True,
        },
    ),
    "vllm-0.33.0-kubectl-wrapped.log": (
        "Qwen/Qwen3-32B",
        {
            "engine": "vLLM",
            "version": "0.33.0",
            "tensor": 2,
            "pipeline": 1,
            "data": 2,
            "decode_context": 1,
            "dtype": "bfloat16",
            "kv_dtype": "auto",
            "max_model_len": 40944,
            "max_num_seqs": 256,
            "prefix_caching": True,
        },
    ),
    "sglang-0.4.6-dense.log": (
        "Qwen/Qwen3-235B-A22B-FP8",
        {
            "engine": "SGLang",
            "tensor": 4,
            "pipeline": 1,
            "data": 1,
            "dtype": "auto",
            "kv_dtype": "auto",
            "block_tokens": 1,
            "max_model_len": 40960,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 2870,
            "prefix_caching": True,
        },
    ),
    "sglang-0.5.6-mla-mtp.log": (
        "deepseek-ai/DeepSeek-V3.2",
        {
            "engine": "SGLang",
            "tensor": 8,
            "pipeline": 1,
            "data": 8,
            "dtype": "auto",
            "kv_dtype": "fp8_e4m3",
            "block_tokens": 64,
            "max_model_len": 163840,
            "max_num_batched_tokens": 16384,
            "max_num_seqs": 256,
            "prefix_caching": False,
            "speculative_tokens": 4,
            "draft_layers": 1,
        },
    ),
    "llamacpp-b3600-old.log": (
        None,
        {
            "engine": "LlamaCpp",
            "version": "3600",
            "max_model_len": 4096,
            "max_num_batched_tokens": 512,
            "kv_dtype": "f16",
        },
    ),
    "llamacpp-b10107-slots.log": (
        None,
        {
            "engine": "LlamaCpp",
            "version": "10107",
            "max_model_len": 16384,
            "max_num_batched_tokens": 512,
            "slots": 8,
            "unified": False,
            "kv_dtype": "f16",
        },
    ),
    "tensorrt-llm-0.13.log": (
        None,
        {
            "engine": "TensorRTLLM",
            "version": "0.13.0.dev2024082000",
            "max_num_seqs": 8,
            "max_model_len": 8192,
            "block_tokens": 64,
        },
    ),
}


@pytest.mark.parametrize(("name", "expected"), SAID.items(), ids=SAID)
def test_what_a_log_says_is_in_the_words_of_the_inputs(name: str, expected: tuple[str | None, dict[str, Any]]) -> None:
    facts = parse_log((LOGS / name).read_text(errors="replace"))
    assert (model_name(facts), facts_to_inputs(facts)) == expected
    assert EngineInputs(**expected[1]).engine == expected[1]["engine"]


LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "the first of a name counts": (
        "INFO with config: dtype=float16, other_config=Other(dtype=float32), tensor_parallel_size=2",
        {"dtype": "float16", "tensor": 2},
    ),
    "None is no setting": ("args: Namespace(block_size=None, max_num_seqs=64)", {"max_num_seqs": 64}),
    "a value that is no number is none": (
        "args: Namespace(block_size='sixteen', max_num_seqs=64)",
        {"max_num_seqs": 64},
    ),
    "a count of nothing is none": ("args: Namespace(tensor_parallel_size=0, max_num_seqs=64)", {"max_num_seqs": 64}),
    "a flag that is neither on nor off is none": (
        "args: Namespace(enable_prefix_caching=maybe, disable_hybrid_kv_cache_manager=maybe, max_num_seqs=64)",
        {"max_num_seqs": 64},
    ),
    "a hybrid manager that is off": (
        "non-default args: {'disable_hybrid_kv_cache_manager': True, 'async_scheduling': False}",
        {"hybrid_manager": False, "async_scheduling": False},
    ),
    "a hybrid manager that the engine turned off": (
        "Hybrid KV cache manager is disabled for this hybrid model",
        {"hybrid_manager": False},
    ),
    "a drafter without a model": (
        "non-default args: {'speculative_config': {'method': 'ngram', 'num_speculative_tokens': 5}, 'dtype': 'half'}",
        {
            "dtype": "half",
            "speculative_tokens": 5,
            "speculative": {"method": "ngram", "num_speculative_tokens": 5},
        },
    ),
    "a drafter of which nothing is known": (
        "INFO with config: speculative_config=SpeculativeConfig(), dtype=torch.float16",
        {"dtype": "float16"},
    ),
    "a drafter as old versions print it": (
        "INFO with config: model='big', speculative_config=SpeculativeConfig(draft_model='small', num_spec_tokens=5),"
        " dtype=half",
        {"dtype": "half", "speculative_tokens": 5, "speculative": {"model": "small", "num_speculative_tokens": 5}},
    ),
    "an engine that does not say its version": (
        "Initializing an LLM engine with config: model='big', dtype=half",
        {"dtype": "half"},
    ),
    "ranks of a context": (
        "Multiplying the GPU KV cache size by the dcp_world_size 8.",
        {"decode_context": 8},
    ),
    "scheduling that the engine chose": ("Asynchronous scheduling is disabled.", {"async_scheduling": False}),
    "the type that the cache is stored in": ("Using fp8_e4m3 data type to store kv cache.", {"kv_dtype": "fp8_e4m3"}),
    "a CPU that only the device names": (
        "INFO with config: device_config=cpu, dtype=auto",
        {"dtype": "auto", "platform": "cpu"},
    ),
    "a CPU that only the pool names": ("CPU KV cache size: 16,384 tokens", {"platform": "cpu"}),
}


@pytest.mark.parametrize(("line", "expected"), LINES.values(), ids=LINES)
def test_a_line_says_its_flags(line: str, expected: dict[str, Any]) -> None:
    line = line.replace("INFO with", "LLM engine (v0.20.0) with") if line.startswith("INFO") else line
    said = facts_to_inputs(parse_log(line))
    said.pop("version", None)
    assert said == {"engine": "vLLM"} | expected


CARDS: dict[str, tuple[str, int | None, tuple[Fraction, int] | None]] = {
    "a profile": ("vllm-0.7.3-v0.log", round(Fraction("14.74") * 2**30), (Fraction(59, 100), 6)),
    "what was asked for": ("vllm-0.20.2-mla-dcp-colour.log", None, (Fraction(865, 1000), 4)),
    "a suggestion": ("vllm-0.33.0-kubectl-wrapped.log", round(Fraction("79.18") * 2**30), (Fraction(92, 100), 15)),
    "a fraction of what is free": ("sglang-0.4.6-dense.log", None, (Fraction(8, 10), 1)),
    "neither": ("llamacpp-b3600-old.log", None, None),
}


@pytest.mark.parametrize(("name", "card", "fraction"), CARDS.values(), ids=CARDS)
def test_the_card_and_the_part_of_it_are_read(
    name: str, card: int | None, fraction: tuple[Fraction, int] | None
) -> None:
    facts = parse_log((LOGS / name).read_text(errors="replace"))
    total, part = card_memory(facts), memory_fraction(facts)
    assert (None if total is None else total.bytes) == card
    assert (None if part is None else (part.value, part.line)) == fraction


def test_a_fraction_that_is_no_number_is_none() -> None:
    assert memory_fraction(parse_log("args: Namespace(gpu_memory_utilization=most, dtype='half')")) is None


def test_a_text_of_no_engine_says_no_flags() -> None:
    assert facts_to_inputs(parse_log("CUDA out of memory. Tried to allocate 2.00 MiB.")) == {}


def test_with_config_after_other_words_is_not_the_engines() -> None:
    assert parse_log("INFO loading the tokenizer with config: dtype=float16, x=1\nnum_gpu_blocks: 7").settings == ()
