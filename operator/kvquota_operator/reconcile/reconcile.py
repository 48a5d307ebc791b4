"""The decision of the operator: everything that was observed of one pool in, everything that is wanted out.

Decides nothing of its own: it asks one module per question, in the order in which the answers build on each other.

Invariants:

1. Total: whatever users write and pods report, there is a plan. What is wrong with it is said in conditions.
2. Level-triggered: the plan depends on what is there, not on what happened; decided again after it was carried out, it
   is the same.
3. Right after a start, while pods that ran before were not asked yet, statuses stay as stored and no event is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kvquota_api.pod_config import PodConfig
from kvquota_operator.planning.granting import Division
from kvquota_operator.planning.lending import Priorities
from kvquota_operator.reconcile.basis import Basis, basis_of, own_configs
from kvquota_operator.reconcile.configs import Copy, config_for
from kvquota_operator.reconcile.credentials import Credentials, credentials_of
from kvquota_operator.reconcile.dividing import Copies, divide
from kvquota_operator.reconcile.events import Subject, events_of
from kvquota_operator.reconcile.observed import InvalidSeen, Observed
from kvquota_operator.reconcile.plan import EventWanted, Plan
from kvquota_operator.reconcile.pods import LivePod, PodsSeen, pods_seen
from kvquota_operator.reconcile.pool_conditions import PoolFacts, pool_verdicts
from kvquota_operator.reconcile.quota_conditions import Granted, QuotaFacts, ShareFacts, quota_verdicts
from kvquota_operator.reconcile.reviewing import Change, review_of
from kvquota_operator.reconcile.standing import Standing, standings
from kvquota_operator.reconcile.statuses import given_of, pool_status, quota_status
from kvquota_operator.reconcile.usage import TenantSums, pool_sums, tenant_sums
from kvquota_operator.reconcile.verdicts import stored_conditions


@dataclass(frozen=True, slots=True)
class _Decided:
    pods: PodsSeen
    basis: Basis
    standings: tuple[Standing, ...]
    credentials: Credentials
    divisions: tuple[Division, ...]
    configs: tuple[PodConfig, ...]
    tenants: Mapping[str, TenantSums]


@dataclass(frozen=True, slots=True)
class _Kinds:
    """The kinds of pods: each division and on how many pods it is. `priorities`: of all tenants."""

    divisions: tuple[tuple[Division, int], ...]
    priorities: Priorities


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What is wanted of one object: its status, and what is told about it."""

    status: dict[str, Any]
    events: tuple[EventWanted, ...]


def reconcile(observed: Observed, now: float, wall: datetime) -> Plan:
    """The wanted state; `now` in seconds on the clock of the reports, `wall` the time in UTC."""
    decided = _decide(observed, now)
    if any(live.awaited for live in decided.pods.live):
        return _as_stored(observed, decided)
    kinds = _kinds(decided)
    facts = [_quota_facts(observed, decided, standing, kinds) for standing in decided.standings]
    pool = _pool(observed, decided, _changes(facts), wall)
    quotas = {each.standing.name: _quota(each, wall) for each in facts}
    return Plan(
        configs=decided.configs,
        secret=decided.credentials.secret,
        pool_status=pool.status,
        quota_statuses={name: outcome.status for name, outcome in quotas.items()},
        events=(*pool.events, *(event for outcome in quotas.values() for event in outcome.events)),
    )


def _decide(observed: Observed, now: float) -> _Decided:
    pods = pods_seen(observed, now)
    basis = basis_of(observed, pods)
    durable = own_configs(observed)
    found = standings(observed, durable)
    template = basis.template
    divisions = () if template is None else divide(pods, found, template, Copies(durable, observed.attempts))
    configs = () if template is None else _configs(observed, pods, divisions, template)
    tenants = {} if template is None else tenant_sums(pods.fresh, template.kv)
    return _Decided(pods, basis, found, credentials_of(observed, found), divisions, configs, tenants)


def _configs(
    observed: Observed, pods: PodsSeen, divisions: Sequence[Division], template: PodConfig
) -> tuple[PodConfig, ...]:
    """`divisions` of the live pods in their order, or the one of a planned pod where there is none."""
    return tuple(
        config_for(live, division, template, _copy(observed, live))
        for live, division in zip(pods.live, divisions, strict=False)
    )


def _copy(observed: Observed, live: LivePod) -> Copy:
    return Copy(observed.configs.get(live.pod.uid), observed.attempts.get(live.pod.uid))


def _as_stored(observed: Observed, decided: _Decided) -> Plan:
    stored = {standing.name: dict(standing.status) for standing in decided.standings}
    return Plan(decided.configs, decided.credentials.secret, dict(observed.pool_status), stored, ())


def _changes(quotas: Iterable[QuotaFacts]) -> Iterator[Change]:
    for facts in quotas:
        if facts.review.before is not None:
            given = given_of(facts)
            yield Change(facts.standing.name, facts.review.before, given.soft, given.hard)


def _pool(observed: Observed, decided: _Decided, changes: Iterable[Change], wall: datetime) -> _Outcome:
    pool, kv = observed.pool, decided.basis.kv
    facts = PoolFacts(
        pool=pool,
        basis=decided.basis,
        pods=decided.pods,
        configs={config.pod.uid: config for config in decided.configs},
        secret=decided.credentials.secret,
        tenants=decided.tenants,
        sums=None if kv is None else pool_sums(decided.pods.fresh, decided.tenants, kv),
        identity_problems=decided.credentials.pool_problems,
        changes=tuple(changes),
    )
    verdicts, stored = pool_verdicts(facts), stored_conditions(observed.pool_status)
    uid = pool.uid if isinstance(pool, InvalidSeen) else pool.metadata.uid
    events = events_of(Subject("ModelPool", observed.key.name, uid), verdicts, stored)
    return _Outcome(pool_status(facts, verdicts, stored, wall), events)


def _kinds(decided: _Decided) -> _Kinds:
    counts = Counter(decided.divisions)
    first = decided.divisions[0].shares if decided.divisions else ()
    return _Kinds(tuple(counts.items()), Priorities.of(share.priority for share in first))


def _share(observed: Observed, decided: _Decided, standing: Standing, kinds: _Kinds) -> ShareFacts | None:
    tenant, template = standing.tenant, decided.basis.template
    if tenant is None or template is None:
        return None
    granted = tuple(Granted(division, division.grants[tenant], pods) for division, pods in kinds.divisions)
    return ShareFacts(observed.key.name, template, kinds.priorities, granted)


def _quota_facts(observed: Observed, decided: _Decided, standing: Standing, kinds: _Kinds) -> QuotaFacts:
    plan = decided.basis.plan
    return QuotaFacts(
        pool=observed.key.name,
        standing=standing,
        key_problems=decided.credentials.problems.get(standing.name, ()),
        header_unread=standing.name in decided.credentials.unread,
        template=decided.basis.template,
        share=_share(observed, decided, standing, kinds),
        pods=decided.pods,
        sums=None if standing.tenant is None else decided.tenants.get(standing.tenant),
        review=review_of(standing, None if plan is None else plan.plan_hash, _annotations(observed)),
    )


def _annotations(observed: Observed) -> Mapping[str, str]:
    return {} if isinstance(observed.pool, InvalidSeen) else observed.pool.metadata.annotations


def _quota(facts: QuotaFacts, wall: datetime) -> _Outcome:
    standing = facts.standing
    verdicts, stored = quota_verdicts(facts), stored_conditions(standing.status)
    events = events_of(Subject("TenantQuota", standing.name, standing.uid), verdicts, stored)
    return _Outcome(quota_status(facts, verdicts, stored, wall), events)
