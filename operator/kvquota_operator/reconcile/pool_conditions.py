"""The conditions of a ModelPool.

Decides PlanValid, PodsGoverned, UsageObserved, GuaranteeKept and Degraded, each by a chain of rules, and asks for
PartitionApplied, TrafficGoverned and QuotaReviewed. Pure.

Invariants:

1. No message holds a gauge or a count of requests: a status changes when something about its pool does.
2. Every message of a False says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvquota_api.conditions import (
    DEGRADED,
    GUARANTEE_KEPT,
    PARTITION_APPLIED,
    PLAN_VALID,
    PODS_GOVERNED,
    QUOTA_REVIEWED,
    TRAFFIC_GOVERNED,
    USAGE_OBSERVED,
)
from kvquota_api.inert import not_enforced
from kvquota_api.memory.errors import UnknownArchitectureError
from kvquota_api.memory.plan import PoolPlan
from kvquota_api.meta import INJECT_LABEL
from kvquota_api.model_pool import ModelPool
from kvquota_api.pod_config import KvPlan, PodConfig
from kvquota_api.usage import Rung
from kvquota_operator.reconcile.amounts import KIB, pool_in_words
from kvquota_operator.reconcile.basis import Basis
from kvquota_operator.reconcile.configs import Oversize
from kvquota_operator.reconcile.engines import engine_silence, traffic_governed
from kvquota_operator.reconcile.obeying import partly_understood, rejected
from kvquota_operator.reconcile.observed import InvalidSeen, KeyProblem
from kvquota_operator.reconcile.partition import partition_applied
from kvquota_operator.reconcile.plan import SecretWanted
from kvquota_operator.reconcile.pods import PodsSeen
from kvquota_operator.reconcile.refusals import copy_refused
from kvquota_operator.reconcile.reviewing import Change, reviewed
from kvquota_operator.reconcile.silence import left_the_selector, silence
from kvquota_operator.reconcile.usage import PoolSums, TenantSums
from kvquota_operator.reconcile.verdicts import NOT_ENFORCED_YET, Verdict, decide, listed, pods_named

HOW_TO_GOVERN: Final = "docs/how-to/put-a-pod-under-quota.md"  # the four changes of a pod template
MARGIN_PERCENT: Final = range(5, 11)  # of the card: less is used up by what nobody plans, more is wasted

ON_RUNG: Final[Mapping[Rung, str]] = {
    "Shed": "new work beyond soft is refused, lowest priority first",
    "Evict": "work beyond soft is refused, and ended where a request inside soft waits for its memory",
    "Truncate": "long requests of tenants that allow it get less than they asked for",
    "Fallback": "requests of tenants that allow it are answered by the pool's fallback",
}


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """All that the conditions of a pool depend on. `configs`: what each pod should have in force, by uid.

    `sums`: of all reports; `by_plan`: of those from pods of each plan, whose blocks differ. `identity_problems`: what
    is wrong with what the pool says of its clients. `changes`: quotas that wait for a review. `oversized`: pods whose
    config is larger than `max_config_bytes`. `refused`: by name of the pod, what the API server says to the copy of its
    config, and `secret_refused` the same of the pool's Secret.
    """

    pool: ModelPool | InvalidSeen
    basis: Basis
    pods: PodsSeen
    configs: Mapping[str, PodConfig]
    secret: SecretWanted | None
    tenants: Mapping[str, TenantSums]
    sums: PoolSums | None
    by_plan: tuple[tuple[KvPlan, PoolSums], ...] = ()
    identity_problems: tuple[KeyProblem, ...] = ()
    changes: tuple[Change, ...] = ()
    oversized: tuple[Oversize, ...] = ()
    max_config_bytes: int | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    secret_refused: str | None = None

    @property
    def name(self) -> str:
        return self.pool.name if isinstance(self.pool, InvalidSeen) else self.pool.metadata.name

    @property
    def annotations(self) -> Mapping[str, str]:
        return {} if isinstance(self.pool, InvalidSeen) else self.pool.metadata.annotations


def pool_verdicts(facts: PoolFacts) -> dict[str, Verdict]:
    """The conditions of the pool, by type."""
    return {
        PLAN_VALID: decide(_PLAN, facts, _planned(facts.basis)),
        PARTITION_APPLIED: partition_applied(facts.basis, facts.pods),
        PODS_GOVERNED: decide(_GOVERNED, facts, _ALL_GOVERNED),
        TRAFFIC_GOVERNED: traffic_governed(facts.pods),
        USAGE_OBSERVED: decide(_OBSERVED, facts, _REPORTED),
        GUARANTEE_KEPT: decide(_KEPT, facts, _GUARANTEED),
        QUOTA_REVIEWED: reviewed(facts.name, facts.basis.plan, facts.changes, facts.annotations),
        DEGRADED: decide(_DEGRADED, facts, _NORMAL),
    }


def _plan_problem(facts: PoolFacts) -> Verdict | None:
    problem, kv = facts.basis.problem, facts.basis.kv
    if problem is None:
        return None
    if kv is None and problem.reason == UnknownArchitectureError.reason:
        meanwhile = "A pod gets its config when its engine has reported its blocks"
    elif kv is None:
        meanwhile = "No plan was ever valid: pods get no config until this is corrected"
    elif facts.basis.measured:
        meanwhile = f"Quotas hold on what the engines report: {pool_in_words(kv)}"
    else:
        meanwhile = f"The last valid plan stays in force: {pool_in_words(kv)}"
    return Verdict(problem.status, problem.reason, f"{problem.message}. {meanwhile}")


def _margin(facts: PoolFacts) -> Verdict | None:
    if isinstance(facts.pool, InvalidSeen) or facts.pool.spec.memory.safety_margin_percent in MARGIN_PERCENT:
        return None
    return Verdict(
        "True",
        "SafetyMarginUnusual",
        f"spec.memory.safetyMarginPercent is {facts.pool.spec.memory.safety_margin_percent}: less than"
        f" {MARGIN_PERCENT[0]} leaves nothing for what nobody plans, more than {MARGIN_PERCENT[-1]} wastes memory; set"
        " a value between them",
    )


def _anonymous(facts: PoolFacts) -> Verdict | None:
    if isinstance(facts.pool, InvalidSeen) or not facts.pool.spec.sidecar.anonymous_tenant or not facts.configs:
        return None
    if all(config.anonymous_tenant for config in facts.configs.values()):
        return None
    return Verdict(
        "True",
        "AnonymousTenantUnknown",
        f"spec.sidecar.anonymousTenant: no TenantQuota of this pool has the tenant"
        f" {facts.pool.spec.sidecar.anonymous_tenant}, so unknown clients are refused: create one",
    )


def _not_enforced_yet(facts: PoolFacts) -> Verdict | None:
    planned = _planned(facts.basis)
    unmet = None if isinstance(facts.pool, InvalidSeen) else not_enforced(facts.pool.spec)
    if unmet is None or planned.status != "True":
        return None
    return Verdict("True", NOT_ENFORCED_YET, f"{planned.message} Of what the pool asks for, {unmet}")


def _planned(basis: Basis) -> Verdict:
    plan = basis.plan
    if plan is None or basis.kv is None:
        return Verdict("Unknown", "NotPlanned", "nothing was planned yet")
    return Verdict(
        "True", "Planned", " ".join((f"the KV pool of one engine is {pool_in_words(basis.kv)}.", *_assumed(plan)))
    )


def _assumed(plan: PoolPlan) -> tuple[str, ...]:
    """What the engine would not take as it is, and what nobody stated."""
    return tuple(
        f"{title}: {'; '.join(sentences)}"
        for title, sentences in (("Warning", plan.warnings), ("Assumed", plan.assumptions))
        if sentences
    )


def _config_rejected(facts: PoolFacts) -> Verdict | None:
    return rejected(facts.pods, facts.configs, facts.secret)


def _partly_understood(facts: PoolFacts) -> Verdict | None:
    return partly_understood(facts.pods)


def _config_too_large(facts: PoolFacts) -> Verdict | None:
    if not facts.oversized or facts.max_config_bytes is None:
        return None
    most = max(each.size for each in facts.oversized)
    kept = [each.pod for each in facts.oversized if each.kept]
    first = [each.pod for each in facts.oversized if not each.kept]
    meanwhile = [f"{listed(kept)}: the last one that fitted stays in force"] if kept else []
    meanwhile += [f"{listed(first)}: none is in force yet"] if first else []
    return Verdict(
        "False",
        "ConfigTooLarge",
        f"the config of a pod takes {-(-most // KIB):,} KiB, and a ConfigMap holds"
        f" {facts.max_config_bytes // KIB:,} KiB ({'; '.join(meanwhile)}). Remove TenantQuotas of this pool, or give"
        " some of them a ModelPool with pods of its own",
    )


def _copy_refused(facts: PoolFacts) -> Verdict | None:
    return copy_refused(facts.name, facts.refused, facts.secret_refused)


def _identity(facts: PoolFacts) -> Verdict | None:
    problems = facts.identity_problems
    return Verdict("False", problems[0].reason, "; ".join(each.message for each in problems)) if problems else None


def _selector_conflict(facts: PoolFacts) -> Verdict | None:
    if not facts.pods.disputed:
        return None
    disputed = [pod.name for pod in facts.pods.disputed]
    others = listed({other.name for pod in facts.pods.disputed for other in pod.other_pools})
    return Verdict(
        "False",
        "SelectorConflict",
        f"{pods_named(disputed, 'is', 'are')} selected by ModelPool {others} too; the oldest pool governs"
        f" {'it' if len(disputed) == 1 else 'them'}: make the selectors differ",
    )


def _left(facts: PoolFacts) -> Verdict | None:
    return left_the_selector(facts.pods)


def _not_injected(facts: PoolFacts) -> Verdict | None:
    bare = facts.pods.ungoverned
    if not bare:
        return None
    asking = [pod for pod in bare if pod.asks]
    if len(asking) == len(bare):
        todo = (
            f"the label {INJECT_LABEL} asks for it, and came after the pod, or the pool did: delete what has it, so"
            " that it is made again"
        )
    else:
        todo = (
            f'set the label {INJECT_LABEL}: "true" in the pod template, or add the container named kvquota by hand, see'
            f" {HOW_TO_GOVERN}"
        )
    named = pods_named([pod.name for pod in bare], "carries", "carry")
    return Verdict("False", "NotInjected", f"{named} no sidecar and no quota holds there: {todo}")


def _no_pods(facts: PoolFacts) -> Verdict | None:
    if facts.pods.live:
        return None
    return Verdict("Unknown", "NoPods", "no pod matches the selector")


def _silent(facts: PoolFacts) -> Verdict | None:
    return silence(facts.pods)


def _engine_silent(facts: PoolFacts) -> Verdict | None:
    return engine_silence(facts.pods)


def _no_numbers(facts: PoolFacts) -> Verdict | None:
    if facts.sums is None or facts.sums.rung is None:
        return Verdict("Unknown", "NoReports", "no pod reports on its pool")
    return None


def _missed(facts: PoolFacts) -> Verdict | None:
    missed = [tenant for tenant, sums in facts.tenants.items() if sums.guarantee_missed]
    if not missed:
        return None
    return Verdict(
        "False",
        "GuaranteeMissed",
        f"requests inside soft of {listed(missed)} found no room in the last ten minutes: the engine frees memory later"
        " than spec.degradation.evictionWaitSeconds allows. Raise it, or lower softs",
    )


def _on_the_ladder(facts: PoolFacts) -> Verdict | None:
    rung = None if facts.sums is None else facts.sums.rung
    if rung is None or rung == "Normal":
        return None
    return Verdict(
        "True",
        rung,
        f"the pool is short of KV memory and on the rung {rung} of its ladder: {ON_RUNG[rung]}. If that lasts, add"
        " replicas, raise spec.memory.kvPool, or lower what tenants may borrow (hard)",
    )


_PLAN: Final = (_plan_problem, _margin, _anonymous, _not_enforced_yet)
_GOVERNED: Final = (
    _config_too_large,
    _copy_refused,
    _config_rejected,
    _partly_understood,
    _identity,
    _selector_conflict,
    _left,
    _not_injected,
    _no_pods,
)
_OBSERVED: Final = (_silent, _engine_silent)
_KEPT: Final = (_no_numbers, _missed)
_DEGRADED: Final = (_no_numbers, _on_the_ladder)

_ALL_GOVERNED: Final = Verdict("True", "AllGoverned", "every pod that the selector matches carries the sidecar")
_REPORTED: Final = Verdict("True", "Reported", "every governed pod reports")
_GUARANTEED: Final = Verdict("True", "Kept", "every request inside soft found room in the last ten minutes")
_NORMAL: Final = Verdict("False", "Normal", "the pool has room")
