"""What quotas say whose pool is not there."""

from dataclasses import replace
from typing import Any

import pytest

import reconcile_builders as make
from kvquota_operator.reconcile.observed import Orphans, QuotaSeen
from kvquota_operator.reconcile.orphans import orphaned
from kvquota_operator.reconcile.plan import EventWanted, OrphansPlan

KEPT = "Pods that the pool governed keep the shares that they last had"
CREATE = "create it, or delete this quota and create it for another pool"


def told(*quotas: QuotaSeen, **fields: Any) -> OrphansPlan:
    return orphaned(Orphans(key=make.KEY, quotas=quotas, **fields), make.WALL)


def ready(plan: OrphansPlan, name: str = "search") -> tuple[str, str, str]:
    return make.condition(plan.quota_statuses[name], "Ready")


def in_force() -> QuotaSeen:
    """The quota of search as it was stored when all was well."""
    tenant = make.tenant_usage("search", reserved=5, used=3, in_flight=1)
    plan = make.decided(reports=make.reported(make.report(tenant)))
    quota = next(each.quota for each in make.example_quotas() if each.quota.metadata.name == "search")
    return QuotaSeen(quota, plan.quota_statuses["search"])


@pytest.mark.parametrize(
    ("pools", "there"),
    [
        pytest.param((), "there is none", id="no pool at all"),
        pytest.param(("qwen",), "there are: qwen", id="a pool with another name"),
        pytest.param(
            ("llama-70b", "llama-8", "qwen"),
            "there are: llama-70b, llama-8, qwen; did you mean llama-8?",
            id="the closest name is meant",
        ),
        pytest.param(
            tuple(f"p{number}" for number in range(7)), "there are: p0, p1, p2, p3, p4 and 2 more", id="many pools"
        ),
    ],
)
def test_the_sentence_names_the_pool_and_those_that_are_there(pools: tuple[str, ...], there: str) -> None:
    sentence = f"ModelPool llama-8b does not exist in namespace inference ({there}): {CREATE}. {KEPT}"
    assert ready(told(in_force(), pools=pools)) == ("False", "PoolNotFound", sentence)


def test_the_whole_status_has_no_number_any_more() -> None:
    before = in_force()
    assert {"hard", "soft", "used", "reserved", "inFlight", "priority"} <= before.status.keys()
    status = told(before).quota_statuses["search"]
    assert status.keys() == {"observedGeneration", "conditions", "state"}
    assert status["state"] == "NotReady"
    assert [(each["type"], each["status"]) for each in status["conditions"]] == [
        ("Ready", "False"),
        ("QuotaWithinCapacity", "Unknown"),
        ("UsageObserved", "Unknown"),
        ("GuaranteeKept", "Unknown"),
        ("Degraded", "Unknown"),
    ]


def test_it_is_told_once_and_the_status_stays() -> None:
    first = told(in_force())
    assert first.events == (
        EventWanted("TenantQuota", "search", in_force().quota.metadata.uid, "Warning", *ready(first)[1:]),
    )
    again = orphaned(
        Orphans(key=make.KEY, quotas=(replace(in_force(), status=first.quota_statuses["search"]),)), make.LATER
    )
    assert again == OrphansPlan(first.quota_statuses, ())


def test_a_quota_that_does_not_parse_says_both() -> None:
    plan = told(invalid=(make.unread("bad"),))
    status, reason, message = ready(plan, "bad")
    assert (status, reason) == ("False", "InvalidSpec")
    assert message.startswith("spec.priority: 2000 must be at most 1000. Besides, ModelPool llama-8b does not exist")
    assert [(each.name, each.reason) for each in plan.events] == [("bad", "InvalidSpec")]


def test_it_heals_when_the_pool_appears() -> None:
    (quota,) = make.seen(make.quota("search"))
    orphan = replace(quota, status=told(quota).quota_statuses["search"])
    plan = make.decided(quotas=(orphan,))
    assert ready_of(plan.quota_statuses["search"]) == ("True", "InForce")
    assert [(each.name, each.type, each.reason) for each in plan.events] == [("search", "Normal", "InForce")]


def ready_of(status: dict[str, Any]) -> tuple[str, str]:
    return make.condition(status, "Ready")[:2]
