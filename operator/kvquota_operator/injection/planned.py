"""What a pod of a pool is started with: the pool as it is, and the plan in force.

Decides whether a pod needs the last valid plan, and by which name the pod says later which plan it has; the plan itself
is asked for as the reconcile does, before any pod is there. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kvquota_api.memory.errors import UnknownArchitectureError
from kvquota_api.model_pool import ModelPool
from kvquota_api.pod_config import MEASURED, PodConfig
from kvquota_operator.injection.outcomes import Target
from kvquota_operator.reconcile.basis import Basis, basis_of
from kvquota_operator.reconcile.observed import Observed, PoolKey
from kvquota_operator.reconcile.pods import PodsSeen

_NEVER_WRITTEN: Final[Mapping[str, Any]] = {}


def target_of(
    pool: ModelPool,
    model_config: Mapping[str, Any] | None,
    configs: Iterable[PodConfig],
    status: Mapping[str, Any] = _NEVER_WRITTEN,
) -> Target:
    """`model_config`: what the pool's configMapRef holds. `configs`: durable copies, for a plan that is invalid now;
    see `keeps_last_plan`. `status`: of the pool, which names the plan in force."""
    basis = _basis(pool, model_config, configs, status)
    if _is_unknown(basis):
        return Target(pool, plan_hash=MEASURED)
    return Target(pool, kv=basis.kv, plan_hash=basis.plan_hash or "")


def keeps_last_plan(pool: ModelPool, model_config: Mapping[str, Any] | None) -> bool:
    """Whether the plan in force is in the durable copies: of a model that the planner does not know they say what other
    engines came up with, which is no plan."""
    basis = _basis(pool, model_config, (), _NEVER_WRITTEN)
    return basis.plan is None and not _is_unknown(basis)


def _is_unknown(basis: Basis) -> bool:
    return basis.problem is not None and basis.problem.reason == UnknownArchitectureError.reason


def _basis(
    pool: ModelPool, model_config: Mapping[str, Any] | None, configs: Iterable[PodConfig], status: Mapping[str, Any]
) -> Basis:
    observed = Observed(
        key=PoolKey(pool.metadata.namespace, pool.metadata.name),
        pool=pool,
        pool_status=status,
        configs={config.pod.uid: config for config in configs},
        model_config=model_config,
    )
    return basis_of(observed, PodsSeen((), (), ()))
