"""Which plan is in force.

Decides what the configs of all pods have in common: the plan of the pool as it is now, or the last valid one; and which
pods have another plan. Pure.

Invariants:

1. A plan that is invalid changes no pod: the durable copies say which plan stays in force, for new pods too. It is the
   one that the pool's status names, else that of the newest copy.
2. A pool that does not parse changes nothing at all: engine, ladder and model stay as in that copy.
3. A model that the planner does not know is planned by what the engines report that were started under it, as far as
   they do.
4. Where no plan was ever valid there is none, and no pod gets a config.

Which plan a pod has that was there before is decided in `revisions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from kvquota_api.engine_spec import Engine
from kvquota_api.ladder import PoolDegradation
from kvquota_api.memory.errors import PlanError, UnknownArchitectureError
from kvquota_api.memory.plan import PoolPlan, plan_pool
from kvquota_api.model_pool import ModelPool, ModelPoolSpec
from kvquota_api.pod_config import (
    MEASURED,
    KvPlan,
    Ladder,
    MediaCost,
    PodConfig,
    PodRef,
    PoolRef,
    Threshold,
    known_part,
)
from kvquota_api.served_model import Media
from kvquota_api.usage import MAX_BLOCKS
from kvquota_operator.planning.prefixes import shares_prefixes
from kvquota_operator.reconcile.measured import measured_plan
from kvquota_operator.reconcile.observed import InvalidSeen, Observed, PoolKey
from kvquota_operator.reconcile.pods import PodsSeen
from kvquota_operator.reconcile.revisions import Known, admitted_under, earlier_templates, with_plan_of
from kvquota_operator.reconcile.verdicts import Verdict

PlanOf = Callable[[ModelPool, Mapping[str, Any] | None], PoolPlan]
"""`plan_pool`, or what remembers its answer: the plan of a pool and the content of its configMapRef, or a PlanError."""

INVALID_SPEC: Final = "InvalidSpec"
_NO_POD: Final = PodRef(namespace="-", name="-", uid="-")


@dataclass(frozen=True, slots=True)
class Basis:
    """`plan`: of the pool as it is now, None where that is invalid; `problem` then says why.

    `template`: a config without pod and tenants, of the plan in force; None where no plan was ever valid.
    `measured`: its KV plan is what the engines report, since the planner does not know the model.
    `earlier`: by uid of a pod, the template of one that has another plan than that in force.
    """

    plan: PoolPlan | None
    problem: Verdict | None
    template: PodConfig | None
    measured: bool = False
    earlier: Mapping[str, PodConfig] = field(default_factory=dict)

    @property
    def kv(self) -> KvPlan | None:
        """The KV plan in force."""
        return None if self.template is None else self.template.kv

    @property
    def plan_hash(self) -> str | None:
        """Names the plan in force; None where there is none, or none that was planned."""
        return None if self.template is None or self.template.plan in ("", MEASURED) else self.template.plan


def own_configs(observed: Observed) -> tuple[PodConfig, ...]:
    """The durable copies of this pool, newest first; of one that another version wrote, what this one knows."""
    pool = PoolRef(namespace=observed.key.namespace, name=observed.key.name)
    ours = [known_part(config) for config in observed.configs.values() if config.pool == pool]
    return tuple(sorted(ours, key=lambda each: (-each.generation, each.pod.name, each.pod.uid)))


def basis_of(observed: Observed, pods: PodsSeen, plan_of: PlanOf = plan_pool) -> Basis:
    """The plan in force for this pool, and the pods that have another."""
    copies = own_configs(observed)
    basis = _in_force(observed, pods, _last(copies, observed.pool_status), plan_of)
    if basis.template is None:
        return basis
    spec = None if isinstance(observed.pool, InvalidSeen) else observed.pool.spec
    known = Known.of([*copies, *observed.attempts.values()], spec)
    return replace(basis, earlier=earlier_templates(pods, basis.template, known))


def _in_force(observed: Observed, pods: PodsSeen, last: PodConfig | None, plan_of: PlanOf) -> Basis:
    if isinstance(observed.pool, InvalidSeen):
        problem = Verdict("False", INVALID_SPEC, observed.pool.message)
        return Basis(None, problem, None if last is None else _emptied(last))
    spec = observed.pool.spec
    try:
        plan = plan_of(observed.pool, observed.model_config)
    except PlanError as error:
        return _without_plan(error, observed.key, spec, pods, last)
    return Basis(plan, None, _template(observed.key, spec, kv_plan(plan, spec.engine), plan.plan_hash))


def _last(copies: Iterable[PodConfig], status: Mapping[str, Any]) -> PodConfig | None:
    """A copy that has the last valid plan."""
    found = list(copies)
    named = [each for each in found if each.plan and each.plan == status.get("planHash")]
    return next(iter(named or found), None)


def _without_plan(error: PlanError, key: PoolKey, spec: ModelPoolSpec, pods: PodsSeen, last: PodConfig | None) -> Basis:
    if isinstance(error, UnknownArchitectureError):
        under = (live for live in pods.live if admitted_under(live, MEASURED))
        measured = measured_plan(spec, (live.report for live in under if live.report is not None))
        if measured is not None:
            problem = Verdict("Unknown", error.reason, str(error))
            return Basis(None, problem, _template(key, spec, measured, MEASURED), measured=True)
    problem = Verdict("False", error.reason, str(error))
    if last is None:
        return Basis(None, problem, None)
    return Basis(None, problem, with_plan_of(last, _template(key, spec, last.kv, last.plan)))


def kv_plan(plan: PoolPlan, engine: Engine) -> KvPlan:
    """The part of a plan that a sidecar enforces, of no more blocks than a card can hold, whatever its size is said to
    be: the sum over all pods has to be a number that a config can state."""
    return KvPlan(
        cap_blocks=min(plan.cap_blocks, MAX_BLOCKS),
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
    return msgspec.structs.replace(config, pod=_NO_POD, tenants=(), earlier=())


def _template(key: PoolKey, spec: ModelPoolSpec, kv: KvPlan, plan: str) -> PodConfig:
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
        plan=plan,
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
