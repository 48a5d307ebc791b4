"""The conditions of a TenantQuota.

Decides Ready, QuotaWithinCapacity, UsageObserved, GuaranteeKept and Degraded, each by a chain of rules. Pure.

Invariants:

1. No message holds a gauge or a count, and none of a quota that is as it should be depends on another tenant: a status
   changes when something about its quota does.
2. Every message of a False says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvquota_api.amounts import Blocks
from kvquota_api.conditions import DEGRADED, GUARANTEE_KEPT, QUOTA_WITHIN_CAPACITY, READY, USAGE_OBSERVED
from kvquota_api.inert import not_enforced
from kvquota_api.pod_config import KvPlan, PodConfig
from kvquota_operator.planning.granting import Division, Grant, longest_request
from kvquota_operator.planning.lending import Priorities, largest_request, shed_threshold
from kvquota_operator.reconcile.amounts import in_words
from kvquota_operator.reconcile.lagging import Lag, not_in_force
from kvquota_operator.reconcile.observed import KeyProblem
from kvquota_operator.reconcile.pods import PodsSeen
from kvquota_operator.reconcile.reviewing import NO_REVIEW, Review
from kvquota_operator.reconcile.silence import silence
from kvquota_operator.reconcile.standing import Standing
from kvquota_operator.reconcile.usage import TenantSums
from kvquota_operator.reconcile.verdicts import NOT_ENFORCED_YET, Verdict, decide, stored_conditions

OVERSUBSCRIBED: Final = "Oversubscribed"


@dataclass(frozen=True, slots=True)
class Granted:
    """What a tenant has on pods that are alike: its grant, among all grants of such a pod, on `pods` of them."""

    division: Division
    grant: Grant
    pods: int


@dataclass(frozen=True, slots=True)
class ShareFacts:
    """What a quota is given by the plan in force, on all kinds of pods, at least one; `earlier`: on those that have
    another plan yet. `priorities`: of all tenants of the pool."""

    pool: str
    template: PodConfig
    priorities: Priorities
    granted: tuple[Granted, ...]
    earlier: tuple[Granted, ...] = ()

    @property
    def kv(self) -> KvPlan:
        """The KV plan in force."""
        return self.template.kv


@dataclass(frozen=True, slots=True)
class QuotaFacts:
    """All that the conditions of one quota depend on. `template` is None where no plan was ever valid.

    `header_unread`: it has a value for a trusted header, and its pool has no such header. `lags`: pods that do not have
    in force what they should. `sums`: of all reports;
    `by_plan`: of those from pods of each plan, whose blocks differ.
    """

    pool: str
    standing: Standing
    key_problems: tuple[KeyProblem, ...]
    template: PodConfig | None
    share: ShareFacts | None
    pods: PodsSeen
    sums: TenantSums | None
    by_plan: tuple[tuple[KvPlan, TenantSums], ...] = ()
    header_unread: bool = False
    lags: tuple[Lag, ...] = ()
    review: Review = NO_REVIEW


def quota_verdicts(facts: QuotaFacts) -> dict[str, Verdict]:
    """The conditions of one quota, by type."""
    return {
        READY: decide(_READY, facts, _IN_FORCE),
        QUOTA_WITHIN_CAPACITY: _NO_SHARE if facts.share is None else decide(_WITHIN, facts.share, _WITHIN_CAPACITY),
        USAGE_OBSERVED: decide(_OBSERVED, facts, _REPORTED),
        GUARANTEE_KEPT: decide(_KEPT, facts, _GUARANTEED),
        DEGRADED: decide(_DEGRADED, facts, _NOT_DEGRADED),
    }


def _problem(facts: QuotaFacts) -> Verdict | None:
    return facts.standing.problem


def _no_plan(facts: QuotaFacts) -> Verdict | None:
    if facts.template is not None:
        return None
    return Verdict(
        "False",
        "NoPlan",
        f"ModelPool {facts.pool} has no valid plan yet: correct it as its condition PlanValid says; this quota takes"
        " effect with the first one",
    )


def _keys(facts: QuotaFacts) -> Verdict | None:
    if not facts.key_problems:
        return None
    return Verdict("False", facts.key_problems[0].reason, "; ".join(each.message for each in facts.key_problems))


def _header_unread(facts: QuotaFacts) -> Verdict | None:
    if not facts.header_unread:
        return None
    return Verdict(
        "True",
        "HeaderValueUnread",
        f"spec.identity.headerValue: ModelPool {facts.pool} has no sidecar.identity.trustedHeader, so nobody is known"
        " by this value: set that, or give the tenant API keys",
    )


def _shadow(facts: QuotaFacts) -> Verdict | None:
    if not is_shadow(facts):
        return None
    return Verdict("True", "Shadow", "the quota is counted and not enforced, since enforcement is Shadow")


def _without_pods(facts: QuotaFacts) -> Verdict | None:
    if facts.pods.live:
        return None
    message = f"no governed pod of ModelPool {facts.pool} runs: the quota takes effect with the first"
    return Verdict("True", "NoPods", message)


def _not_in_force(facts: QuotaFacts) -> Verdict | None:
    if not facts.lags:
        return None
    return not_in_force(facts.pool, facts.lags, stored_conditions(facts.standing.status).get(READY))


def _not_enforced_yet(facts: QuotaFacts) -> Verdict | None:
    unmet = None if facts.standing.quota is None else not_enforced(facts.standing.quota.spec)
    return None if unmet is None else Verdict("True", NOT_ENFORCED_YET, f"{_IN_FORCE.message}; {unmet}")


def is_shadow(facts: QuotaFacts) -> bool:
    """Whether nothing of this quota is enforced, by its own word or by the pool's."""
    by_pool = facts.template is not None and facts.template.enforcement == "Shadow"
    granted = () if facts.share is None else facts.share.granted
    return by_pool or any(each.grant.share.enforcement == "Shadow" for each in granted)


