"""One word for kubectl get.

Decides the STATE column from the conditions and the sums: the first line of the table that holds. Pure.

| word of a TenantQuota | holds when |
|---|---|
| NotReady | Ready is False: the quota is not in force as it is written |
| NoPods | no governed pod runs |
| Unobserved | no pod reports on the tenant |
| NotReady | Ready is Unknown: some pods do not have the quota yet, or nobody knows whether they have |
| Shadow | the quota is counted and not enforced |
| Refusing | requests were refused for want of quota or room in the last ten minutes |
| Degraded | requests were ended or answered with less in the last ten minutes |
| OverSoft | the tenant holds more than its guarantee |
| Ready | otherwise |

| word of a ModelPool | holds when |
|---|---|
| NotReady | no plan is in force |
| Faulty | PlanValid, PartitionApplied, PodsGoverned or TrafficGoverned is False, or an engine is down |
| NoPods | no governed pod runs |
| Unobserved | no pod reports |
| Shadow | nothing is enforced |
| Shed, Evict, Truncate, Fallback | the pool is on that rung |
| Ready | otherwise |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvquota_api.conditions import (
    PARTITION_APPLIED,
    PLAN_VALID,
    PODS_GOVERNED,
    READY,
    TRAFFIC_GOVERNED,
    USAGE_OBSERVED,
)
from kvquota_operator.reconcile.engines import ENGINE_DOWN
from kvquota_operator.reconcile.pool_conditions import PoolFacts
from kvquota_operator.reconcile.quota_conditions import QuotaFacts, is_shadow
from kvquota_operator.reconcile.usage import OWN_HARD
from kvquota_operator.reconcile.verdicts import Verdict

# What clients are told for want of quota or room; all else is wrong with the request, its sender or the engine.
QUOTA_CODES: Final = frozenset(
    {OWN_HARD, "tenant_concurrency_exceeded", "kv_pool_contended", "kv_pool_exhausted", "request_exceeds_kv_quota"}
)
TOO_LONG: Final = "context_length_exceeded"  # by the quota's limit or by the model's: it does not say which
_FAULTS: Final = (PLAN_VALID, PARTITION_APPLIED, PODS_GOVERNED, TRAFFIC_GOVERNED)


def quota_state(facts: QuotaFacts, verdicts: Mapping[str, Verdict]) -> str:
    """The word of a TenantQuota."""
    sums = facts.sums
    if verdicts[READY].status == "False":
        return "NotReady"
    if not facts.pods.live:
        return "NoPods"
    if sums is None:
        return "Unobserved"
    table = (
        ("NotReady", verdicts[READY].status != "True"),
        ("Shadow", is_shadow(facts)),
        ("Refusing", _refuses(facts, sums.recent.rejected)),
        ("Degraded", sums.recent.evicted > 0 or bool(sums.recent.degraded)),
        ("OverSoft", sums.over_soft > 0),
    )
    return next((word for word, holds in table if holds), "Ready")


def _refuses(facts: QuotaFacts, rejected: Mapping[str, int]) -> bool:
    """Whether the quota or the pool was the reason of a refusal; of one for its length, where the quota limits that."""
    granted = () if facts.share is None else facts.share.granted
    limited = any(each.grant.share.max_context_tokens is not None for each in granted)
    return not QUOTA_CODES.isdisjoint(rejected) or (limited and TOO_LONG in rejected)


def pool_state(facts: PoolFacts, verdicts: Mapping[str, Verdict]) -> str:
    """The word of a ModelPool."""
    template = facts.basis.template
    if template is None:
        return "NotReady"
    if any(verdicts[kind].status == "False" for kind in _FAULTS) or verdicts[USAGE_OBSERVED].reason == ENGINE_DOWN:
        return "Faulty"
    if not facts.pods.live:
        return "NoPods"
    if facts.sums is None or facts.sums.rung is None:
        return "Unobserved"
    if template.enforcement == "Shadow":
        return "Shadow"
    return "Ready" if facts.sums.rung == "Normal" else facts.sums.rung
