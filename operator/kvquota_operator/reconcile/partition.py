"""Whether engines came up with the partition that is planned.

Decides PartitionApplied, by a chain of rules. Pure.

Invariants:

1. Only an engine that has said how many blocks it has is held against the plan.
2. A pod whose engine was started by an earlier plan is said to have that plan before its size is judged.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from kvquota_api.pod_config import KvPlan, PodConfig
from kvquota_api.usage import UsageReport
from kvquota_operator.reconcile.amounts import pool_in_words
from kvquota_operator.reconcile.basis import Basis
from kvquota_operator.reconcile.pods import LivePod, PodsSeen
from kvquota_operator.reconcile.verdicts import NAMES_IN_MESSAGE, Verdict, decide, pods_named


@dataclass(frozen=True, slots=True)
class _Applied:
    basis: Basis
    pods: PodsSeen


def partition_applied(basis: Basis, pods: PodsSeen) -> Verdict:
    """Of the engines of all pods that report, against the plan in force."""
    return decide(_RULES, _Applied(basis, pods), _ALL)


def _no_plan(applied: _Applied) -> Verdict | None:
    if applied.basis.kv is None or applied.basis.measured:
        return Verdict("Unknown", "NoPlan", "there is no plan to apply: see the condition PlanValid")
    return None


def _not_measured(applied: _Applied) -> Verdict | None:
    if not _measured(applied.pods):
        return Verdict("Unknown", "NotMeasured", "no engine has said yet how many blocks it came up with")
    return None


def _measured(pods: PodsSeen) -> list[tuple[LivePod, UsageReport, int]]:
    return [
        (each, each.report, each.report.engine.blocks)
        for each in pods.live
        if each.fresh and each.report is not None and each.report.engine.blocks is not None
    ]


def _earlier_plan(applied: _Applied) -> Verdict | None:
    found, planned = _of_earlier_plans(applied), applied.basis.template
    if planned is None or not found:
        return None
    models = {planned.model, *(plan.model for plan, _ in found)}
    first = found[:NAMES_IN_MESSAGE]
    told = [f"{pods_named(names, 'has', 'have')} {_plan_in_words(plan, models)}" for plan, names in first]
    return Verdict(
        "False",
        "EarlierPlan",
        f"{'; '.join(told)} by an earlier plan, with which the engine was started; planned are now"
        f" {_plan_in_words(planned, models)}. On each pod quotas hold by its own plan: roll the pods out again (kubectl"
        " rollout restart)",
    )


def _of_earlier_plans(applied: _Applied) -> list[tuple[PodConfig, list[str]]]:
    """With the names of their pods. Pods whose plan differs in its name alone have the partition that is planned."""
    found: dict[KvPlan, tuple[PodConfig, list[str]]] = {}
    for live in applied.pods.live:
        earlier = applied.basis.earlier.get(live.pod.uid)
        if earlier is not None and earlier.kv != applied.basis.kv:
            found.setdefault(earlier.kv, (earlier, []))[1].append(live.pod.name)
    return [*found.values()]


def _plan_in_words(of: PodConfig, models: Collection[str]) -> str:
    return pool_in_words(of.kv) if len(models) == 1 else f"{pool_in_words(of.kv)} of {of.model}"


def _block_size_differs(applied: _Applied) -> Verdict | None:
    kv = applied.basis.kv
    for live, report, _ in _measured(applied.pods):
        found = report.engine.block_tokens
        if kv is not None and found not in (None, kv.block_tokens):
            return Verdict(
                "False",
                "BlockSizeDiffers",
                f"the engine of pod {live.pod.name} has blocks of {found} tokens, planned are {kv.block_tokens}: set"
                " spec.engine.blockSize to what the engine uses, or start it with --block-size"
                f" {kv.block_tokens}",
            )
    return None


def _size_differs(applied: _Applied) -> Verdict | None:
    kv = applied.basis.kv
    for live, _, blocks in _measured(applied.pods):
        if kv is not None and blocks != kv.cap_blocks:
            return Verdict(
                "False",
                "SizeDiffers",
                f"the engine of pod {live.pod.name} came up with {blocks:,} blocks, planned are"
                f" {pool_in_words(kv)}; quotas hold on the smaller. Restart the engine"
                f" {_with_planned(applied, kv)}, or correct spec.memory.kvPool",
            )
    return None


def _with_planned(applied: _Applied, kv: KvPlan) -> str:
    size = kv.cap_blocks * kv.bytes_per_block
    if applied.basis.template is not None and applied.basis.template.engine_type == "vLLM":
        return f"with --kv-cache-memory-bytes {size} --block-size {kv.block_tokens}"
    return f"with {size} bytes of KV cache on each GPU, in blocks of {kv.block_tokens} tokens"


_RULES: Final = (_no_plan, _earlier_plan, _not_measured, _block_size_differs, _size_differs)
_ALL: Final = Verdict("True", "Applied", "every engine that reports came up with the planned KV pool")
