"""Why an engine's figures differ from a plan: what every engine's log can tell."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.memory.cache_plan import CacheGroup, CachePlan
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.startup_log import (
    Difference,
    PlannedMemory,
    compare,
    parse_log,
)

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
SLIDING = CacheGroup("Sliding", 26, 2 * MIB, LayerGroup(kind="Sliding", block_tokens=32, window_tokens=1024))


def differences(text: str, plan: CachePlan = PLAN, **given: Any) -> dict[str, Difference]:
    found = compare(parse_log(text), plan, given.get("inputs", INPUTS), given.get("memory"))
    by_subject: dict[str, Difference] = {each.subject: each for each in found}
    assert len(by_subject) == len(found)
    return by_subject


def causes(text: str, plan: CachePlan = PLAN, **given: Any) -> dict[str, str | None]:
    found = differences(text, plan, **given)
    return {subject: each.cause for subject, each in found.items() if each.verdict == "Different"}


CAUSES: dict[str, tuple[str, CachePlan, EngineInputs | None, dict[str, str | None]]] = {
    "blocks that the user asked for": (
        "Overriding num_gpu_blocks=5120 with num_gpu_blocks_override=64\nnum_gpu_blocks: 64\n",
        PLAN,
        INPUTS,
        {"blocks": "the engine was told to take 64 blocks (line 1), whatever fits"},
    ),
    "requests of another length": (
        "GPU KV cache size: 80,000 tokens, Maximum concurrency for 4,096 tokens per request: 19.53x\n",
        PLAN,
        INPUTS,
        {
            "loggedTokens": (
                "the engine counts requests of 4096 tokens (line 1) and the plan of 8192: plan with --max-model-len"
                " 4096"
            ),
            "concurrency": (
                "the engine counts requests of 4096 tokens (line 1) and the plan of 8192: plan with --max-model-len"
                " 4096"
            ),
            "maxModelLen": None,
        },
    ),
    "a length that was cut to what fits": (
        "Auto-fit max_model_len: reduced from 8192 to 4096 to fit\n"
        "Maximum concurrency for 4,096 tokens per request: 10.00x\n",
        PLAN,
        INPUTS,
        {"maxModelLen": "the engine cut its longest request to what fits (line 1): plan with --max-model-len auto"},
    ),
    "other flags": (
        "args: Namespace(tensor_parallel_size=2, kv_cache_dtype='auto', max_num_batched_tokens=8192,"
        " enable_prefix_caching=False)\nnum_gpu_blocks: 4000\n",
        PLAN,
        replace(INPUTS, max_num_batched_tokens=2048, prefix_caching=True),
        {
            "blocks": (
                "the plan was made for other flags: --tp is 2 for the engine and 1 for the plan,"
                " --max-num-batched-tokens is"
                " 8192 for the engine and 2048 for the plan, --prefix-caching is off for the engine and on for the plan"
            )
        },
    ),
    "flags that the plan left to the engine are not other flags": (
        "args: Namespace(kv_cache_dtype='fp8', max_num_batched_tokens=8192)\nnum_gpu_blocks: 4000\n",
        PLAN,
        replace(INPUTS, kv_dtype="auto"),
        {"blocks": None},
    ),
    "types by other names are not other flags": (
        "args: Namespace(dtype='half', kv_cache_dtype='fp8_ds_mla')\nnum_gpu_blocks: 4000\n",
        PLAN,
        replace(INPUTS, dtype="fp16", kv_dtype="fp8_e4m3"),
        {"blocks": None},
    ),
    "another type": (
        "args: Namespace(kv_cache_dtype='fp8')\nnum_gpu_blocks: 4000\n",
        PLAN,
        INPUTS,
        {"blocks": "the plan was made for other flags: --kv-dtype is 'fp8' for the engine and 'bf16' for the plan"},
    ),
    "a hybrid manager that the engine turned off": (
        "Hybrid KV cache manager is disabled for this hybrid model\nnum_gpu_blocks: 4000\n",
        PLAN,
        INPUTS,
        {
            "blocks": (
                "the plan was made for other flags: the hybrid KV cache manager is off for the engine and on for the"
                " plan"
            )
        },
    ),
    "another block": (
        "Setting attention block size to 544 tokens to ensure\nnum_gpu_blocks: 4000\n",
        replace(PLAN, groups=(replace(FULL, cost=LayerGroup(kind="Full", block_tokens=528)),)),
        INPUTS,
        {
            "blocks": "the engine uses blocks of 544 tokens (line 1) and the plan of 528",
            "blockTokens": None,
        },
    ),
    "a block that was asked for": (
        "args: Namespace(block_size=64)\nForcing kv cache block size to 64 for FLASHMLA backend\n",
        PLAN,
        replace(INPUTS, block_tokens=16),
        {"blockTokens": "the plan was made for other flags: --block-size is 64 for the engine and 16 for the plan"},
    ),
    "latents that are packed": (
        "Using DeepSeek's fp8_ds_mla KV cache format\nnum_gpu_blocks: 4000\n",
        PLAN,
        INPUTS,
        {
            "blocks": (
                "the engine packs latents into 656 bytes (fp8_ds_mla, line 1) and the plan is for bf16: plan with"
                " --kv-dtype fp8_ds_mla"
            )
        },
    ),
    "latents that are packed in the plan too": (
        "Using DeepSeek's fp8_ds_mla KV cache format\nnum_gpu_blocks: 4000\n",
        PLAN,
        replace(INPUTS, kv_dtype="fp8"),
        {"blocks": None},
    ),
    "other groups": (
        "Add 8 padding layers, may waste at most 15.38% KV cache memory\nnum_gpu_blocks: 4000\n",
        replace(PLAN, groups=(FULL, SLIDING)),
        INPUTS,
        {"blocks": "the engine fills up its groups with 8 layers (line 1) and the plan with 6"},
    ),
    "the same groups, in each of two engines": (
        "".join(
            f"(EngineCore_DP{rank} pid={20 + rank}) Add {layers} padding layers, may waste at most 15.38%\n"
            for rank in range(2)
            for layers in (6, 4)
        )
        + "num_gpu_blocks: 4000\n",
        replace(PLAN, groups=(FULL, SLIDING, replace(SLIDING, layers=28))),
        INPUTS,
        {"blocks": None},
    ),
    "tokens of all ranks of a context": (
        "GPU KV cache size: 327,680 tokens\n",
        PLAN,
        replace(INPUTS, decode_context=4),
        {"loggedTokens": "the engine counts all 4 decode-context ranks and the plan one of them"},
    ),
    "tokens of one rank of a context": (
        "LLM engine (v0.11.1) with config: decode_context_parallel_size=4,\nGPU KV cache size: 20,480 tokens\n",
        PLAN,
        None,
        {"loggedTokens": "the engine counts one of 4 decode-context ranks and the plan all of them"},
    ),
    "blocks of one engine of several": (
        "num_gpu_blocks: 2560\n",
        PLAN,
        replace(INPUTS, data=2),
        {"blocks": "the engine counts one of 2 data-parallel ranks and the plan all of them"},
    ),
    "neither one rank nor all": (
        "num_gpu_blocks: 2000\n",
        PLAN,
        replace(INPUTS, data=2),
        {"blocks": None},
    ),
    "the older meaning of the size": (
        "GPU KV cache size: 40,960 tokens\n",
        replace(PLAN, groups=(FULL, SLIDING)),
        INPUTS,
        {
            "loggedTokens": (
                "the pool is the same: the engine prints it in blocks divided by groups, as up to 0.20.1; set the"
                " version"
                " of the engine"
            )
        },
    ),
    "the newer meaning of the size": (
        "GPU KV cache size: 81,920 tokens\n",
        replace(PLAN, groups=(FULL, SLIDING), logged_tokens=40_960),
        INPUTS,
        {
            "loggedTokens": (
                "the pool is the same: the engine prints it in longest requests, as since 0.20.2; set the version of"
                " the"
                " engine"
            )
        },
    ),
    "another budget": (
        "Available KV cache memory: 8.0 GiB\nnum_gpu_blocks: 4096\nGPU KV cache size: 65,536 tokens\n",
        PLAN,
        INPUTS,
        {
            "blocks": "the engine has 8 GiB for its cache (line 1) and the plan 10 GiB",
            "loggedTokens": "the engine has 8 GiB for its cache (line 1) and the plan 10 GiB",
            "kvBytes": None,
        },
    ),
    "twice the blocks in the same memory": (
        "Available KV cache memory: 10.0 GiB\nnum_gpu_blocks: 10240\nGPU KV cache size: 163,840 tokens\n",
        PLAN,
        INPUTS,
        {
            "blocks": "the engine keeps twice as much in the same memory: compare --kv-dtype and --tp",
            "loggedTokens": "the engine keeps twice as much in the same memory: compare --kv-dtype and --tp",
        },
    ),
    "half the blocks in the same memory": (
        "Available KV cache memory: 10.0 GiB\nnum_gpu_blocks: 2560\n",
        PLAN,
        INPUTS,
        {"blocks": "the engine keeps half as much in the same memory: compare --kv-dtype and --tp"},
    ),
    "a third of the blocks in the same memory": (
        "Available KV cache memory: 10.0 GiB\nnum_gpu_blocks: 1700\n",
        PLAN,
        INPUTS,
        {"blocks": None},
    ),
    "a budget that was told": (
        "non-default args: {'kv_cache_memory_bytes': 8589934592}\n",
        PLAN,
        INPUTS,
        {"kvBytes": "the engine was told the size of its cache (line 1): plan with --kv-memory 8589934592"},
    ),
    "graphs that the plan knows nothing of": (
        "Estimated CUDA graph memory: 2.0 GiB total\nAvailable KV cache memory: 8.0 GiB\n",
        PLAN,
        INPUTS,
        {"kvBytes": "the engine sets 2 GiB aside for CUDA graphs (line 1)"},
    ),
    "graphs that are not the difference": (
        "Estimated CUDA graph memory: 0.5 GiB total\nAvailable KV cache memory: 8.0 GiB\n",
        PLAN,
        INPUTS,
        {"kvBytes": None},
    ),
    "memory that others hold": (
        "Initial free memory: 77.0 GiB; Requested memory: 0.9 (util), 71.1 GiB\n"
        "the current vLLM instance can use total_gpu_memory (79.00GiB) x gpu_memory_utilization (0.90) = 71.10GiB\n"
        "Available KV cache memory: 8.0 GiB\n",
        PLAN,
        INPUTS,
        {"kvBytes": "2 GiB of the card were in use before the engine started (line 1)"},
    ),
    "memory that others hold is not the difference": (
        "Initial free memory: 78.9 GiB; Requested memory: 0.9 (util), 71.1 GiB\n"
        "the current vLLM instance can use total_gpu_memory (79.00GiB) x gpu_memory_utilization (0.90) = 71.10GiB\n"
        "Available KV cache memory: 8.0 GiB\n",
        PLAN,
        INPUTS,
        {"kvBytes": None},
    ),
}


@pytest.mark.parametrize(("text", "plan", "inputs", "expected"), CAUSES.values(), ids=CAUSES)
def test_a_difference_has_the_cause_that_the_log_tells(
    text: str, plan: CachePlan, inputs: EngineInputs | None, expected: dict[str, str | None]
) -> None:
    assert causes(text, plan, inputs=inputs) == expected


PARTS = "Model loading took {weights} GiB and 3 seconds\nEstimated CUDA graph memory: {graphs} GiB total\n"
MEMORY = PlannedMemory(weights=16 * GIB, graphs=GIB)
APART = {
    "weights": (
        "17.0000",
        "1.0",
        "9.0",
        "the difference is that of weights: 17 GiB (line 1), planned 16 GiB",
    ),
    "graphs": (
        "16.0000",
        "3.0",
        "8.0",
        "the difference is that of CUDA graphs: 3 GiB (line 2), planned 1 GiB",
    ),
    "both": (
        "17.0000",
        "3.0",
        "7.0",
        "the difference is that of weights: 17 GiB (line 1), planned 16 GiB and CUDA graphs: 3 GiB (line 2), planned"
        " 1 GiB",
    ),
    "neither": ("16.0000", "1.0", "8.0", None),
}


@pytest.mark.parametrize(("weights", "graphs", "available", "cause"), APART.values(), ids=APART)
def test_a_budget_differs_by_what_the_other_parts_take(
    weights: str, graphs: str, available: str, cause: str | None
) -> None:
    text = PARTS.format(weights=weights, graphs=graphs) + f"Available KV cache memory: {available} GiB\n"
    assert causes(text, memory=MEMORY)["kvBytes"] == cause


def test_weights_differ_by_the_flags_that_change_weights() -> None:
    text = (
        "args: Namespace(tensor_parallel_size=2, enable_prefix_caching=False)\n"
        "Model loading took 8.0000 GiB and 3 seconds\n"
    )
    inputs = replace(INPUTS, prefix_caching=True)
    assert causes(text, inputs=inputs, memory=MEMORY) == {
        "weights": "the plan was made for other flags: --tp is 2 for the engine and 1 for the plan"
    }


QUANTISED = {
    "far smaller": ("5.6000", "the engine loads them quantised by 'awq' (line 1): plan with --weight-dtype"),
    "hardly smaller": ("15.0000", None),
    "larger": ("17.0000", None),
}


@pytest.mark.parametrize(("weights", "cause"), QUANTISED.values(), ids=QUANTISED)
def test_quantised_weights_are_far_smaller(weights: str, cause: str | None) -> None:
    text = f"args: Namespace(quantization='awq')\nModel loading took {weights} GiB and 3 seconds\n"
    assert causes(text, memory=MEMORY) == {"weights": cause}


def test_weights_that_are_not_quantised_have_no_such_cause() -> None:
    assert causes("Model loading took 5.6000 GiB and 3 seconds\n", memory=MEMORY) == {"weights": None}
