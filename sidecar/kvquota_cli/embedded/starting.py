"""What must be settled before embedded mode can begin: which pool, and that it can be planned."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from kvquota_api.conditions import PLAN_VALID
from kvquota_api.model_pool import ModelPool
from kvquota_cli.checking import decide
from kvquota_cli.embedded.objects import Objects
from kvquota_cli.embedded.pool_choice import Candidate
from kvquota_cli.errors import CliError, ExitCode
from kvquota_operator.reading.objects import read_pool, read_quota
from kvquota_operator.reconcile.observed import PoolKey


def candidates(objects: Objects) -> list[Candidate]:
    """The pools that can be read, each with the number of quotas that name it."""
    pools = [read_pool(stored.whole()) for _, stored in objects.all_of("ModelPool")]
    quotas = Counter(read_quota(stored.whole()).pool for _, stored in objects.all_of("TenantQuota"))
    return [
        Candidate(each.key.namespace, each.key.name, each.pool.spec.model.name, quotas[each.key])
        for each in pools
        if isinstance(each.pool, ModelPool)
    ]


async def require_plan(objects: Objects, pool: PoolKey, now: datetime) -> None:
    """Raises CliError with the plan's own sentence when the pool has no valid plan."""
    plan = await decide(objects, pool, now)
    if plan.configs:
        return
    reasons = [each["message"] for each in plan.pool_status["conditions"] if each["type"] == PLAN_VALID]
    raise CliError(f"ModelPool {pool.namespace}/{pool.name} cannot be planned: {'; '.join(reasons)}", ExitCode.NO_PLAN)
