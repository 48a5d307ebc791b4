"""Whether somebody has looked at the quotas since the plan changed.

Decides what is remembered of a quota when the pool's model, revision, types, context or parallelism change, when that
counts as reviewed, and the condition QuotaReviewed of the pool. Pure.

Invariants:

1. What a quota was worth by the plan that was reviewed last is in its own status until it is reviewed again: that
   outlives the operator, and however many plans come in between, the first and the last are compared.
2. A quota is reviewed when the pool's annotation names the plan, when the quota was edited since, or when the plan is
   again what it was. Its share is enforced by the plan in force all the same.
3. A plan that is invalid asks for nothing and forgets nothing.
4. A quota that never had a share by another plan has nothing to review.

It does not know what a plan is made of, only its hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from kvquota_api.memory.plan import PoolPlan
from kvquota_api.meta import REVIEWED_ANNOTATION
from kvquota_api.quota import KvAmount
from kvquota_api.quoting import quoted
from kvquota_api.tenant_quota import ReviewedShare, TenantQuotaStatus
from kvquota_operator.reconcile.standing import Standing
from kvquota_operator.reconcile.verdicts import NAMES_IN_MESSAGE, Verdict

_NOTHING_STORED: Final = TenantQuotaStatus()
_NOTHING: Final = "nothing"


@dataclass(frozen=True, slots=True)
class Review:
    """`plan_hash`: of the plan by which the quota is worth what it is. `before`: what it was worth by the plan that was
    reviewed last; None where there is nothing to review."""

    plan_hash: str | None = None
    before: ReviewedShare | None = None


NO_REVIEW: Final = Review()


@dataclass(frozen=True, slots=True)
class Change:
    """A quota that waits for its review: what it was worth and what it is worth now."""

    quota: str
    before: ReviewedShare
    soft: KvAmount | None
    hard: KvAmount | None


def review_of(standing: Standing, plan_hash: str | None, annotations: Mapping[str, str]) -> Review:
    """`plan_hash`: of the pool's plan as it is now, None where that is invalid; `annotations`: of the pool."""
    stored = _stored(standing.status)
    before = stored.reviewed or _so_far(stored)
    if plan_hash is None:
        return Review(stored.plan_hash, before)
    if standing.tenant is None and stored.plan_hash is None:
        return NO_REVIEW
    if before is None or _is_reviewed(before, standing, plan_hash, annotations):
        return Review(plan_hash)
    return Review(plan_hash, before)


def _is_reviewed(before: ReviewedShare, standing: Standing, plan_hash: str, annotations: Mapping[str, str]) -> bool:
    return (
        before.plan_hash == plan_hash
        or before.generation != standing.generation
        or annotations.get(REVIEWED_ANNOTATION) == plan_hash
    )


def _so_far(stored: TenantQuotaStatus) -> ReviewedShare | None:
    if stored.plan_hash is None or stored.observed_generation is None:
        return None
    return ReviewedShare(
        plan_hash=stored.plan_hash, generation=stored.observed_generation, soft=stored.soft, hard=stored.hard
    )


def _stored(status: Mapping[str, Any]) -> TenantQuotaStatus:
    """As far as it concerns the review; what nobody can read counts as nothing."""
    fields = ("planHash", "observedGeneration", "soft", "hard", "reviewed")
    try:
        return TenantQuotaStatus.model_validate({name: status[name] for name in fields if name in status})
    except ValidationError:
        return _NOTHING_STORED


def reviewed(pool: str, plan: PoolPlan | None, changes: Iterable[Change], annotations: Mapping[str, str]) -> Verdict:
    """The condition; `changes`: the quotas that wait; `annotations`: of the pool."""
    waiting = sorted(changes, key=lambda each: each.quota)
    if plan is None:
        return Verdict("Unknown", "NoPlan", "there is no plan to review the quotas for: see the condition PlanValid")
    if not waiting:
        return Verdict("True", "Reviewed", "every quota was made, edited or reviewed for the plan in force")
    return Verdict(
        "False",
        "PlanChanged",
        f"the model, its types, its context or its parallelism changed, and {_counted(waiting)} not reviewed since:"
        f" edit what should change, or accept it as it is with `kubectl annotate kvmp {pool} --overwrite"
        f" {REVIEWED_ANNOTATION}={plan.plan_hash}`.{_names_another(annotations)} Meanwhile they hold on each pod"
        f" by the plan that it was started with. {_listed(waiting)}",
    )


def _names_another(annotations: Mapping[str, str]) -> str:
    """Where quotas wait, the annotation does not name the plan in force: nobody sees a slip of the pen otherwise."""
    named = annotations.get(REVIEWED_ANNOTATION)
    return "" if named is None else f" It names {quoted(named)} now, which is not that plan."


def _counted(waiting: list[Change]) -> str:
    return "1 quota was" if len(waiting) == 1 else f"{len(waiting)} quotas were"


def _listed(waiting: list[Change]) -> str:
    more = len(waiting) - NAMES_IN_MESSAGE
    told = "; ".join(_told(each) for each in waiting[:NAMES_IN_MESSAGE])
    return told + (f"; and {more} more, each with what it was in its status.reviewed" if more > 0 else "")


def _told(change: Change) -> str:
    if (change.before.soft, change.before.hard) == (change.soft, change.hard):
        return f"{change.quota}: soft and hard are worth the same"
    soft, hard = _moved(change.before.soft, change.soft), _moved(change.before.hard, change.hard)
    return f"{change.quota}: soft {soft}, hard {hard}"


def _moved(before: KvAmount | None, now: KvAmount | None) -> str:
    return f"{_amount(before)} -> {_amount(now)}"


def _amount(amount: KvAmount | None) -> str:
    return _NOTHING if amount is None else f"{amount.blocks:,} blocks ({amount.tokens:,} tokens)"
