"""What every pod is to enforce.

Decides the config of each governed pod, and its generation. Pure.

Invariants:

1. A config that means the same as the durable copy has the generation of that copy: nothing is written again. What a
   copy remembers of earlier ones is no difference in meaning.
2. A generation is never lower than any that was seen of the same pod, in the durable copy, in force or on its way, and
   no two contents have the same one.
3. A pod that is awaited keeps its durable copy: what its engine came up with is not known yet.
4. A config that is too large for a durable copy is given to nobody: its pod keeps the copy that it has.

It does not know how a config gets to its pod.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from kvquota_api.pod_config import PodConfig, PodRef, encode, sealed
from kvquota_api.usage import InForce
from kvquota_operator.planning.granting import Division
from kvquota_operator.reconcile.holdings import earlier_shares, holdings_of, is_in_doubt
from kvquota_operator.reconcile.pods import LivePod


@dataclass(frozen=True, slots=True)
class Copy:
    """The durable copy of one pod, and the one that is being written; None where there is none."""

    stored: PodConfig | None = None
    attempt: PodConfig | None = None


@dataclass(frozen=True, slots=True)
class Oversize:
    """A config of `size` bytes that is more than can be stored; `kept`: the pod has an earlier one that stays."""

    pod: str
    size: int
    kept: bool


@dataclass(frozen=True, slots=True)
class Configs:
    """`given`: what the pods are to have. `oversized`: those that are too large."""

    given: tuple[PodConfig, ...] = ()
    oversized: tuple[Oversize, ...] = ()


def stored_within(configs: Iterable[tuple[PodConfig, Copy]], max_bytes: int | None) -> Configs:
    """What each pod is to have of these, each with the copy of its pod, where a copy has at most `max_bytes`."""
    given: list[PodConfig] = []
    oversized: list[Oversize] = []
    for config, copy in configs:
        size = 0 if max_bytes is None or config is copy.stored else len(encode(config))
        if max_bytes is None or size <= max_bytes:
            given.append(config)
            continue
        stays = _of(config, copy.stored)
        oversized.append(Oversize(config.pod.name, size, kept=stays is not None))
        if stays is not None:
            given.append(stays)
    return Configs(tuple(given), tuple(oversized))


def config_for(live: LivePod, division: Division, template: PodConfig, copy: Copy) -> PodConfig:
    """The sealed config of one pod; `template` has what all pods of the pool have in common."""
    ours = Copy(_of(template, copy.stored), _of(template, copy.attempt))
    if live.awaited and ours.stored is not None:
        return ours.stored
    anonymous = template.anonymous_tenant if template.anonymous_tenant in division.grants else ""
    pod = PodRef(namespace=live.pod.namespace, name=live.pod.name, uid=live.pod.uid)
    config = msgspec.structs.replace(template, pod=pod, tenants=division.shares, anonymous_tenant=anonymous)
    config = _sealed(config, live, division, ours)
    generation = _generation(config.digest, live, copy)
    return config if config.generation == generation else msgspec.structs.replace(config, generation=generation)


def has_parts(config: PodConfig) -> bool:
    """Whether a share of it is a part of what a tenant has on all pods together."""
    return any(share.whole_hard_blocks is not None for share in config.tenants)


def _of(template: PodConfig, config: PodConfig | None) -> PodConfig | None:
    return config if config is not None and config.pool == template.pool else None


def _sealed(config: PodConfig, live: LivePod, division: Division, copy: Copy) -> PodConfig:
    """`config` with what it takes back and its digest: those of a copy that means the same, which is known faster."""
    if not is_in_doubt(live, copy.stored, copy.attempt):
        for known in (copy.attempt, copy.stored):
            if known is not None and _means_the_same(config, known):
                return known
    elif (plain := sealed(config)).digest == live.in_force.config_digest:
        return plain
    holdings = holdings_of(live, copy.stored, copy.attempt, division.kv, division.usable)
    return sealed(msgspec.structs.replace(config, earlier=earlier_shares(holdings, config.tenants)))


def _means_the_same(config: PodConfig, known: PodConfig) -> bool:
    same = msgspec.structs.replace(config, generation=known.generation, digest=known.digest, earlier=known.earlier)
    return same == known


def _generation(digest: str, live: LivePod, copy: Copy) -> int:
    in_force = live.in_force
    copies = [config for config in (copy.stored, copy.attempt) if config is not None]
    stored = max((config.generation for config in copies), default=0)
    newest = max(stored, in_force.generation)
    ahead = stored > in_force.generation
    if any(each.digest == digest and each.generation == newest and (ahead or _same(in_force, each)) for each in copies):
        return newest
    if in_force.config_digest == digest and in_force.generation > stored:
        return newest
    return newest + 1


def _same(in_force: InForce, config: PodConfig) -> bool:
    return in_force.generation == config.generation and in_force.config_digest == config.digest
