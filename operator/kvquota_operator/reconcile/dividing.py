"""The pool, divided over pods and tenants.

Decides what is put before the arithmetic of `planning`: which pods are divided, what each keeps, and what each may hold
already. Pure.

Invariants:

1. A kept share is that of the pod's own durable copy, else the newest that any pod of the pool has. Of a part of a
   whole there is no second one: a pod that does not have it gets a share that refuses everything.
2. Without a pod the division of one planned pod is shown, so that a quota says what it will be worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kvquota_api.pod_config import KvPlan, PodConfig, TenantShare
from kvquota_operator.planning.blocks import usable_blocks
from kvquota_operator.planning.granting import Division, PodRoom, grant_shares
from kvquota_operator.planning.holding import NO_HOLDINGS
from kvquota_operator.reconcile.holdings import holdings_of
from kvquota_operator.reconcile.pods import LivePod, PodsSeen
from kvquota_operator.reconcile.standing import Standing, latest_shares


@dataclass(frozen=True, slots=True)
class Copies:
    """Durable copies of one pool, newest first, and those that are being written, by the uid of their pod."""

    stored: Sequence[PodConfig]
    attempts: Mapping[str, PodConfig]


def divide(pods: PodsSeen, standings: Sequence[Standing], template: PodConfig, copies: Copies) -> tuple[Division, ...]:
    """The division of every live pod in their order."""
    kept = {each.name: each.tenant for each in standings if each.kept and each.tenant is not None}
    newest = latest_shares(copies.stored) if kept else {}
    own = {config.pod.uid: config for config in copies.stored}
    quotas = [each.effective for each in standings if each.effective is not None]
    spread = any(quota.scope == "Pool" for quota in quotas)
    kv = template.kv

    def room(live: LivePod) -> PodRoom:
        durable = own.get(live.pod.uid)
        usable = live.usable(kv)
        holdings = holdings_of(live, durable, copies.attempts.get(live.pod.uid), usable) if spread else NO_HOLDINGS
        return PodRoom(usable, _kept(kept, durable, newest), holdings, has_run=live.has_run)

    rooms = [room(live) for live in pods.live] or [_planned(kv, kept, newest)]
    leaving = [room(live) for live in pods.leaving]
    return grant_shares(quotas, rooms, kv, template.ladder.shed.enter_percent, leaving)


def _planned(kv: KvPlan, kept: Mapping[str, str], newest: Mapping[str, TenantShare]) -> PodRoom:
    return PodRoom(usable_blocks(kv, None), tuple(newest[name] for name in kept))


def _kept(
    kept: Mapping[str, str], durable: PodConfig | None, newest: Mapping[str, TenantShare]
) -> tuple[TenantShare, ...]:
    own = latest_shares([durable]) if kept and durable is not None else {}
    return tuple(
        own[name] if name in own and own[name].id == tenant else _for_another(newest[name])
        for name, tenant in kept.items()
    )


def _for_another(share: TenantShare) -> TenantShare:
    if share.whole_hard_blocks is None:
        return share
    limit = None if share.max_concurrent_requests is None else 1  # the least that a config can state
    return msgspec.structs.replace(share, soft_blocks=0, hard_blocks=0, max_concurrent_requests=limit)
