"""What every pod is to enforce.

Decides the config of each governed pod, and its generation. Pure.

Invariants:

1. A config that means the same as the durable copy has the generation of that copy: nothing is written again.
2. A generation is never lower than any that was seen of the same pod, in the durable copy or in force.
3. A pod that is awaited keeps its durable copy: what its engine came up with is not known yet.

It does not know how a config gets to its pod.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kvquota_api.pod_config import PodConfig, PodRef, sealed
from kvquota_api.usage import InForce
from kvquota_operator.planning.granting import Division
from kvquota_operator.reconcile.pods import LivePod

_NOTHING: Final = InForce()


def config_for(live: LivePod, division: Division, template: PodConfig, durable: PodConfig | None) -> PodConfig:
    """The sealed config of one pod; `template` has what all pods of the pool have in common."""
    if live.awaited and durable is not None and durable.pool == template.pool:
        return durable
    anonymous = template.anonymous_tenant if template.anonymous_tenant in division.grants else ""
    pod = PodRef(namespace=live.pod.namespace, name=live.pod.name, uid=live.pod.uid)
    config = msgspec.structs.replace(template, pod=pod, tenants=division.shares, anonymous_tenant=anonymous)
    config = _sealed(config, durable)
    return msgspec.structs.replace(config, generation=_generation(config.digest, live, durable))


def _sealed(config: PodConfig, durable: PodConfig | None) -> PodConfig:
    """`config` with its digest: that of the durable copy where that says the same, which is known faster."""
    if durable is not None:
        same = msgspec.structs.replace(config, generation=durable.generation, digest=durable.digest)
        if same == durable:
            return same
    return sealed(config)


def _generation(digest: str, live: LivePod, durable: PodConfig | None) -> int:
    in_force = _NOTHING if live.report is None else live.report.in_force
    stored = 0 if durable is None else durable.generation
    newest = max(stored, in_force.generation)
    if durable is not None and durable.digest == digest and (stored > in_force.generation or _same(in_force, durable)):
        return stored
    if in_force.config_digest == digest and in_force.generation == newest > stored:
        return newest
    return newest + 1


def _same(in_force: InForce, durable: PodConfig) -> bool:
    return in_force.generation == durable.generation and in_force.config_digest == durable.digest
