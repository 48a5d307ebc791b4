"""A plan from what the engines report, for a model that the planner does not know.

Decides the KV plan of such a pool from its pods' reports. Pure.

Invariants:

1. The cap is the largest pool that an engine came up with: what each pod can hand out is bounded by its own report.
2. A byte is worth as little as the spec allows: where it does not state the pool in bytes or percent, a block is taken
   for its part of the whole card, so that a share in bytes is never larger than was meant.
3. Every request is charged as if all its tokens stayed: layers that keep less are not known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kvquota_api.amounts import WHOLE
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.memory.vllm.capacity import NULL_BLOCKS
from kvquota_api.model_pool import ModelPoolSpec
from kvquota_api.pod_config import KvPlan
from kvquota_api.usage import UsageReport
from kvquota_operator.planning.prefixes import shares_prefixes

LONGEST_CONTEXT: Final = 2**31 - 1  # tokens: the bound of every length in the API


def measured_plan(spec: ModelPoolSpec, reports: Iterable[UsageReport]) -> KvPlan | None:
    """The plan by these reports; None while no engine has said how many blocks of which size it has."""
    kept_back = NULL_BLOCKS if spec.engine.type == "vLLM" else 0
    engines = [
        (report.engine.blocks, report.engine.block_tokens)
        for report in reports
        if report.engine.blocks is not None and report.engine.blocks > kept_back and report.engine.block_tokens
    ]
    if not engines:
        return None
    cap, block_tokens = max(engines)
    groups = (LayerGroup(kind="Full", block_tokens=block_tokens),)
    return KvPlan(
        cap_blocks=cap,
        null_blocks=kept_back,
        block_tokens=block_tokens,
        bytes_per_block=max(1, _pool_bytes(spec) // cap),
        max_model_len=spec.model.max_model_len or min(LONGEST_CONTEXT, cap * block_tokens),
        groups=groups,
        ranks=spec.engine.parallelism.data,
        batch_tokens=spec.engine.max_num_batched_tokens,
        shares_prefixes=shares_prefixes(spec.engine, groups),
    )


def _pool_bytes(spec: ModelPoolSpec) -> int:
    card, pool = spec.gpu.memory_bytes, spec.memory.kv_pool
    if pool.byte_count is not None:
        return pool.byte_count
    return card if pool.hundredths is None else card * pool.hundredths // WHOLE
