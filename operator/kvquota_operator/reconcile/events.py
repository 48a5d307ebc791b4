"""What a person must be told.

Decides which conditions become an Event: those that someone has to act on, when they turn. Pure.

Invariants:

1. An event is told once, when a condition gets another status or another reason than the stored one.
2. Reason and message are the condition's own.
3. That something is as it should be is news only after it was not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kvquota_api.conditions import (
    DEGRADED,
    GUARANTEE_KEPT,
    PARTITION_APPLIED,
    PLAN_VALID,
    PODS_GOVERNED,
    QUOTA_REVIEWED,
    QUOTA_WITHIN_CAPACITY,
    READY,
    TRAFFIC_GOVERNED,
    USAGE_OBSERVED,
    Condition,
    ConditionStatus,
)
from kvquota_operator.reconcile.observed import Kind
from kvquota_operator.reconcile.plan import EventWanted
from kvquota_operator.reconcile.verdicts import Verdict

# UsageObserved and Degraded of a quota are not told: one silent pod, one full pool would tell them for every tenant.
TOLD: Final[Mapping[Kind, tuple[str, ...]]] = {
    "ModelPool": (
        PLAN_VALID,
        PARTITION_APPLIED,
        PODS_GOVERNED,
        TRAFFIC_GOVERNED,
        USAGE_OBSERVED,
        GUARANTEE_KEPT,
        QUOTA_REVIEWED,
        DEGRADED,
    ),
    "TenantQuota": (READY, QUOTA_WITHIN_CAPACITY, GUARANTEE_KEPT),
}


@dataclass(frozen=True, slots=True)
class Subject:
    """The object that events are about."""

    kind: Kind
    name: str
    uid: str


def events_of(
    subject: Subject, verdicts: Mapping[str, Verdict], stored: Mapping[str, Condition]
) -> tuple[EventWanted, ...]:
    """The events of one object; `stored` are its conditions so far, by type."""
    return tuple(_told(subject, verdicts, stored))


def _told(subject: Subject, verdicts: Mapping[str, Verdict], stored: Mapping[str, Condition]) -> Iterable[EventWanted]:
    for kind in TOLD[subject.kind]:
        verdict, before = verdicts[kind], stored.get(kind)
        bad, good = _poles(kind)
        if verdict.status == bad and (before is None or (before.status, before.reason) != (bad, verdict.reason)):
            yield EventWanted(subject.kind, subject.name, subject.uid, "Warning", verdict.reason, verdict.message)
        if verdict.status == good and before is not None and before.status == bad:
            yield EventWanted(subject.kind, subject.name, subject.uid, "Normal", verdict.reason, verdict.message)


def _poles(kind: str) -> tuple[ConditionStatus, ConditionStatus]:
    """The status of a condition that is a reason to act, and the one that is none."""
    return ("True", "False") if kind == DEGRADED else ("False", "True")
