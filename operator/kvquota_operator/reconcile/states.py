"""One word for kubectl get.

Decides the STATE column from the conditions and the sums: the first line of the table that holds. Pure.

| word of a TenantQuota | holds when |
|---|---|
| NotReady | Ready is False: the quota is not in force as it is written |
| NoPods | no governed pod runs |
| Unobserved | no pod reports on the tenant |
| Shadow | the quota is counted and not enforced |
| Refusing | requests were refused in the last ten minutes |
| Degraded | requests were ended or answered with less in the last ten minutes |
| OverSoft | the tenant holds more than its guarantee |
| Ready | otherwise |

| word of a ModelPool | holds when |
|---|---|
| NotReady | no plan is in force |
| Faulty | PlanValid, PartitionApplied or PodsGoverned is False |
| NoPods | no governed pod runs |
| Unobserved | no pod reports |
| Shadow | nothing is enforced |
| Shed, Evict, Truncate, Fallback | the pool is on that rung |
| Ready | otherwise |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvquota_api.conditions import PARTITION_APPLIED, PLAN_VALID, PODS_GOVERNED, READY
from kvquota_operator.reconcile.pool_conditions import PoolFacts
from kvquota_operator.reconcile.quota_conditions import QuotaFacts, is_shadow
from kvquota_operator.reconcile.verdicts import Verdict

_FAULTS: Final = (PLAN_VALID, PARTITION_APPLIED, PODS_GOVERNED)


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
        ("Shadow", is_shadow(facts)),
        ("Refusing", sums.recent.rejected_total > 0),
        ("Degraded", sums.recent.evicted > 0 or bool(sums.recent.degraded)),
        ("OverSoft", sums.over_soft > 0),
    )
    return next((word for word, holds in table if holds), "Ready")


def pool_state(facts: PoolFacts, verdicts: Mapping[str, Verdict]) -> str:
    """The word of a ModelPool."""
    template = facts.basis.template
    if template is None:
        return "NotReady"
    if any(verdicts[kind].status == "False" for kind in _FAULTS):
        return "Faulty"
    if not facts.pods.live:
        return "NoPods"
    if facts.sums is None or facts.sums.rung is None:
        return "Unobserved"
    if template.enforcement == "Shadow":
        return "Shadow"
    return "Ready" if facts.sums.rung == "Normal" else facts.sums.rung
