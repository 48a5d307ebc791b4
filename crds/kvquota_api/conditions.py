"""Conditions of a status: what they are called and how one is set.

Decides when `lastTransitionTime` moves. Pure; the time is given.

Invariants:

1. A condition's `lastTransitionTime` moves only when its `status` changes; a new reason or message keeps it.
2. Setting what is already so returns equal conditions, so a status without news is not written again.
3. There is one condition of a type; their order never changes by setting one.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import Field, StrictInt

from kvquota_api.resource import StatusModel
from kvquota_api.words import ReasonWord

ConditionStatus = Literal["True", "False", "Unknown"]

PLAN_VALID: Final = "PlanValid"
PARTITION_APPLIED: Final = "PartitionApplied"
PODS_GOVERNED: Final = "PodsGoverned"
TRAFFIC_GOVERNED: Final = "TrafficGoverned"
USAGE_OBSERVED: Final = "UsageObserved"
GUARANTEE_KEPT: Final = "GuaranteeKept"
QUOTA_REVIEWED: Final = "QuotaReviewed"
DEGRADED: Final = "Degraded"
READY: Final = "Ready"
QUOTA_WITHIN_CAPACITY: Final = "QuotaWithinCapacity"

POOL_CONDITIONS: Final = (
    PLAN_VALID,
    PARTITION_APPLIED,
    PODS_GOVERNED,
    TRAFFIC_GOVERNED,
    USAGE_OBSERVED,
    GUARANTEE_KEPT,
    QUOTA_REVIEWED,
    DEGRADED,
)
QUOTA_CONDITIONS: Final = (READY, QUOTA_WITHIN_CAPACITY, USAGE_OBSERVED, GUARANTEE_KEPT, DEGRADED)

MAX_MESSAGE: Final = 32_768  # characters: the bound of metav1.Condition


class Condition(StatusModel):
    """One answer about an object, in the shape of metav1.Condition."""

    type: ReasonWord
    """What is asked."""
    status: ConditionStatus
    """The answer; Unknown when nothing was observed that could decide it."""
    reason: ReasonWord
    """Why, in one word for programs."""
    message: Annotated[str, Field(max_length=MAX_MESSAGE)] = ""
    """Why, in a sentence for people, with the numbers and what to do."""
    last_transition_time: datetime
    """When `status` last changed."""
    observed_generation: Annotated[StrictInt, Field(ge=0, le=2**53)] = 0
    """The generation of the object that the answer is about."""


def set_condition(conditions: Iterable[Condition], wanted: Condition) -> tuple[Condition, ...]:
    """`conditions` with `wanted` in them. Its `last_transition_time` (now) counts only if its status is news."""
    present = tuple(conditions)
    before = next((each for each in present if each.type == wanted.type), None)
    if before is None:
        return (*present, wanted)
    if before.status == wanted.status:
        wanted = wanted.model_copy(update={"last_transition_time": before.last_transition_time})
    return tuple(wanted if each.type == wanted.type else each for each in present)
