"""Plans that vLLM 0.32 itself computed, each by its id: the planner's must be the same to the block."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvquota_api.amounts import Tokens
from kvquota_api.memory.blocks import blocks_for
from kvquota_api.memory.cache_plan import CachePlan
from kvquota_api.memory.errors import PlanError
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.layers import ModelShape
from kvquota_api.memory.models.reading import read_model
from kvquota_api.memory.vllm import plan_cache
from kvquota_api.memory.vllm.resolving import Settings, settle

DATA = Path(__file__).parents[2] / "data" / "memory"
FILES = ("live.json", "live_more.json")

# id: why the planner's plan is another one.
EXPLAINED: dict[str, str] = {}

# id: why vLLM refuses what the planner plans without a word; all of them are kernels of other things than the cache.
OTHER_KERNELS: dict[str, str] = {
    "cpu-quant-qwen3-moe-fp8-block-x3": "no kernel for weights in blocks of fp8 on the CPU",
    "sm80-quant-qwen3-moe-fp8-block-x2": "no kernel for experts in fp8 on an A100",
    "sm80-quant-qwen3-next-fp8-block-x2": "no kernel for experts in fp8 on an A100",
    "sm90-twist-dsv3-odd-rope-x0": "no kernel for prefill with position parts of this width",
    "sm90-twist-dsv3-odd-rope-x1": "no kernel for prefill with position parts of this width",
    "sm90-twist-dsv3-odd-rope-x2": "no kernel for prefill with position parts of this width",
}

# Architecture: settings that vLLM changes for it alone, and that its plan does not depend on.
OWN_SETTINGS: dict[str, frozenset[str]] = {
    "HrmTextForCausalLM": frozenset({"enable_prefix_caching"}),
    "Lfm2VlForConditionalGeneration": frozenset({"mamba_cache_mode"}),
    "DiffusionGemmaForBlockDiffusion": frozenset({"max_num_seqs", "num_speculative_tokens"}),
}

Row = Mapping[str, Any]


@cache
def recorded(name: str) -> Mapping[str, Any]:
    path = DATA / name
    return json.loads(path.read_text()) if path.exists() else {"configs": {}, "rows": []}


def planned_rows() -> Iterator[tuple[str, Row]]:
    """Rows of models that vLLM took, with the file that they are in."""
    for name in FILES:
        yield from ((name, row) for row in recorded(name)["rows"] if "result" in row)


@cache
def shape_of(name: str, config: str) -> ModelShape:
    return read_model(recorded(name)["configs"][config])


def inputs_of(args: Row) -> EngineInputs:
    return EngineInputs(
        engine="vLLM",
        version="0.32.0",
        platform=args["platform"],
        tensor=args["tp"],
        pipeline=args["pp"],
        decode_context=args.get("dcp", 1),
        dtype=args.get("dtype", "auto"),
        kv_dtype=args.get("kv_cache_dtype", "auto"),
        state_dtype=args.get("mamba_ssm_cache_dtype", "auto"),
        block_tokens=args.get("block_size"),
        max_model_len=args.get("max_model_len"),
        max_num_batched_tokens=args.get("max_num_batched_tokens"),
        max_num_seqs=args.get("max_num_seqs"),
        prefix_caching=args.get("enable_prefix_caching"),
        async_scheduling=args.get("async_scheduling"),
        hybrid_manager=not args.get("disable_hybrid_kv_cache_manager", False),
        speculative=args.get("speculative_config"),
    )


def planned(plan: CachePlan) -> dict[str, Any]:
    return {
        "num_blocks": plan.blocks,
        "bytes_per_block": plan.bytes_per_block,
        "kv_cache_size_tokens": plan.logged_tokens,
        "max_concurrency": float(plan.concurrency),
        "max_model_len_used": plan.max_model_len,
        "blocks_per_request": [blocks_for([group.cost], Tokens(plan.max_model_len)) for group in plan.groups],
        "min_bytes_needed_one_request": plan.min_bytes,
    }


def recorded_plan(row: Row, plan: CachePlan) -> dict[str, Any]:
    """What vLLM said; what it did not say of a row is taken over from the plan."""
    result = row["result"]
    of_stages = result["bytes_per_block"]
    return {
        "num_blocks": result["num_blocks"],
        "bytes_per_block": max(of_stages) if isinstance(of_stages, list) else of_stages,
        "kv_cache_size_tokens": result["kv_cache_size_tokens"],
        "max_concurrency": result["max_concurrency"],
        "max_model_len_used": result.get("max_model_len_used", row["resolved"]["max_model_len"]),
        "blocks_per_request": [
            group["blocks_per_request"] for group in result["groups"] for _ in range(group.get("count", 1))
        ],
        "min_bytes_needed_one_request": result.get("min_bytes_needed_one_request", plan.min_bytes),
    }


def plan_of(name: str, row: Row) -> CachePlan:
    return plan_cache(shape_of(name, row["config"]), inputs_of(row["args"]), row["args"]["kv_cache_memory_bytes"])


@pytest.mark.parametrize(
    ("name", "row"),
    [pytest.param(*case, id=case[1]["id"]) for case in planned_rows() if case[1]["id"] not in EXPLAINED],
)
def test_plan_is_the_one_that_vllm_computed(name: str, row: Row) -> None:
    plan = plan_of(name, row)
    assert planned(plan) == recorded_plan(row, plan)


def test_explained_plans_are_really_other_ones() -> None:
    explained = [(name, row) for name, row in planned_rows() if row["id"] in EXPLAINED]
    assert [row["id"] for name, row in explained if is_planned_alike(name, row)] == []


def is_planned_alike(name: str, row: Row) -> bool:
    try:
        plan = plan_of(name, row)
    except PlanError:
        return False
    return planned(plan) == recorded_plan(row, plan)


def test_rows_are_there_and_explanations_are_of_rows() -> None:
    ids = [row["id"] for _, row in planned_rows()]
    assert len(ids) >= 717
    assert len(ids) == len(set(ids))
    assert set(EXPLAINED) <= set(ids)
    assert len(EXPLAINED) <= len(ids) // 100


def settled(found: Settings) -> dict[str, Any]:
    return {
        "max_model_len": found.max_model_len,
        "max_num_batched_tokens": found.batched_tokens,
        "max_num_seqs": found.sequences,
        "max_num_encoder_input_tokens": found.encoder_tokens,
        "max_concurrent_batches": found.batches,
        "max_in_flight_tokens": found.in_flight,
        "enable_prefix_caching": found.prefix_caching,
        "mamba_cache_mode": "align" if found.aligned_states else "none",
        "num_speculative_tokens": found.speculation.tokens,
        "disable_hybrid_kv_cache_manager": not found.hybrid_manager,
        "dtype": found.compute,
    }


@pytest.mark.parametrize(
    ("name", "row"),
    [pytest.param(*case, id=case[1]["id"]) for case in planned_rows() if case[1]["id"] not in EXPLAINED],
)
def test_settings_are_those_that_vllm_resolved(name: str, row: Row) -> None:
    found = settled(settle(shape_of(name, row["config"]), inputs_of(row["args"])))
    same = found.keys() - OWN_SETTINGS.get(row["hf_architecture"], frozenset())
    assert {field: found[field] for field in same} == {field: row["resolved"][field] for field in same}


def refused_rows() -> Iterator[Row]:
    """What vLLM refused to start with."""
    yield from recorded("live_more.json")["refusals"]


def is_planned_silently(row: Row) -> bool:
    """Neither refused, nor warned of, nor with more memory needed than there is."""
    try:
        plan = plan_of("live_more.json", row)
    except PlanError:
        return False
    return not plan.warnings and plan.min_bytes <= row["args"]["kv_cache_memory_bytes"]


def test_what_vllm_refuses_is_refused_or_warned_of() -> None:
    assert {row["id"] for row in refused_rows() if is_planned_silently(row)} == OTHER_KERNELS.keys()
