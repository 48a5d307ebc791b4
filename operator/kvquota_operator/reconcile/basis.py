"""Which plan is in force.

Decides what the configs of all pods have in common: the plan of the pool as it is now, or the last valid one. Pure.

Invariants:

1. A plan that is invalid changes no pod: the newest durable copy says which plan stays in force, for new pods too.
2. A pool that does not parse changes nothing at all: engine, ladder and model stay as in that copy.
3. A model that the planner does not know is planned by what the engines report, as far as they do.
4. Where no plan was ever valid there is none, and no pod gets a config.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from kvquota_api.engine_spec import Engine
from kvquota_api.ladder import PoolDegradation
from kvquota_api.memory.errors import PlanError, UnknownArchitectureError
from kvquota_api.memory.plan import PoolPlan, plan_pool
from kvquota_api.model_pool import ModelPoolSpec
from kvquota_api.pod_config import KvPlan, Ladder, MediaCost, PodConfig, PodRef, PoolRef, Threshold
from kvquota_api.served_model import Media
from kvquota_operator.planning.prefixes import shares_prefixes
from kvquota_operator.reconcile.measured import measured_plan
from kvquota_operator.reconcile.observed import InvalidSeen, Observed, PoolKey
from kvquota_operator.reconcile.pods import PodsSeen
from kvquota_operator.reconcile.verdicts import Verdict

INVALID_SPEC: Final = "InvalidSpec"
_NO_POD: Final = PodRef(namespace="-", name="-", uid="-")


@dataclass(frozen=True, slots=True)
class Basis:
    """`plan`: of the pool as it is now, None where that is invalid; `problem` then says why.

    `template`: a config without pod and tenants, None where no plan was ever valid.
    `measured`: its KV plan is what the engines report, since the planner does not know the model.
    """

    plan: PoolPlan | None
    problem: Verdict | None
    template: PodConfig | None
    measured: bool = False

    @property
    def kv(self) -> KvPlan | None:
        """The KV plan in force."""
        return None if self.template is None else self.template.kv


def own_configs(observed: Observed) -> tuple[PodConfig, ...]:
    """The durable copies of this pool, newest first."""
    pool = PoolRef(namespace=observed.key.namespace, name=observed.key.name)
    ours = [config for config in observed.configs.values() if config.pool == pool]
    return tuple(sorted(ours, key=lambda each: (-each.generation, each.pod.name, each.pod.uid)))


def basis_of(observed: Observed, pods: PodsSeen) -> Basis:
    """The plan in force for this pool."""
    newest = next(iter(own_configs(observed)), None)
    if isinstance(observed.pool, InvalidSeen):
        problem = Verdict("False", INVALID_SPEC, observed.pool.message)
        return Basis(None, problem, None if newest is None else _emptied(newest))
    spec = observed.pool.spec
    try:
        plan = plan_pool(observed.pool, observed.model_config)
    except PlanError as error:
        return _without_plan(error, observed.key, spec, pods, newest)
    return Basis(plan, None, _template(observed.key, spec, kv_plan(plan, spec.engine)))


def _without_plan(
    error: PlanError, key: PoolKey, spec: ModelPoolSpec, pods: PodsSeen, newest: PodConfig | None
) -> Basis:
    if isinstance(error, UnknownArchitectureError):
        measured = measured_plan(spec, (live.report for live in pods.live if live.report is not None))
        if measured is not None:
            problem = Verdict("Unknown", error.reason, str(error))
            return Basis(None, problem, _template(key, spec, measured), measured=True)
    problem = Verdict("False", error.reason, str(error))
    return Basis(None, problem, None if newest is None else _template(key, spec, newest.kv))


def kv_plan(plan: PoolPlan, engine: Engine) -> KvPlan:
    """The part of a plan that a sidecar enforces."""
    return KvPlan(
        cap_blocks=plan.cap_blocks,
        null_blocks=plan.null_blocks,
        block_tokens=plan.block_tokens,
        bytes_per_block=plan.bytes_per_block,
        max_model_len=plan.max_model_len,
        groups=plan.groups,
        ranks=engine.parallelism.data,
        batch_tokens=engine.max_num_batched_tokens,
        shares_prefixes=shares_prefixes(engine, plan.groups),
    )


def _emptied(config: PodConfig) -> PodConfig:
    return msgspec.structs.replace(config, pod=_NO_POD, tenants=())


def _template(key: PoolKey, spec: ModelPoolSpec, kv: KvPlan) -> PodConfig:
    anonymous = spec.sidecar.anonymous_tenant
    return PodConfig(
        generation=1,
        digest="",
        pod=_NO_POD,
        pool=PoolRef(namespace=key.namespace, name=key.name),
        model=spec.model.name,
        engine_type=spec.engine.type,
        kv=kv,
        ladder=_ladder(spec.degradation),
        tenants=(),
        anonymous_tenant=f"{key.namespace}/{anonymous}" if anonymous else "",
        api_key_header=spec.sidecar.identity.api_key_header,
        authorization=spec.sidecar.authorization,
        enforcement=spec.enforcement,
        cache_isolation=spec.cache_isolation,
        media=_media(spec.model.media),
    )


def _media(media: Media | None) -> MediaCost:
    if media is None:
        return MediaCost()
    return MediaCost(image_tokens=media.image_tokens, audio_tokens=media.audio_tokens, video_tokens=media.video_tokens)


def _ladder(spec: PoolDegradation) -> Ladder:
    shed, evict = (
        Threshold(enter_percent=rung.enter_percent, exit_percent=rung.exit_percent) for rung in (spec.shed, spec.evict)
    )
    return Ladder(
        guarantee_reserve_percent=spec.guarantee_reserve_percent,
        eviction_wait_seconds=float(spec.eviction_wait_seconds),
        min_dwell_seconds=float(spec.min_dwell_seconds),
        shed=shed,
        evict=evict,
    )
