"""What every pod may hold of the tenants: by its durable copy, by its report, and by what nobody knows.

Decides how much of a limit over all pods one pod must be taken to hold. Pure.

Invariants:

1. A share counts from before its config is stored until the pod reports that a config with less is in force, and that
   it would find that one after a restart: a mounted copy is refreshed a minute later than the channel brings it.
2. What was taken back is remembered in the durable copy itself (`PodConfig.earlier`), so an operator that starts knows
   as much as the one before it.
3. What the tenant's work holds counts too, where that is more: what a lowered share leaves running is not free.
4. A pod that has a config which is neither the durable copy nor older may hold all that it has of any tenant.
5. A copy of another plan counts for the most that its blocks may be in blocks of the pod's plan, and what it gives for
   the least: nothing grows by being counted otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from kvquota_api.amounts import Blocks
from kvquota_api.pod_config import MAX_TENANTS, EarlierShare, KvPlan, PodConfig, TenantShare
from kvquota_api.usage import InForce
from kvquota_operator.planning.exchange import least_blocks_in, most_blocks_in
from kvquota_operator.planning.holding import NOTHING, UNLIMITED, Holding, Holdings
from kvquota_operator.reconcile.pods import LivePod

_ById = tuple[str, Holding]
_FOUND: Final = "File"  # where a config comes from that a pod would find again after a restart


class Allowances:
    """What configs allow, found once for all pods that have the same shares. For one decision."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int, int], tuple[PodConfig, KvPlan, Mapping[str, Holding]]] = {}

    def by(self, config: PodConfig, kv: KvPlan) -> Mapping[str, Holding]:
        """Of every tenant of a config, the most that its share allows in blocks of `kv`."""
        key = id(config.tenants), id(config.kv), id(kv)
        if key not in self._found:
            shares = ((share.id, holding_by(share)) for share in config.tenants)
            self._found[key] = config, kv, dict(_in_blocks_of(kv, config, shares))
        return self._found[key][2]


def holdings_of(
    live: LivePod,
    durable: PodConfig | None,
    attempt: PodConfig | None,
    kv: KvPlan,
    usable: Blocks,
    *,
    allowances: Allowances | None = None,
) -> Holdings:
    """What a pod of `usable` blocks, all of the plan `kv`, may hold. `durable`: its copy, None where it has none.

    `attempt`: the copy that is being written. `allowances`: of the same decision.
    """
    allowed = {} if durable is None else (allowances or Allowances()).by(durable, kv)
    own: dict[str, Holding] = {}
    for tenant, holding in _beside(live, durable, attempt, kv):
        own[tenant] = holding.or_more(own.get(tenant) or allowed.get(tenant, NOTHING))
    for usage in () if live.report is None else live.report.tenants:
        known = own.get(usage.id) or allowed.get(usage.id, NOTHING)
        if usage.reserved > known.blocks or usage.in_flight > known.sequences:
            work = Holding(Blocks(min(usage.reserved, usable)), min(usage.in_flight, UNLIMITED))
            own[usage.id] = work.or_more(known)
    together = {**allowed, **own} if own else allowed
    if is_in_doubt(live, durable, attempt):
        return Holdings(together, Holding(usable, UNLIMITED, usable, UNLIMITED))
    return Holdings(together)


def _beside(live: LivePod, durable: PodConfig | None, attempt: PodConfig | None, kv: KvPlan) -> Iterator[_ById]:
    """What configs allow beside the newest that is stored."""
    if attempt is not None:
        yield from _in_blocks_of(kv, attempt, ((share.id, _no_more(holding_by(share))) for share in attempt.tenants))
    if durable is not None and not _is_confirmed(live, durable):
        yield from _in_blocks_of(kv, durable, ((share.id, _earlier(share)) for share in durable.earlier))


def _in_blocks_of(kv: KvPlan, copy: PodConfig, holdings: Iterable[_ById]) -> Iterable[_ById]:
    """What a copy says, in blocks of the pod's plan."""
    if copy.kv == kv:
        return holdings
    return ((tenant, _converted(kv, holding, copy.kv)) for tenant, holding in holdings)


def _converted(kv: KvPlan, holding: Holding, of: KvPlan) -> Holding:
    most, least = most_blocks_in(kv, holding.blocks, of), least_blocks_in(kv, holding.given_blocks, of)
    return replace(holding, blocks=most, given_blocks=least)


def holding_by(share: TenantShare) -> Holding:
    """The most that this share allows; a hard of 0 refuses everything."""
    if not share.hard_blocks:
        return NOTHING
    blocks = Blocks(share.hard_blocks)
    sequences = UNLIMITED if share.max_concurrent_requests is None else share.max_concurrent_requests
    return Holding(blocks, sequences, blocks, sequences)


def _no_more(holding: Holding) -> Holding:
    """The same of a config that is not stored for certain."""
    return Holding(holding.blocks, holding.sequences)


def _earlier(share: EarlierShare) -> Holding:
    limit = share.max_concurrent_requests
    return Holding(Blocks(share.hard_blocks), UNLIMITED if limit is None else limit)


def is_in_doubt(live: LivePod, durable: PodConfig | None, attempt: PodConfig | None) -> bool:
    """Whether the pod enforces something that no copy tells: its copy was deleted, or put back."""
    in_force = live.in_force
    if not in_force.generation or _is_same(in_force, durable) or _is_same(in_force, attempt):
        return False
    return durable is None or in_force.generation >= durable.generation


def _is_same(in_force: InForce, config: PodConfig | None) -> bool:
    return config is not None and in_force.config_digest == config.digest


def _is_confirmed(live: LivePod, durable: PodConfig) -> bool:
    in_force = live.in_force
    newest = _is_same(in_force, durable) and in_force.generation >= durable.generation
    return newest and (in_force.source == _FOUND or live.pod.config_map is None)


def earlier_shares(holdings: Holdings, shares: Iterable[TenantShare]) -> tuple[EarlierShare, ...]:
    """What a new config with these shares takes back, as far as the pod may still hold it; the largest first."""
    given = {share.id: share for share in shares}
    found = []
    for tenant in sorted({*holdings.known, *given}):
        share = given.get(tenant)
        divided = share is not None and share.whole_hard_blocks is not None
        holding = holdings.of(tenant) if divided else holdings.known.get(tenant, NOTHING)
        if not holding.within(NOTHING if share is None else holding_by(share)):
            found.append(_remembered(tenant, holding))
    return tuple(sorted(found, key=lambda each: -each.hard_blocks)[:MAX_TENANTS])


def _remembered(tenant: str, holding: Holding) -> EarlierShare:
    limit = None if holding.sequences >= UNLIMITED else holding.sequences
    return EarlierShare(id=tenant, hard_blocks=holding.blocks, max_concurrent_requests=limit)