def _oversubscribed(facts: ShareFacts) -> Verdict | None:
    worst = _most_scaled(facts.granted)
    if worst is None:
        return None
    return Verdict("False", OVERSUBSCRIBED, f"{_scaled(facts, worst)}. Lower softs, or raise memory.kvPool")


def _oversubscribed_yet(facts: ShareFacts) -> Verdict | None:
    """The plan in force has room for all softs, and pods that were started by an earlier one have not."""
    worst = _most_scaled(facts.earlier)
    if worst is None:
        return None
    return Verdict(
        "False",
        OVERSUBSCRIBED,
        f"on pods that have an earlier plan (see the condition PartitionApplied of the pool) {_scaled(facts, worst)}."
        " Roll those pods out again, or lower softs",
    )


def _most_scaled(granted: Iterable[Granted]) -> Granted | None:
    scaled = [each for each in granted if each.grant.share.soft_blocks < _fitting_soft(each.grant)]
    return min(scaled, key=lambda each: each.grant.share.soft_blocks, default=None)


def _scaled(facts: ShareFacts, worst: Granted) -> str:
    pod = worst.division
    return (
        f"the softs of the tenants of ModelPool {facts.pool} sum to {pod.softs_asked:,} blocks of one pod, more than"
        f" the {pod.limit:,} that degradation.shed.enterPercent ({facts.template.ladder.shed.enter_percent} %) leaves"
        f" of its {pod.usable:,}: this soft is scaled down from {_fitting_soft(worst.grant):,} to"
        f" {worst.grant.share.soft_blocks:,} blocks"
    )


def _fitting_soft(grant: Grant) -> int:
    return min(grant.soft_asked, grant.share.hard_blocks)


def _soft_above_hard(facts: ShareFacts) -> Verdict | None:
    """A part of a whole that has not come yet is no ceiling: others have not let go of it."""
    ceilings = [(each.grant.soft_asked, min(each.grant.hard_asked, each.division.usable)) for each in facts.granted]
    above = [(soft, hard) for soft, hard in ceilings if soft > hard]
    if not above:
        return None
    soft, hard = (in_words(blocks, facts.kv) for blocks in above[0])
    return Verdict(
        "False",
        "SoftAboveHard",
        f"soft is {soft} on each pod and hard {hard}: a guarantee ends at the ceiling. Lower soft or raise hard",
    )


def _hard_above_pool(facts: ShareFacts) -> Verdict | None:
    above = [each for each in facts.granted if each.grant.hard_asked > each.division.usable]
    if not above:
        return None
    hard, whole = (in_words(blocks, facts.kv) for blocks in (above[0].grant.hard_asked, above[0].division.usable))
    return Verdict(
        "False",
        "HardAbovePool",
        f"hard is {hard} on each pod, which has {whole}: the tenant is limited by the pool. Lower hard, or raise"
        " memory.kvPool",
    )


