"""The plan of a pool, worked out once: every pass asks for it, and it takes as long as all the rest of a small pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvquota_api.memory.errors import PlanError
from kvquota_api.memory.plan import PoolPlan, plan_pool
from kvquota_api.model_pool import ModelPool, ModelPoolSpec


@dataclass(frozen=True, slots=True)
class _Answer:
    spec: ModelPoolSpec
    model_config: Mapping[str, Any] | None
    plan: PoolPlan | PlanError


class Planner:
    """Answers as `plan_pool` does, and remembers the last answer; one for each pool."""

    def __init__(self) -> None:
        self._last: _Answer | None = None

    def __call__(self, pool: ModelPool, model_config: Mapping[str, Any] | None) -> PoolPlan:
        """The plan of a pool; `model_config`: what its configMapRef holds. Raises PlanError."""
        last = self._last
        if last is None or last.spec != pool.spec or last.model_config != model_config:
            last = self._last = _Answer(pool.spec, model_config, _plan(pool, model_config))
        if isinstance(last.plan, PlanError):
            raise last.plan.with_traceback(None)
        return last.plan


def _plan(pool: ModelPool, model_config: Mapping[str, Any] | None) -> PoolPlan | PlanError:
    try:
        return plan_pool(pool, model_config)
    except PlanError as error:
        return error
