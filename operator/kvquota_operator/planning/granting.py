"""Every tenant's share on every pod.

Decides soft, hard and concurrency in blocks and sequences, pod by pod, from the effective quotas. Pure.

Invariants:

1. On each pod the softs sum to at most `shed.enterPercent` of its U; where they were asked for more, all are scaled.
2. No soft is larger than the hard beside it, and no computed hard larger than the pod's U. All are in blocks of the
   pod's own plan.
3. A percent of a PerReplica limit is of the pod's U, of a Pool limit of the U of all pods together, those that are
   leaving too; soft is always per pod. The parts of a Pool limit sum to at most that limit, or to what pods hold
   already where that is more. A pod that never ran has no part of it but what it may hold already, which nobody else
   could be given; only while no pod has run do all count, as planned.
4. A Shadow tenant has no guarantee: its soft is 0 and in no sum.
5. A share that is kept from an earlier config keeps its hard and its limits as they were. It asks for the soft that it
   is given: the config has no other once this is carried out, so dividing again finds and says the same.
6. Pods that are alike have one division between them, so a pool of many pods costs little more than one of few.

It does not know who is a duplicate, why a share is kept, or whether a report is true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

import msgspec

from kvquota_api.amounts import Blocks, Tokens, plus
from kvquota_api.memory.blocks import blocks_for
from kvquota_api.pod_config import KvPlan, TenantShare
from kvquota_operator.planning.blocks import blocks_of
from kvquota_operator.planning.demand import NO_DEMAND, Demand
from kvquota_operator.planning.effective import EffectiveQuota
from kvquota_operator.planning.exchange import Measure, exchange_of
from kvquota_operator.planning.following import Place, targets
from kvquota_operator.planning.guarantees import given_softs, guarantee_limit
from kvquota_operator.planning.holding import NO_HOLDINGS, Holdings
from kvquota_operator.planning.moving import Part, moved
from kvquota_operator.planning.spreading import pods_served
from kvquota_operator.planning.stakes import Stake, Terms


@dataclass(frozen=True, slots=True)
class PodRoom:
    """One pod to divide: `usable` is its U, `kv` its plan, in whose blocks all is. `kept`: shares of an earlier config
    that stay.

    `holdings`: what the pod may hold already; `has_run`: it is known to run, or to have run. `demands`: what tenants
    ask for there, by id; None where nobody knows. Two pods that differ in nothing else are alike.
    """

    usable: Blocks
    kv: KvPlan
    kept: tuple[TenantShare, ...] = ()
    holdings: Holdings = field(default=NO_HOLDINGS, compare=False)
    has_run: bool = field(default=True, compare=False)
    demands: Mapping[str, Demand] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Grant:
    """One tenant on one pod, and what its quota asked for there, in blocks, before it met the pod."""

    share: TenantShare
    soft_asked: Blocks
    hard_asked: Blocks


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """One pod of the plan `kv`, divided: all grants by tenant id, and their shares in the order of ids.

    `limit`: what softs may sum to; `softs_asked` and `softs_given`: what they sum to as asked for and as given.
    """

    kv: KvPlan
    usable: Blocks
    limit: Blocks
    softs_asked: Blocks
    softs_given: Blocks
    grants: Mapping[str, Grant]
    shares: tuple[TenantShare, ...]


class _Ceiling(NamedTuple):
    """`asked`: what the pod should have in the end. `whole`: hard of all pods together; None where each has its own."""

    asked: Blocks
    hard: Blocks
    concurrent: int | None
    whole: Blocks | None = None


class _Kind(NamedTuple):
    """What a quota asks for is the same on all pods of one size and plan."""

    usable: Blocks
    kv: KvPlan


@dataclass(frozen=True, slots=True)
class _Pods:
    """`rooms`: those to divide, then those that are leaving; `leaving`: how many these are. `kinds` of all of them, and
    `kind`: of each its place in `kinds`. `first`: none has run yet."""

    rooms: Sequence[PodRoom]
    leaving: int
    kinds: Sequence[_Kind]
    kind: Sequence[int]
    first: bool

    @classmethod
    def of(cls, rooms: Sequence[PodRoom], leaving: Sequence[PodRoom]) -> _Pods:
        places: dict[_Kind, int] = {}
        kind = [places.setdefault(_Kind(room.usable, room.kv), len(places)) for room in (*rooms, *leaving)]
        first = not any(room.has_run for room in rooms)
        return cls((*rooms, *leaving), len(leaving), tuple(places), kind, first)

    @property
    def divided(self) -> int:
        """How many of `rooms` are to divide."""
        return len(self.rooms) - self.leaving


def grant_shares(
    quotas: Sequence[EffectiveQuota],
    rooms: Sequence[PodRoom],
    shed_enter_percent: int,
    leaving: Sequence[PodRoom] = (),
) -> tuple[Division, ...]:
    """The division of every pod, in the order of `rooms`; remainders of Pool limits go to the first of them.

    Quotas and kept shares are of different tenants. `leaving`: pods that get nothing new and still hold what they have.
    """
    pods = _Pods.of(rooms, leaving)
    ceilings = [_ceilings(quota, pods) for quota in quotas]
    found: dict[tuple[int, tuple[TenantShare, ...], tuple[_Ceiling, ...]], Division] = {}
    divisions = []
    by_pod = zip(*ceilings, strict=False) if ceilings else repeat(())
    for room, kind, met in zip(rooms, pods.kind, by_pod, strict=False):
        alike = kind, room.kept, met
        if alike not in found:
            found[alike] = _divide(room, met, quotas, shed_enter_percent)
        divisions.append(found[alike])
    return tuple(divisions)


def _ceilings(quota: EffectiveQuota, pods: _Pods) -> Sequence[_Ceiling]:
    if quota.scope == "Pool":
        return _spread(quota, pods)
    by_kind = [_ceiling(quota, *kind) for kind in pods.kinds]
    return [by_kind[kind] for kind in pods.kind]


def _ceiling(quota: EffectiveQuota, usable: Blocks, kv: KvPlan) -> _Ceiling:
    asked = usable if quota.hard is None else blocks_of(quota.hard, usable, kv)
    return _Ceiling(asked, Blocks(min(asked, usable)), quota.max_concurrent_requests)


def _spread(quota: EffectiveQuota, pods: _Pods) -> Sequence[_Ceiling]:
    """The ceiling on each of the pods to divide: what it should have in the end, as far as the others have let go."""
    total, terms, stakes = _stakes(quota, pods)
    least = max(each.measure.units(each.longest) for each in terms)
    served = _served(quota, total, least, stakes[: pods.divided])
    hards = _moved(total, least, served, [each.units(least) for each in stakes])
    limit = quota.max_concurrent_requests
    sequences = None if limit is None else _moved(limit, 1, served, [each.sequences(limit) for each in stakes])
    asked = _asked(total, served, stakes)
    return _parts(stakes[: pods.divided], asked, hards, [None] * len(stakes) if sequences is None else sequences)


def _stakes(quota: EffectiveQuota, pods: _Pods) -> tuple[int, Sequence[Terms], Sequence[Stake]]:
    """The limit over all pods, in a unit that they have in common, and what each may hold of it."""
    holdings = [room.holdings.of(quota.tenant) for room in pods.rooms]
    grows = [room.has_run or pods.first for room in pods.rooms]
    counted = [0] * len(pods.kinds)
    for kind, holding, may in zip(pods.kind, holdings, grows, strict=True):
        if may or holding.blocks:
            counted[kind] += pods.kinds[kind].usable
    total, terms = _terms(quota, pods.kinds, counted)
    stakes = []
    for room, kind, holding, may in zip(pods.rooms, pods.kind, holdings, grows, strict=True):
        demand = None if room.demands is None else room.demands.get(quota.tenant, NO_DEMAND)
        stakes.append(Stake(terms[kind], holding, may, demand))
    return total, terms, stakes


def _terms(quota: EffectiveQuota, kinds: Sequence[_Kind], counted: Sequence[int]) -> tuple[int, Sequence[Terms]]:
    """The limit, and what holds for each of `kinds`; `counted`: U of all pods of each kind that count."""
    sizes = [(kind.kv, Blocks(usable)) for kind, usable in zip(kinds, counted, strict=True)]
    exchange = exchange_of(quota.hard, sizes, {kind.kv for kind in kinds})
    found = []
    for usable, kv in kinds:
        measure, longest = exchange.measures[kv], longest_request(quota.max_context_tokens, kv)
        room, soft = measure.units(usable), measure.units(_soft_asked(quota, usable, kv))
        found.append(Terms(usable=usable, longest=longest, measure=measure, room=room, soft=soft))
    return exchange.total, found


def _served(quota: EffectiveQuota, total: int, least: int, stakes: Sequence[Stake]) -> Sequence[int]:
    """The places of the pods that should have a part."""
    open_pods = [place for place, stake in enumerate(stakes) if stake.counts]
    served = pods_served(total, least, len(open_pods))
    if quota.max_concurrent_requests is not None:
        served = min(served, quota.max_concurrent_requests)
    if served >= len(open_pods):
        return open_pods
    in_turn = sorted(open_pods, key=lambda place: stakes[place].turn)
    return sorted(in_turn[:served])


def _moved(total: int, least: int, served: Sequence[int], places: Sequence[Place]) -> Sequence[int]:
    """Of each pod the part to set now; those that are not served have none in the end."""
    if len(served) < len(places):
        chosen = set(served)
        places = [each if place in chosen else each._replace(room=0) for place, each in enumerate(places)]
    aims = targets(total, len(served), places)
    if aims == tuple([each.held for each in places]):
        return aims
    return moved([Part(aim, each.held, each.given) for aim, each in zip(aims, places, strict=True)], total, least)


def _parts(
    stakes: Sequence[Stake], asked: Sequence[int], hards: Sequence[int], sequences: Sequence[int | None]
) -> Sequence[_Ceiling]:
    """`asked` and `hards` in units. Many pods have the same, and then the same ceiling."""
    made: dict[tuple[Measure, int, int, int | None], _Ceiling] = {}
    found = []
    for stake, wanted, hard, running in zip(stakes, asked, hards, sequences, strict=False):
        part = stake.terms.measure, wanted, hard, running
        if part not in made:
            made[part] = _part(*part)
        found.append(made[part])
    return found


def _part(measure: Measure, asked: int, hard: int, sequences: int | None) -> _Ceiling:
    """`asked` and `hard` in units. A pod without a part has hard 0, which refuses everything; 1 is the least that a
    config can state."""
    blocks, wanted = measure.blocks(hard), measure.blocks(asked)
    if not blocks or sequences == 0:
        return _Ceiling(wanted, Blocks(0), None if sequences is None else 1, measure.whole)
    return _Ceiling(wanted, blocks, sequences, measure.whole)


def _asked(total: int, served: Sequence[int], stakes: Sequence[Stake]) -> list[int]:
    """Of each pod an equal part, however large; 0 where it is not served although it could be."""
    part, remainder = divmod(total, len(served))
    asked = [0 if stake.counts else part for stake in stakes]
    for turn, place in enumerate(served):
        asked[place] = part + (1 if turn < remainder else 0)
    return asked


def longest_request(max_context_tokens: int | None, kv: KvPlan) -> Blocks:
    """Blocks of the tenant's longest request, at least 1; without a limit of its own the model's."""
    length = kv.max_model_len if max_context_tokens is None else min(max_context_tokens, kv.max_model_len)
    return Blocks(max(1, blocks_for(kv.groups, Tokens(length))))


def _divide(
    room: PodRoom, ceilings: Sequence[_Ceiling], quotas: Sequence[EffectiveQuota], shed_enter_percent: int
) -> Division:
    limit = guarantee_limit(room.usable, shed_enter_percent)
    wanted = [_soft_asked(quota, room.usable, room.kv) for quota in quotas]
    asked = {
        quota.tenant: Blocks(min(soft, ceiling.hard))
        for quota, soft, ceiling in zip(quotas, wanted, ceilings, strict=True)
    }
    kept = {share.id: Blocks(share.soft_blocks) for share in room.kept}
    softs = given_softs(asked, kept, limit)
    grants: dict[str, Grant] = {}
    for quota, soft, ceiling in zip(quotas, wanted, ceilings, strict=True):
        grants[quota.tenant] = Grant(_share(quota, ceiling, softs[quota.tenant]), soft, ceiling.asked)
    for share in room.kept:
        given = msgspec.structs.replace(share, soft_blocks=softs[share.id])
        grants[share.id] = Grant(given, softs[share.id], Blocks(share.hard_blocks))
    return Division(
        kv=room.kv,
        usable=room.usable,
        limit=limit,
        softs_asked=plus(*asked.values(), *(softs[share.id] for share in room.kept)),
        softs_given=plus(*softs.values()),
        grants=grants,
        shares=tuple(grants[tenant].share for tenant in sorted(grants)),
    )


def _soft_asked(quota: EffectiveQuota, usable: Blocks, kv: KvPlan) -> Blocks:
    if quota.soft is None or quota.enforcement == "Shadow":
        return Blocks(0)
    return blocks_of(quota.soft, usable, kv)


def _share(quota: EffectiveQuota, ceiling: _Ceiling, soft: Blocks) -> TenantShare:
    return TenantShare(
        id=quota.tenant,
        quota=quota.quota,
        priority=quota.priority,
        soft_blocks=soft,
        hard_blocks=ceiling.hard,
        max_concurrent_requests=ceiling.concurrent,
        max_context_tokens=quota.max_context_tokens,
        enforcement=quota.enforcement,
        whole_hard_blocks=ceiling.whole,
        whole_concurrent_requests=None if ceiling.whole is None else quota.max_concurrent_requests,
    )
