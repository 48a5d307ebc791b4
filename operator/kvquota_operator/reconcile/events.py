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
    PARTITION_APPLIED,
    PLAN_VALID,
    PODS_GOVERNED,
    QUOTA_WITHIN_CAPACITY,
    READY,
    USAGE_OBSERVED,
    Condition,
)
from kvquota_operator.reconcile.observed import Kind
from kvquota_operator.reconcile.plan import EventWanted
from kvquota_operator.reconcile.verdicts import Verdict

# UsageObserved of a quota is not told: one silent pod would tell it for every tenant.
TOLD: Final[Mapping[Kind, tuple[str, ...]]] = {
    "ModelPool": (PLAN_VALID, PARTITION_APPLIED, PODS_GOVERNED, USAGE_OBSERVED),
    "TenantQuota": (READY, QUOTA_WITHIN_CAPACITY),
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
        if verdict.status == "False" and (
            before is None or (before.status, before.reason) != ("False", verdict.reason)
        ):
            yield EventWanted(subject.kind, subject.name, subject.uid, "Warning", verdict.reason, verdict.message)
        if verdict.status == "True" and before is not None and before.status == "False":
            yield EventWanted(subject.kind, subject.name, subject.uid, "Normal", verdict.reason, verdict.message)
