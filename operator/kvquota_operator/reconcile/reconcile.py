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

from kvquota_api.memory.plan import plan_pool
from kvquota_api.pod_config import KvPlan
from kvquota_api.usage import UsageReport
from kvquota_operator.planning.granting import Division
from kvquota_operator.planning.lending import Priorities
from kvquota_operator.reconcile.basis import Basis, PlanOf, basis_of, own_configs
from kvquota_operator.reconcile.configs import Configs, Copy, config_for, stored_within
from kvquota_operator.reconcile.credentials import Credentials, credentials_of
from kvquota_operator.reconcile.dividing import Copies, divide, foreseen
from kvquota_operator.reconcile.events import Subject, events_of
from kvquota_operator.reconcile.lagging import Lag, lagging
from kvquota_operator.reconcile.observed import InvalidSeen, Observed
from kvquota_operator.reconcile.plan import EventWanted, Plan
from kvquota_operator.reconcile.pods import LivePod, PodsSeen, pods_seen
from kvquota_operator.reconcile.pool_conditions import PoolFacts, pool_verdicts
from kvquota_operator.reconcile.quota_conditions import Granted, QuotaFacts, ShareFacts, quota_verdicts
from kvquota_operator.reconcile.reviewing import Change, review_of
from kvquota_operator.reconcile.standing import Standing, standings
from kvquota_operator.reconcile.statuses import given_of, pool_status, quota_status
from kvquota_operator.reconcile.usage import PoolSums, TenantSums, pool_sums, tenant_sums
from kvquota_operator.reconcile.verdicts import stored_conditions


@dataclass(frozen=True, slots=True)
class _Sums:
    """What the reports say: all together, and by plan, since blocks of unequal plans do not add up."""

    tenants: Mapping[str, TenantSums]
    pool: PoolSums | None
    by_plan: tuple[tuple[KvPlan, Mapping[str, TenantSums], PoolSums], ...]


@dataclass(frozen=True, slots=True)
class _Decided:
    pods: PodsSeen
    basis: Basis
    standings: tuple[Standing, ...]
    credentials: Credentials
    divisions: tuple[Division, ...]
    foreseen: tuple[Division, ...]
    configs: Configs
    lags: tuple[Lag, ...]
    sums: _Sums


