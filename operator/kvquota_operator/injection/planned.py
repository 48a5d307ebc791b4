"""What a pod of a pool is started with: the pool as it is, and the plan in force.

Decides nothing of its own: it asks for the plan as the reconcile does, before any pod is there. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvquota_api.memory.errors import UnknownArchitectureError
from kvquota_api.model_pool import ModelPool
from kvquota_api.pod_config import PodConfig
from kvquota_operator.injection.outcomes import Target
from kvquota_operator.reconcile.basis import basis_of
from kvquota_operator.reconcile.observed import Observed, PoolKey
from kvquota_operator.reconcile.pods import PodsSeen


def target_of(pool: ModelPool, model_config: Mapping[str, Any] | None, configs: Iterable[PodConfig]) -> Target:
    """`model_config`: what the pool's configMapRef holds. `configs`: the durable copies, for a plan that is invalid
    now; of a model that the planner does not know they say what other engines came up with, which is no plan."""
    observed = Observed(
        key=PoolKey(pool.metadata.namespace, pool.metadata.name),
        pool=pool,
        pool_status={},
        configs={config.pod.uid: config for config in configs},
        model_config=model_config,
    )
    basis = basis_of(observed, PodsSeen((), (), ()))
    unknown = basis.problem is not None and basis.problem.reason == UnknownArchitectureError.reason
    return Target(
        pool,
        kv=None if unknown else basis.kv,
        plan_hash="" if basis.plan is None else basis.plan.plan_hash,
    )
