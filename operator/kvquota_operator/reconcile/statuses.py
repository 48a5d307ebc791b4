"""The statuses of the pool and of its quotas.

Decides which number stands where. Pure.

Invariants:

1. The same facts give the same status; the stored one decides nothing but when a condition last changed.
2. A field whose number nobody measured is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kvquota_api.amounts import Tokens
from kvquota_api.conditions import Condition
from kvquota_api.memory.partition import Partition
from kvquota_api.memory.plan import PoolPlan
from kvquota_api.model_pool import ModelPool
from kvquota_api.pod_config import KvPlan
from kvquota_api.pool_status import Advice, CapacityLine, MemoryParts, ModelPoolStatus, PodCounts, PoolKv, PoolMemory
from kvquota_api.quota import KvAmount
from kvquota_api.resource import StatusModel
from kvquota_api.tenant_quota import TenantQuota, TenantQuotaStatus
from kvquota_operator.reconcile.amounts import amount, amount_over, counted, memory_quantity
from kvquota_operator.reconcile.engines import engine_advice, prefix_hit_rate_percent
from kvquota_operator.reconcile.observed import InvalidSeen
from kvquota_operator.reconcile.pods import PodsSeen
from kvquota_operator.reconcile.pool_conditions import PoolFacts
from kvquota_operator.reconcile.quota_conditions import Granted, QuotaFacts
from kvquota_operator.reconcile.states import pool_state, quota_state
from kvquota_operator.reconcile.usage import PoolSums, TenantSums
from kvquota_operator.reconcile.verdicts import Verdict, conditions_of


@dataclass(frozen=True, slots=True)
class Given:
    """Soft and hard as they are in force; None without a share."""

    soft: KvAmount | None = None
    hard: KvAmount | None = None


def quota_status(
    facts: QuotaFacts, verdicts: Mapping[str, Verdict], stored: Mapping[str, Condition], wall: datetime
) -> dict[str, Any]:
    """The whole status of one quota, as it is written; `stored`: its conditions so far, `wall` in UTC."""
    standing, review, given, sums = facts.standing, facts.review, given_of(facts), facts.sums
    granted = () if facts.share is None else facts.share.granted
    return _written(
        TenantQuotaStatus(
            observed_generation=counted(standing.generation),
            conditions=conditions_of(verdicts, stored, standing.generation, wall),
            state=quota_state(facts, verdicts),
            priority=next((each.grant.share.priority for each in granted), None),
            soft=given.soft,
            hard=given.hard,
            plan_hash=review.plan_hash,
            reviewed=review.before,
            reserved=_over_plans(facts, lambda each: each.reserved),
            used=_over_plans(facts, lambda each: each.used),
            over_soft=_over_plans(facts, lambda each: each.over_soft),
            in_flight=None if sums is None else counted(sums.in_flight),
            recent=None if sums is None else sums.recent,
            prefix_hit_rate_percent=None if sums is None else sums.prefix_hit_rate_percent,
            last_refusal=None if sums is None else sums.last_refusal,
        )
    )


def _over_plans(facts: QuotaFacts, of: Callable[[TenantSums], int]) -> KvAmount | None:
    if facts.template is None:
        return None
    return amount_over(((kv, of(sums)) for kv, sums in facts.by_plan), facts.template.kv)


def given_of(facts: QuotaFacts) -> Given:
    """What the quota is given."""
    if facts.share is None:
        return Given()
    granted, kv = facts.share.granted, facts.share.kv
    return Given(amount(_soft(granted), kv), amount(_hard(granted, facts.standing.quota), kv))


def _soft(granted: Sequence[Granted]) -> int:
    served = [each.grant.share.soft_blocks for each in granted if each.grant.share.hard_blocks]
    return min(served, default=0)


def _hard(granted: Sequence[Granted], quota: TenantQuota | None) -> int:
    if quota is not None and quota.spec.scope == "Pool":
        whole = [each.grant.share.whole_hard_blocks for each in granted]
        known = [each for each in whole if each is not None]  # parts on their way from pod to pod are in it
        return max(known) if known else sum(each.grant.share.hard_blocks * each.pods for each in granted)
    return min(each.grant.share.hard_blocks for each in granted)


def pool_status(
    facts: PoolFacts, verdicts: Mapping[str, Verdict], stored: Mapping[str, Condition], wall: datetime
) -> dict[str, Any]:
    """The whole status of the pool, as it is written; `stored`: its conditions so far, `wall` in UTC."""
    generation = facts.pool.generation if isinstance(facts.pool, InvalidSeen) else facts.pool.metadata.generation
    plan, sums, kv = facts.basis.plan, facts.sums, facts.basis.kv
    return _written(
        ModelPoolStatus(
            observed_generation=counted(generation),
            conditions=conditions_of(verdicts, stored, generation, wall),
            state=pool_state(facts, verdicts),
            plan_hash=facts.basis.plan_hash,
            memory=None if plan is None else PoolMemory(planned=_parts(plan.partition)),
            kv=None if kv is None or sums is None else _kv(kv, sums, facts),
            pressure_percent=None if sums is None else sums.pressure_percent,
            rung=None if sums is None else sums.rung,
            prefix_hit_rate_percent=prefix_hit_rate_percent(facts.pods.fresh),
            recent=None if sums is None else sums.recent,
            capacity=() if plan is None else _capacity(plan, facts.pool),
            pods=_pods(facts.pods),
            advice=(*engine_advice(facts.pods), *(() if plan is None else _advice(plan))),
        )
    )


def _parts(partition: Partition) -> MemoryParts:
    return MemoryParts(
        weights=memory_quantity(partition.weights),
        activation=memory_quantity(partition.activation),
        kv_pool=memory_quantity(partition.kv_pool),
        other=memory_quantity(partition.other),
        safety_margin=memory_quantity(partition.safety_margin),
    )


def _kv(kv: KvPlan, sums: PoolSums, facts: PoolFacts) -> PoolKv:
    plan = facts.basis.plan

    def over_plans(of: Callable[[PoolSums], int | None]) -> KvAmount | None:
        return amount_over(((each, of(found)) for each, found in facts.by_plan), kv)

    return PoolKv(
        bytes_per_token=counted(kv.bytes_per_block // kv.block_tokens if plan is None else plan.bytes_per_token),
        block_tokens=counted(kv.block_tokens),
        bytes_per_block=counted(kv.bytes_per_block),
        cap=amount(kv.cap_blocks, kv),
        measured=over_plans(lambda each: each.measured),
        reserved=over_plans(lambda each: each.reserved),
        used=over_plans(lambda each: each.used),
        unattributed=over_plans(lambda each: each.unattributed),
        accounting=sums.accounting,
    )


def _capacity(plan: PoolPlan, pool: ModelPool | InvalidSeen) -> tuple[CapacityLine, ...]:
    mix = () if isinstance(pool, InvalidSeen) else pool.spec.workload.context_mix
    return tuple(
        CapacityLine(
            context_tokens=each.context_tokens, requests=counted(plan.requests_of(Tokens(each.context_tokens)))
        )
        for each in mix
    )


def _advice(plan: PoolPlan) -> tuple[Advice, ...]:
    return tuple(Advice(reason=each.reason, message=each.message) for each in plan.advice)


def _pods(pods: PodsSeen) -> PodCounts:
    expected, reporting = len(pods.live), len(pods.fresh)
    return PodCounts(expected=expected, reporting=reporting, stale=len(pods.stale), summary=f"{reporting}/{expected}")


def _written(status: StatusModel) -> dict[str, Any]:
    return status.model_dump(mode="json", by_alias=True, exclude_defaults=True)