@dataclass(frozen=True, slots=True)
class _Kinds:
    """The kinds of pods: each division and on how many pods it is, once all have the plan in force; `earlier`: of those
    that have another yet. `priorities`: of all tenants."""

    divisions: tuple[tuple[Division, int], ...]
    earlier: tuple[tuple[Division, int], ...]
    priorities: Priorities


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What is wanted of one object: its status, and what is told about it."""

    status: dict[str, Any]
    events: tuple[EventWanted, ...]


def reconcile(observed: Observed, now: float, wall: datetime, plan_of: PlanOf = plan_pool) -> Plan:
    """The wanted state; `now` in seconds on the clock of the reports, `wall` the time in UTC."""
    decided = _decide(observed, now, plan_of)
    if any(live.awaited for live in decided.pods.live):
        return _as_stored(observed, decided)
    kinds = _kinds(decided)
    facts = [_quota_facts(observed, decided, standing, kinds) for standing in decided.standings]
    pool = _pool(observed, decided, _changes(facts), wall)
    quotas = {each.standing.name: _quota(each, wall) for each in facts}
    return Plan(
        configs=decided.configs.given,
        secret=decided.credentials.secret,
        pool_status=pool.status,
        quota_statuses={name: outcome.status for name, outcome in quotas.items()},
        events=(*pool.events, *(event for outcome in quotas.values() for event in outcome.events)),
    )


def _decide(observed: Observed, now: float, plan_of: PlanOf) -> _Decided:
    pods = pods_seen(observed, now)
    basis = basis_of(observed, pods, plan_of)
    durable = own_configs(observed)
    found = standings(observed, durable)
    copies = Copies(durable, observed.attempts)
    divisions = divide(pods, found, basis, copies)
    configs = _configs(observed, pods, divisions, basis)
    return _Decided(
        pods=pods,
        basis=basis,
        standings=found,
        credentials=credentials_of(observed, found),
        divisions=divisions,
        foreseen=foreseen(divisions, pods, found, basis, copies),
        configs=configs,
        lags=lagging(pods.live, {each.pod.uid: each for each in configs.given}, observed.behind, now),
        sums=_sums(pods, basis),
    )


def _configs(observed: Observed, pods: PodsSeen, divisions: Sequence[Division], basis: Basis) -> Configs:
    """`divisions` of the live pods in their order, or the one of a planned pod where there is none."""
    template = basis.template
    if template is None:
        return Configs()
    copies = [_copy(observed, live) for live in pods.live]
    configs = (
        config_for(live, division, basis.earlier.get(live.pod.uid, template), copy)
        for live, division, copy in zip(pods.live, divisions, copies, strict=False)
    )
    return stored_within(zip(configs, copies, strict=False), observed.max_config_bytes)


def _sums(pods: PodsSeen, basis: Basis) -> _Sums:
    kv = basis.kv
    if kv is None:
        return _Sums({}, None, ())
    reports: dict[KvPlan, list[UsageReport]] = {}
    for live in pods.live:
        if live.fresh and live.report is not None:
            earlier = basis.earlier.get(live.pod.uid)
            reports.setdefault(kv if earlier is None else earlier.kv, []).append(live.report)
    by_plan = tuple(_summed(of, found) for of, found in reports.items())
    _, tenants, pool = by_plan[0] if len(by_plan) == 1 else _summed(kv, pods.fresh)
    return _Sums(tenants, pool, by_plan)


def _summed(kv: KvPlan, reports: Sequence[UsageReport]) -> tuple[KvPlan, Mapping[str, TenantSums], PoolSums]:
    tenants = tenant_sums(reports, kv)
    return kv, tenants, pool_sums(reports, tenants, kv)


def _copy(observed: Observed, live: LivePod) -> Copy:
    return Copy(observed.configs.get(live.pod.uid), observed.attempts.get(live.pod.uid))


def _as_stored(observed: Observed, decided: _Decided) -> Plan:
    stored = {standing.name: dict(standing.status) for standing in decided.standings}
    return Plan(decided.configs.given, decided.credentials.secret, dict(observed.pool_status), stored, ())


def _changes(quotas: Iterable[QuotaFacts]) -> Iterator[Change]:
    for facts in quotas:
        if facts.review.before is not None:
            given = given_of(facts)
            yield Change(facts.standing.name, facts.review.before, given.soft, given.hard)


def _pool(observed: Observed, decided: _Decided, changes: Iterable[Change], wall: datetime) -> _Outcome:
    pool, sums = observed.pool, decided.sums
    facts = PoolFacts(
        pool=pool,
        basis=decided.basis,
        pods=decided.pods,
        configs={config.pod.uid: config for config in decided.configs.given},
        oversized=decided.configs.oversized,
        max_config_bytes=observed.max_config_bytes,
        secret=decided.credentials.secret,
        tenants=sums.tenants,
        sums=sums.pool,
        by_plan=tuple((kv, pool) for kv, _, pool in sums.by_plan),
        refused={live.pod.name: why for live in decided.pods.live if (why := observed.refused.get(live.pod.uid))},
        secret_refused=observed.secret_refused,
        identity_problems=decided.credentials.pool_problems,
        changes=tuple(changes),
    )
    verdicts, stored = pool_verdicts(facts), stored_conditions(observed.pool_status)
    uid = pool.uid if isinstance(pool, InvalidSeen) else pool.metadata.uid
    events = events_of(Subject("ModelPool", observed.key.name, uid), verdicts, stored)
    return _Outcome(pool_status(facts, verdicts, stored, wall), events)


def _kinds(decided: _Decided) -> _Kinds:
    counts = Counter(decided.foreseen)
    earlier = Counter(each for each in decided.divisions if each.kv != decided.basis.kv)
    first = decided.divisions[0].shares if decided.divisions else ()
    return _Kinds(tuple(counts.items()), tuple(earlier.items()), Priorities.of(share.priority for share in first))


def _share(observed: Observed, decided: _Decided, standing: Standing, kinds: _Kinds) -> ShareFacts | None:
    tenant, template = standing.tenant, decided.basis.template
    if tenant is None or template is None:
        return None
    granted, earlier = (
        tuple(Granted(division, division.grants[tenant], pods) for division, pods in kind)
        for kind in (kinds.divisions, kinds.earlier)
    )
    return ShareFacts(observed.key.name, template, kinds.priorities, granted, earlier)


def _quota_facts(observed: Observed, decided: _Decided, standing: Standing, kinds: _Kinds) -> QuotaFacts:
    plan, tenant = decided.basis.plan, standing.tenant
    return QuotaFacts(
        pool=observed.key.name,
        standing=standing,
        key_problems=decided.credentials.problems.get(standing.name, ()),
        header_unread=standing.name in decided.credentials.unread,
        template=decided.basis.template,
        share=_share(observed, decided, standing, kinds),
        pods=decided.pods,
        lags=decided.lags,
        sums=None if tenant is None else decided.sums.tenants.get(tenant),
        by_plan=tuple(
            (kv, sums[tenant]) for kv, sums, _ in decided.sums.by_plan if tenant is not None and tenant in sums
        ),
        review=review_of(standing, None if plan is None else plan.plan_hash, _annotations(observed)),
    )


def _annotations(observed: Observed) -> Mapping[str, str]:
    return {} if isinstance(observed.pool, InvalidSeen) else observed.pool.metadata.annotations


def _quota(facts: QuotaFacts, wall: datetime) -> _Outcome:
    standing = facts.standing
    verdicts, stored = quota_verdicts(facts), stored_conditions(standing.status)
    events = events_of(Subject("TenantQuota", standing.name, standing.uid), verdicts, stored)
    return _Outcome(quota_status(facts, verdicts, stored, wall), events)
