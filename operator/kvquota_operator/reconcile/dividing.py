"""The pool, divided over pods and tenants.

Decides what is put before the arithmetic of `planning`: which pods are divided, what each keeps, what each may hold
already, and what is asked for there. Pure.

Invariants:

1. Each pod is divided by its own plan.
2. A kept share is that of the pod's own durable copy, else the newest that any pod of the pool has; of another plan
   than the pod's it has as many blocks as are no more, by memory and by tokens. Of a part of a whole there is no second
   one: a pod that does not have it gets a share that refuses everything.
3. Without a pod the division of one planned pod is shown, so that a quota says what it will be worth.
4. What is foreseen is what there will be once every pod has the plan in force and nothing is on its way any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kvquota_api.pod_config import KvPlan, PodConfig, TenantShare
from kvquota_operator.planning.blocks import usable_blocks
from kvquota_operator.planning.effective import EffectiveQuota
from kvquota_operator.planning.exchange import least_blocks_in
from kvquota_operator.planning.granting import Division, PodRoom, grant_shares
from kvquota_operator.planning.holding import NO_HOLDINGS
from kvquota_operator.reconcile.basis import Basis
from kvquota_operator.reconcile.demands import demands_of
from kvquota_operator.reconcile.holdings import Allowances, holdings_of
from kvquota_operator.reconcile.pods import LivePod, PodsSeen
from kvquota_operator.reconcile.standing import Standing, latest_shares


@dataclass(frozen=True, slots=True)
class Copies:
    """Durable copies of one pool, newest first, and those that are being written, by the uid of their pod."""

    stored: Sequence[PodConfig]
    attempts: Mapping[str, PodConfig]


def divide(pods: PodsSeen, standings: Sequence[Standing], basis: Basis, copies: Copies) -> tuple[Division, ...]:
    """The division of every live pod in their order; none where there is no plan."""
    template = basis.template
    if template is None:
        return ()
    kept = _Kept.of(standings, copies.stored)
    own = {config.pod.uid: config for config in copies.stored}
    quotas = _quotas(standings)
    spread, allowances = {quota.tenant for quota in quotas if quota.scope == "Pool"}, Allowances()

    def room(live: LivePod) -> PodRoom:
        kv, durable = basis.earlier.get(live.pod.uid, template).kv, own.get(live.pod.uid)
        usable = live.usable(kv)
        attempt = copies.attempts.get(live.pod.uid)
        holdings = holdings_of(live, durable, attempt, kv, usable, allowances=allowances) if spread else NO_HOLDINGS
        demands = demands_of(live, spread, usable) if spread else None
        return PodRoom(usable, kv, kept.on(durable, kv), holdings, has_run=live.has_run, demands=demands)

    rooms = [room(live) for live in pods.live] or [_planned_room(template.kv, kept)]
    leaving = [room(live) for live in pods.leaving]
    return grant_shares(quotas, rooms, template.ladder.shed.enter_percent, leaving)


def foreseen(
    divisions: tuple[Division, ...], pods: PodsSeen, standings: Sequence[Standing], basis: Basis, copies: Copies
) -> tuple[Division, ...]:
    """The division of every live pod in their order, once none has an earlier plan; `divisions`: as they are now."""
    template = basis.template
    if template is None or not basis.earlier:
        return divisions
    kv, kept = template.kv, _Kept.of(standings, copies.stored)
    own = {config.pod.uid: config for config in copies.stored}

    def room(live: LivePod) -> PodRoom:
        usable = usable_blocks(kv, None) if live.pod.uid in basis.earlier else live.usable(kv)
        return PodRoom(usable, kv, kept.on(own.get(live.pod.uid), kv), has_run=live.has_run)

    rooms = [room(live) for live in pods.live] or [_planned_room(kv, kept)]
    return grant_shares(_quotas(standings), rooms, template.ladder.shed.enter_percent)


def _quotas(standings: Iterable[Standing]) -> list[EffectiveQuota]:
    return [each.effective for each in standings if each.effective is not None]


def _planned_room(kv: KvPlan, kept: _Kept) -> PodRoom:
    return PodRoom(usable_blocks(kv, None), kv, kept.planned(kv))


@dataclass(frozen=True, slots=True)
class _Kept:
    """`tenants`: by the quota's name, whose share is kept; `newest`: by that name, the newest share and its plan."""

    tenants: Mapping[str, str]
    newest: Mapping[str, tuple[TenantShare, KvPlan]]

    @classmethod
    def of(cls, standings: Iterable[Standing], copies: Iterable[PodConfig]) -> _Kept:
        tenants = {each.name: each.tenant for each in standings if each.kept and each.tenant is not None}
        newest: dict[str, tuple[TenantShare, KvPlan]] = {}
        for config in copies if tenants else ():
            for share in config.tenants:
                newest.setdefault(share.quota, (share, config.kv))
        return cls(tenants, newest)

    def planned(self, kv: KvPlan) -> tuple[TenantShare, ...]:
        """The shares on a pod of this plan that is the only one."""
        return tuple(_in_blocks_of(kv, *self.newest[name]) for name in self.tenants)

    def on(self, durable: PodConfig | None, kv: KvPlan) -> tuple[TenantShare, ...]:
        """The shares on a pod of this plan and this copy."""
        own = latest_shares([durable]) if self.tenants and durable is not None else {}
        return tuple(
            _in_blocks_of(kv, own[name], durable.kv)
            if durable is not None and name in own and own[name].id == tenant
            else _for_another(_in_blocks_of(kv, *self.newest[name]))
            for name, tenant in self.tenants.items()
        )


def _in_blocks_of(kv: KvPlan, share: TenantShare, of: KvPlan) -> TenantShare:
    if kv == of:
        return share
    whole = share.whole_hard_blocks
    return msgspec.structs.replace(
        share,
        soft_blocks=least_blocks_in(kv, share.soft_blocks, of),
        hard_blocks=least_blocks_in(kv, share.hard_blocks, of),
        whole_hard_blocks=None if whole is None else least_blocks_in(kv, whole, of),
    )


def _for_another(share: TenantShare) -> TenantShare:
    if share.whole_hard_blocks is None:
        return share
    limit = None if share.max_concurrent_requests is None else 1  # the least that a config can state
    return msgspec.structs.replace(share, soft_blocks=0, hard_blocks=0, max_concurrent_requests=limit)
