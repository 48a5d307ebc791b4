"""The pool, divided over pods and tenants.

Decides what is put before the arithmetic of `planning`: which pods are divided, and what each keeps. Pure.

Invariants:

1. A kept share is that of the pod's own durable copy, else the newest that any pod of the pool has.
2. Without a pod the division of one planned pod is shown, so that a quota says what it will be worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvquota_api.pod_config import PodConfig, TenantShare
from kvquota_operator.planning.blocks import usable_blocks
from kvquota_operator.planning.granting import Division, PodRoom, grant_shares
from kvquota_operator.reconcile.pods import LivePod
from kvquota_operator.reconcile.standing import Standing, latest_shares


def divide(
    live: Sequence[LivePod], standings: Sequence[Standing], template: PodConfig, configs: Sequence[PodConfig]
) -> tuple[Division, ...]:
    """The division of every live pod in their order; `configs` are the pool's durable copies, newest first."""
    kept = {each.name: each.tenant for each in standings if each.kept and each.tenant is not None}
    newest = latest_shares(configs) if kept else {}
    own = {config.pod.uid: config for config in configs}
    rooms = [PodRoom(each.usable(template.kv), _kept(kept, own.get(each.pod.uid), newest)) for each in live]
    planned = PodRoom(usable_blocks(template.kv, None), _kept(kept, None, newest))
    quotas = [each.effective for each in standings if each.effective is not None]
    return grant_shares(quotas, rooms or [planned], template.kv, template.ladder.shed.enter_percent)


def _kept(
    kept: Mapping[str, str], durable: PodConfig | None, newest: Mapping[str, TenantShare]
) -> tuple[TenantShare, ...]:
    own = latest_shares([durable]) if kept and durable is not None else {}
    return tuple(own[name] if name in own and own[name].id == tenant else newest[name] for name, tenant in kept.items())
