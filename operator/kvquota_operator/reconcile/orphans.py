"""What is said of quotas whose pool is not there.

Decides their conditions and what a person is told. Pure.

Invariants:

1. Such a quota is not Ready, and no number that was measured while there was a pool stays in its status.
2. What is wrong with the quota itself is said first: it would still be wrong once the pool is there.

It does not know whether the pool ever was there, nor what pods still enforce.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from kvquota_operator.reconcile.basis import INVALID_SPEC
from kvquota_operator.reconcile.events import Subject, events_of
from kvquota_operator.reconcile.observed import Orphans
from kvquota_operator.reconcile.plan import OrphansPlan
from kvquota_operator.reconcile.pods import PodsSeen
from kvquota_operator.reconcile.quota_conditions import QuotaFacts, quota_verdicts
from kvquota_operator.reconcile.standing import Standing
from kvquota_operator.reconcile.statuses import quota_status
from kvquota_operator.reconcile.verdicts import Verdict, listed, stored_conditions

POOL_NOT_FOUND: Final = "PoolNotFound"
_NO_PODS: Final = PodsSeen(live=(), ungoverned=(), disputed=())


def orphaned(orphans: Orphans, wall: datetime) -> OrphansPlan:
    """The statuses of the quotas and what is told about them; `wall` the time in UTC."""
    facts = [_facts(orphans, standing) for standing in _standings(orphans)]
    verdicts = {each.standing.name: quota_verdicts(each) for each in facts}
    stored = {each.standing.name: stored_conditions(each.standing.status) for each in facts}
    names = [(each, each.standing.name, each.standing.uid) for each in facts]
    return OrphansPlan(
        quota_statuses={name: quota_status(each, verdicts[name], stored[name], wall) for each, name, _ in names},
        events=tuple(
            event
            for _, name, uid in names
            for event in events_of(Subject("TenantQuota", name, uid), verdicts[name], stored[name])
        ),
    )


def _facts(orphans: Orphans, standing: Standing) -> QuotaFacts:
    return QuotaFacts(
        pool=orphans.key.name, standing=standing, key_problems=(), template=None, share=None, pods=_NO_PODS, sums=None
    )


def _standings(orphans: Orphans) -> Iterator[Standing]:
    missing = _missing(orphans)
    for invalid in orphans.invalid:
        problem = Verdict("False", INVALID_SPEC, f"{invalid.message}. Besides, {missing}")
        yield Standing(invalid.name, invalid.uid, invalid.generation, invalid.status, problem=problem)
    for seen in orphans.quotas:
        meta = seen.quota.metadata
        problem = Verdict("False", POOL_NOT_FOUND, missing)
        yield Standing(meta.name, meta.uid, meta.generation, seen.status, problem=problem, quota=seen.quota)


def _missing(orphans: Orphans) -> str:
    key = orphans.key
    near = difflib.get_close_matches(key.name, orphans.pools, n=1)
    there = f"there are: {listed(orphans.pools)}" if orphans.pools else "there is none"
    meant = f"; did you mean {near[0]}?" if near else ""
    return (
        f"ModelPool {key.name} does not exist in namespace {key.namespace} ({there}{meant}): create it, or delete this"
        " quota and create it for another pool. Pods that the pool governed keep the shares that they last had"
    )