def _hard_above_lending(facts: ShareFacts) -> Verdict | None:
    smallest = min(facts.granted, key=lambda each: each.division.usable)
    pod, grant = smallest.division, smallest.grant
    threshold = shed_threshold(grant.share.priority, facts.priorities, facts.template.ladder)
    soft = Blocks(grant.share.soft_blocks)
    others = pod.softs_given - soft
    lent = largest_request(pod.usable, soft, others, threshold, facts.template.ladder, ranks=facts.kv.ranks)
    if lent >= min(longest_request(grant.share.max_context_tokens, facts.kv), grant.share.hard_blocks):
        return None
    return Verdict(
        "True",
        "HardAboveLending",
        f"one request of more than {in_words(lent, facts.kv)} is refused for good even on an idle pod, since the"
        " guarantees of the others and the shed threshold leave no more: raise soft for such requests, or set"
        " maxContextTokens to what fits",
    )


def _no_share(facts: QuotaFacts) -> Verdict | None:
    return _NO_SHARE if facts.share is None else None


def _not_reporting(facts: QuotaFacts) -> Verdict | None:
    problem = silence(facts.pods)
    if problem is None or problem.status != "False":
        return problem
    message = (
        f"some pods do not report, their numbers are missing: see the condition UsageObserved of ModelPool {facts.pool}"
    )
    return Verdict("False", problem.reason, message)


def _not_reported_yet(facts: QuotaFacts) -> Verdict | None:
    if facts.sums is not None:
        return None
    return Verdict("Unknown", "NotReportedYet", "no pod has reported on this tenant yet")


def _no_numbers(facts: QuotaFacts) -> Verdict | None:
    return None if facts.sums is not None else Verdict("Unknown", "NoReports", "no pod reports on this tenant")


def _missed(facts: QuotaFacts) -> Verdict | None:
    if facts.sums is None or not facts.sums.guarantee_missed:
        return None
    return Verdict(
        "False",
        "GuaranteeMissed",
        "a request inside soft found no room in the last ten minutes: the engine frees memory later than"
        " degradation.evictionWaitSeconds allows. Raise it, or lower softs",
    )


def _evicted(facts: QuotaFacts) -> Verdict | None:
    if facts.sums is None or not facts.sums.recent.evicted:
        return None
    return Verdict(
        "True",
        "Evicted",
        "over-soft requests of this tenant were ended in the last ten minutes to keep the guarantees of others: raise"
        " soft if it needs that memory always",
    )


def _served_less(facts: QuotaFacts) -> Verdict | None:
    if facts.sums is None or not facts.sums.recent.degraded:
        return None
    return Verdict(
        "True",
        "ServedLess",
        "requests of this tenant were answered with less than they asked for in the last ten minutes, as its"
        " degradation allows: raise soft if it needs that memory always",
    )


_READY: Final = (
    _problem,
    _no_plan,
    _keys,
    _not_in_force,
    _shadow,
    _header_unread,
    _without_pods,
    _not_enforced_yet,
)
_WITHIN: Final = (_oversubscribed, _oversubscribed_yet, _soft_above_hard, _hard_above_pool, _hard_above_lending)
_OBSERVED: Final = (_no_share, _not_reporting, _not_reported_yet)
_KEPT: Final = (_no_numbers, _missed)
_DEGRADED: Final = (_no_numbers, _evicted, _served_less)

_NO_SHARE: Final = Verdict("Unknown", "NoShare", "the quota has no share of the pool: see its condition Ready")
_IN_FORCE: Final = Verdict("True", "InForce", "the quota is in force on every governed pod of its pool")
_WITHIN_CAPACITY: Final = Verdict("True", "WithinCapacity", "soft and hard are given as they are stated")
_REPORTED: Final = Verdict("True", "Reported", "every governed pod of the pool reports")
_GUARANTEED: Final = Verdict("True", "Kept", "every request inside soft found room in the last ten minutes")
_NOT_DEGRADED: Final = Verdict(
    "False", "NotDegraded", "nothing was ended or answered with less in the last ten minutes"
)
