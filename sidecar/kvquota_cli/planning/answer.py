"""A plan as JSON: the names and their order are a contract, numbers are exact, what is not known is null.

Sizes are bytes on one GPU, lengths are tokens, counts are of one engine (with --dp: of one of its copies).
"""

from __future__ import annotations

from typing import Any, Final

from kvquota_api.amounts import Tokens
from kvquota_api.memory.advice import Advice
from kvquota_api.memory.blocks import blocks_for
from kvquota_api.memory.cache_plan import CacheGroup, CachePlan
from kvquota_api.memory.capacity import Capacity
from kvquota_api.memory.partition import Partition
from kvquota_cli.planning.flags import ENGINES
from kvquota_cli.planning.report import Report

_NAMES: Final = {name: option for option, name in ENGINES.items()}


def answer(report: Report) -> dict[str, Any]:
    """What is printed."""
    plan, inputs = report.plan, report.plan.inputs
    return {
        "model": report.name,
        "architecture": plan.model.architecture,
        "engine": _NAMES[inputs.engine],
        "version": inputs.version,
        "platform": inputs.platform,
        "parallelism": {
            "tensor": inputs.tensor,
            "pipeline": inputs.pipeline,
            "data": inputs.data,
            "decodeContext": inputs.decode_context,
        },
        "fits": plan.problem is None,
        "problem": None if plan.problem is None else {"reason": plan.problem.reason, "message": str(plan.problem)},
        **_cache(plan.cache),
        "partition": None if plan.partition is None else _partition(plan.partition),
        "capacity": [_capacity(line) for line in report.capacity],
        "advice": [_advice(each) for each in report.advice],
        "assumptions": list(plan.assumptions),
        "warnings": list(report.warnings),
    }


def _cache(cache: CachePlan | None) -> dict[str, Any]:
    if cache is None:
        return dict.fromkeys(_CACHE_FIELDS) | {"groups": []}
    return {
        "maxModelLen": cache.max_model_len,
        "bytesPerToken": cache.bytes_per_token,
        "bytesPerBlock": cache.bytes_per_block,
        "blockTokens": cache.block_tokens,
        "blocks": cache.blocks,
        "nullBlocks": cache.null_blocks,
        "kvBytes": cache.kv_bytes,
        "minBytes": cache.min_bytes,
        "tokens": cache.tokens,
        "loggedTokens": cache.logged_tokens,
        "concurrency": float(cache.concurrency),
        "groups": [_group(group, cache.max_model_len) for group in cache.groups],
    }


_CACHE_FIELDS: Final = (
    "maxModelLen", "bytesPerToken", "bytesPerBlock", "blockTokens", "blocks", "nullBlocks", "kvBytes", "minBytes",
    "tokens", "loggedTokens", "concurrency", "groups",
)  # fmt: skip


def _group(group: CacheGroup, longest: int) -> dict[str, Any]:
    cost = group.cost
    return {
        "kind": group.kind,
        "layers": group.layers,
        "pageBytes": group.page_bytes,
        "blockTokens": cost.block_tokens,
        "windowTokens": cost.window_tokens or None,
        "fixedBlocks": cost.fixed_blocks or None,
        "blocksOfLongest": blocks_for((cost,), Tokens(longest)),
    }


def _partition(parts: Partition) -> dict[str, int]:
    return {
        "card": parts.card,
        "weights": parts.weights,
        "activation": parts.activation,
        "kvPool": parts.kv_pool,
        "other": parts.other,
        "safetyMargin": parts.safety_margin,
        "free": parts.free,
    }


def _capacity(line: Capacity) -> dict[str, int]:
    return {"contextTokens": line.context, "requests": line.requests, "blocksPerRequest": line.blocks}


def _advice(advice: Advice) -> dict[str, Any]:
    plan = advice.plan
    return {
        "reason": advice.reason,
        "message": advice.message,
        "fits": plan.problem is None,
        "blocks": None if plan.cache is None else plan.cache.blocks,
        "kvBytes": None if plan.cache is None else plan.cache.kv_bytes,
        "maxModelLen": None if plan.cache is None else plan.cache.max_model_len,
        "concurrency": None if plan.cache is None else float(plan.cache.concurrency),
        "weights": None if plan.partition is None else plan.partition.weights,
    }
