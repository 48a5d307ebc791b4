"""What the pods report, added up.

Decides the sums of a tenant and of the pool over the reports that count. Pure.

Invariants:

1. A number that no report has is None, never 0; a number that some reports have is the sum of those.
2. A pod is believed up to what its card can hold: no more blocks of it are counted than it has.
3. The same reports give the same sums, in whatever order the pods are listed.

It does not know which reports are fresh: it is given those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from kvquota_api.amounts import Blocks
from kvquota_api.pod_config import KvPlan
from kvquota_api.quota import RecentCounts
from kvquota_api.tenant_quota import LastRefusal
from kvquota_api.usage import LONGEST_WORD, MAX_CODES, Counts, PoolUsage, Refusal, Rung, TenantUsage, UsageReport
from kvquota_operator.planning.blocks import usable_blocks
from kvquota_operator.reconcile.amounts import counted

OWN_HARD: Final = "tenant_kv_quota_exceeded"  # what clients are told whose tenant has reached its hard
MAX_SEQUENCES: Final = 1_000_000  # in flight on one pod, more than any engine runs: what is above it is not believed
Accounting = Literal["Estimated", "Exact"]

RUNGS: Final[tuple[Rung, ...]] = ("Normal", "Shed", "Evict", "Truncate", "Fallback")
LATEST_TIME: Final = 253_402_300_799.0  # Unix seconds of the last second of the year 9999: the last that can be written


@dataclass(frozen=True, slots=True)
class TenantSums:
    """One tenant over all pods that report it; `guarantee_missed` in the last ten minutes, as `recent`.

    `prefix_hit_rate_percent`: of the prompts of the last ten minutes; None where no engine said what it found.
    """

    reserved: Blocks
    used: Blocks
    over_soft: Blocks
    in_flight: int
    guarantee_missed: int
    recent: RecentCounts
    last_refusal: LastRefusal | None
    prefix_hit_rate_percent: int | None


@dataclass(frozen=True, slots=True)
class PoolSums:
    """The pool over all pods that report; `measured` with the blocks that the engines never hand out."""

    measured: Blocks | None
    reserved: Blocks | None
    used: Blocks | None
    unattributed: Blocks | None
    accounting: Accounting | None
    pressure_percent: int | None
    rung: Rung | None
    recent: RecentCounts | None


@dataclass(frozen=True, slots=True)
class _Claim:
    """What one pod says of a tenant, and how many blocks it can hand out."""

    usage: TenantUsage
    usable: Blocks


def tenant_sums(reports: Iterable[UsageReport], kv: KvPlan) -> dict[str, TenantSums]:
    """The sums of every tenant that a report names, by id."""
    found: dict[str, list[_Claim]] = {}
    for report in reports:
        usable = usable_blocks(kv, report.engine.blocks)
        for usage in report.tenants:
            found.setdefault(usage.id, []).append(_Claim(usage, usable))
    return {tenant: _tenant(claims) for tenant, claims in found.items()}


def pool_sums(reports: Iterable[UsageReport], tenants: Mapping[str, TenantSums], kv: KvPlan) -> PoolSums:
    """The sums of the pool; `tenants` are those of the same reports."""
    present = tuple(reports)
    blocks = [report.engine.blocks for report in present if report.engine.blocks is not None]
    pools = [(report.pool, usable_blocks(kv, report.engine.blocks)) for report in present if report.pool is not None]
    return PoolSums(
        measured=Blocks(sum(blocks)) if blocks else None,
        reserved=_sum(min(pool.reserved, usable) for pool, usable in pools),
        used=_sum(min(pool.used, usable) for pool, usable in pools),
        unattributed=_sum(min(pool.unattributed, usable) for pool, usable in pools),
        accounting=_accounting(pool for pool, _ in pools),
        pressure_percent=max((_percent(pool) for pool, _ in pools), default=None),
        rung=max((pool.rung for pool, _ in pools), key=RUNGS.index, default=None),
        recent=recent_counts([each.recent for each in tenants.values()]) if tenants else None,
    )


def recent_counts(counts: Sequence[Counts | RecentCounts]) -> RecentCounts:
    """Several counts of the last ten minutes as one."""
    rejected = _codes([_rejected(each) for each in counts])
    return RecentCounts(
        admitted=counted(sum(each.admitted for each in counts)),
        rejected_total=counted(sum(rejected.values())),
        rejected=rejected,
        would_reject=_codes([each.would_reject for each in counts]),
        evicted=counted(sum(each.evicted for each in counts)),
        degraded=_codes([each.degraded for each in counts]),
    )


def _rejected(counts: Counts | RecentCounts) -> Mapping[str, int]:
    """What was refused, and what was ended past its own hard: its client was told the same code."""
    if isinstance(counts, RecentCounts) or not counts.ended:
        return counts.rejected
    return Counter(counts.rejected) + Counter({OWN_HARD: counts.ended})


def _codes(tables: Iterable[Mapping[str, int]]) -> dict[str, int]:
    together: Counter[str] = Counter()
    for table in filter(None, tables):
        together.update(table)
    known = sorted(code for code, count in together.items() if count and len(code) <= LONGEST_WORD)
    return {code: counted(together[code]) for code in known[:MAX_CODES]}


def _tenant(claims: Sequence[_Claim]) -> TenantSums:
    return TenantSums(
        reserved=Blocks(sum(min(each.usage.reserved, each.usable) for each in claims)),
        used=Blocks(sum(min(each.usage.used, each.usable) for each in claims)),
        over_soft=Blocks(sum(min(each.usage.over_soft, each.usable) for each in claims)),
        in_flight=sum(min(each.usage.in_flight, MAX_SEQUENCES) for each in claims),
        guarantee_missed=sum(each.usage.recent.guarantee_missed for each in claims),
        recent=recent_counts([each.usage.recent for each in claims]),
        last_refusal=_newest(each.usage.last_refusal for each in claims),
        prefix_hit_rate_percent=hit_rate_percent(_prompts(each.usage.recent) for each in claims),
    )


def _prompts(counts: Counts) -> tuple[int, int]:
    return counts.prompt_tokens, counts.cached_tokens


def hit_rate_percent(prompts: Iterable[tuple[int, int]]) -> int | None:
    """Of prompts, as (tokens, those of them that were found), how much was found; None where there were none."""
    asked = found = 0
    for tokens, cached in prompts:
        asked += tokens
        found += min(cached, tokens)
    return found * 100 // asked if asked else None


def _newest(refusals: Iterable[Refusal | None]) -> LastRefusal | None:
    dated = [each for each in refusals if each is not None and 0 <= each.at <= LATEST_TIME]
    newest = max(dated, key=lambda each: (each.at, each.code, each.message), default=None)
    if newest is None:
        return None
    return LastRefusal(
        code=newest.code[:LONGEST_WORD], message=newest.message, time=datetime.fromtimestamp(int(newest.at), UTC)
    )


def _accounting(pools: Iterable[PoolUsage]) -> Accounting | None:
    kinds = {pool.accounting for pool in pools}
    if not kinds:
        return None
    return "Exact" if kinds == {"Exact"} else "Estimated"


def _sum(amounts: Iterable[int]) -> Blocks | None:
    present = tuple(amounts)
    return Blocks(sum(present)) if present else None


def _percent(pool: PoolUsage) -> int:
    return round(min(100.0, max(0.0, pool.pressure_percent)))
