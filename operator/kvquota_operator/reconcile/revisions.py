"""Which plan each pod has: that of the revision which it was admitted with.

Decides for every pod whether it has the plan in force or an earlier one, and which. Pure.

Invariants:

1. A pod that says by which plan its engine was started (`kvquota.dev/plan`, put on at admission) has that plan for as
   long as it is there, whatever becomes of the pool. A plan that comes back is the plan in force again.
2. An earlier plan is what a durable copy says that has it: the pod's own, else the newest of the pool.
3. Where no copy has it, an engine that came up exactly as the plan in force says is taken to have the same. Of another
   one nothing is known but what it reports: it is charged as one of an unknown model. What was found so stays. Until it
   reports it has the plan in force.
4. A pod that has the plan in force follows what the pool says of it now, and so does one that does not say what it
   has. But where its engine came up as its own copy says and not as the pool says now, it was started before that was
   changed, and keeps the plan of the copy: the size of its blocks tells, and of blocks of one size their number. From
   a pod that was not heard of nothing is concluded: it keeps it too.
5. Only what an engine is started with is a pod's own: the model, the kind of engine and the KV plan, and what media
   cost where it is another model. All else is the same on all pods at once, and so is the size of the pool where
   nothing but that has changed: a pod hands out the smaller of what is planned and what its engine has.

It does not know why a plan changed, nor what pods hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from kvquota_api.model_pool import ModelPoolSpec
from kvquota_api.pod_config import MEASURED, KvPlan, PodConfig
from kvquota_api.usage import UsageReport
from kvquota_operator.reconcile.measured import measured_plan
from kvquota_operator.reconcile.pods import LivePod, PodsSeen


@dataclass(frozen=True, slots=True)
class Known:
    """What the durable copies tell of plans: `own` by the uid of a pod, `newest` by the hash of a plan.

    `spec`: of the pool, None where that does not parse.
    """

    own: Mapping[str, PodConfig]
    newest: Mapping[str, PodConfig]
    spec: ModelPoolSpec | None

    @classmethod
    def of(cls, copies: Iterable[PodConfig], spec: ModelPoolSpec | None) -> Known:
        """`copies`: of one pool, stored ones before those that are being written, newest first."""
        newest: dict[str, PodConfig] = {}
        own: dict[str, PodConfig] = {}
        for copy in copies:
            own.setdefault(copy.pod.uid, copy)
            newest.setdefault(copy.plan, copy)
        return cls(own, newest, spec)


def admitted_under(live: LivePod, plan: str) -> bool:
    """Whether a pod may have been started by this plan."""
    return live.pod.plan in (None, plan)


def earlier_templates(pods: PodsSeen, template: PodConfig, known: Known) -> dict[str, PodConfig]:
    """By uid, what a pod without tenants is configured with that has another plan than `template`, the one in force."""
    found: dict[str, PodConfig] = {}
    for live in (*pods.live, *pods.leaving):
        earlier = _earlier(live, known.own.get(live.pod.uid), template, known)
        if earlier is not None:
            found[live.pod.uid] = earlier
    return found


def _earlier(live: LivePod, copy: PodConfig | None, template: PodConfig, known: Known) -> PodConfig | None:
    """None: the pod has the plan in force."""
    named = live.pod.plan
    if named is None or named == template.plan:
        return with_plan_of(copy, template) if copy is not None and _is_of_before(live, copy, template) else None
    source = copy if copy is not None and copy.plan == named else known.newest.get(named)
    return _reported(live, named, template, known.spec) if source is None else with_plan_of(source, template)


def _is_of_before(live: LivePod, copy: PodConfig, template: PodConfig) -> bool:
    """Whether the engine was started by the plan of its pod's copy, and the pool says something else since."""
    if MEASURED in (copy.plan, template.plan) or _of_size(copy.kv, template.kv) == template.kv:
        return False
    if live.report is None:
        return True
    found = live.report.engine.block_tokens
    if found is not None and copy.kv.block_tokens != template.kv.block_tokens:
        return found == copy.kv.block_tokens
    return _came_up_as(live.report, copy.kv) and not _came_up_as(live.report, template.kv)


def _of_size(kv: KvPlan, other: KvPlan) -> KvPlan:
    return msgspec.structs.replace(kv, cap_blocks=other.cap_blocks)


def _came_up_as(report: UsageReport, kv: KvPlan) -> bool:
    engine = report.engine
    return engine.blocks == kv.cap_blocks and engine.block_tokens in (None, kv.block_tokens)


def _reported(live: LivePod, named: str, template: PodConfig, spec: ModelPoolSpec | None) -> PodConfig | None:
    """By what the engine of a pod says, whose plan no copy has."""
    if live.report is None or spec is None:
        return None
    kv = template.kv if _came_up_as(live.report, template.kv) else measured_plan(spec, [live.report])
    return None if kv is None else msgspec.structs.replace(template, plan=named, kv=kv)


def with_plan_of(copy: PodConfig, template: PodConfig) -> PodConfig:
    """`template` with what an engine is started with as in `copy`."""
    return msgspec.structs.replace(
        template,
        plan=copy.plan,
        model=copy.model,
        engine_type=copy.engine_type,
        kv=copy.kv,
        media=template.media if copy.model == template.model else copy.media,
    )
