"""What the pods report, added up.

Decides the sums of a tenant and of the pool over the reports that count. Pure.

Invariants:

1. A number that no report has is None, never 0; a number that some reports have is the sum of those.
2. A pod is believed up to what its card can hold: no more blocks of it are counted than it has.
3. The same reports give the same sums, in whatever order the pods are listed.

It does not know which reports are fresh: it is given those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Counted:
    """Counts of the last ten minutes, as they add up."""

    admitted: int = 0
    evicted: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    would_reject: dict[str, int] = field(default_factory=dict)
    degraded: dict[str, int] = field(default_factory=dict)

    def add(self, counts: Counts | RecentCounts) -> None:
        """What was ended past its own hard counts as refused: its client was told the same code."""
        self.admitted += counts.admitted
        self.evicted += counts.evicted
        if counts.rejected:
            _add(self.rejected, counts.rejected)
        if counts.would_reject:
            _add(self.would_reject, counts.would_reject)
        if counts.degraded:
            _add(self.degraded, counts.degraded)
        if isinstance(counts, Counts) and counts.ended:
            _add(self.rejected, {OWN_HARD: counts.ended})

    def sums(self) -> RecentCounts:
        """As a status carries them."""
        rejected = _codes(self.rejected)
        return RecentCounts(
            admitted=counted(self.admitted),
            rejected_total=counted(sum(rejected.values())),
            rejected=rejected,
            would_reject=_codes(self.would_reject),
            evicted=counted(self.evicted),
            degraded=_codes(self.degraded),
        )


@dataclass(slots=True)
class _Tenant:
    """What the pods say of one tenant, as it adds up.

    `add` is called thousands of times in every pass, and nothing else of a pass takes as long: with four calls of `min`
    in it, half as long again.
    """

    reserved: int = 0
    used: int = 0
    over_soft: int = 0
    in_flight: int = 0
    guarantee_missed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    last_refusal: Refusal | None = None
    recent: _Counted = field(default_factory=_Counted)

    def add(self, usage: TenantUsage, usable: int) -> None:
        """`usable`: how many blocks the pod can hand out."""
        recent = usage.recent
        self.reserved += usage.reserved if usage.reserved < usable else usable
        self.used += usage.used if usage.used < usable else usable
        self.over_soft += usage.over_soft if usage.over_soft < usable else usable
        self.in_flight += usage.in_flight if usage.in_flight < MAX_SEQUENCES else MAX_SEQUENCES
        self.guarantee_missed += recent.guarantee_missed
        if recent.prompt_tokens:
            self.prompt_tokens += recent.prompt_tokens
            self.cached_tokens += min(recent.cached_tokens, recent.prompt_tokens)
        self.recent.add(recent)
        if usage.last_refusal is not None:
            self.last_refusal = _newer(usage.last_refusal, self.last_refusal)

    def sums(self) -> TenantSums:
        return TenantSums(
            reserved=Blocks(self.reserved),
            used=Blocks(self.used),
            over_soft=Blocks(self.over_soft),
            in_flight=self.in_flight,
            guarantee_missed=self.guarantee_missed,
            recent=self.recent.sums(),
            last_refusal=None if self.last_refusal is None else _written(self.last_refusal),
            prefix_hit_rate_percent=hit_rate_percent([(self.prompt_tokens, self.cached_tokens)]),
        )


def tenant_sums(reports: Sequence[UsageReport], kv: KvPlan) -> dict[str, TenantSums]:
    """The sums of every tenant that a report names, by id."""
    usable, found = _usable_by_size(reports, kv), dict[str, _Tenant]()
    for report in reports:
        most = usable[report.engine.blocks]
        for usage in report.tenants:
            tenant = found.get(usage.id)
            if tenant is None:
                tenant = found[usage.id] = _Tenant()
            tenant.add(usage, most)
    return {name: tenant.sums() for name, tenant in found.items()}


def pool_sums(reports: Sequence[UsageReport], tenants: Mapping[str, TenantSums], kv: KvPlan) -> PoolSums:
    """The sums of the pool; `tenants` are those of the same reports."""
    usable = _usable_by_size(reports, kv)
    blocks = [report.engine.blocks for report in reports if report.engine.blocks is not None]
    pools = [(report.pool, usable[report.engine.blocks]) for report in reports if report.pool is not None]
    return PoolSums(
        measured=Blocks(sum(blocks)) if blocks else None,
        reserved=_sum(min(pool.reserved, most) for pool, most in pools),
        used=_sum(min(pool.used, most) for pool, most in pools),
        unattributed=_sum(min(pool.unattributed, most) for pool, most in pools),
        accounting=_accounting(pool for pool, _ in pools),
        pressure_percent=max((_percent(pool) for pool, _ in pools), default=None),
        rung=max((pool.rung for pool, _ in pools), key=RUNGS.index, default=None),
        recent=recent_counts(each.recent for each in tenants.values()) if tenants else None,
    )


def _usable_by_size(reports: Iterable[UsageReport], kv: KvPlan) -> dict[int | None, Blocks]:
    """U by what an engine says of its size: the engines of one pool are mostly alike."""
    return {blocks: usable_blocks(kv, blocks) for blocks in {report.engine.blocks for report in reports}}


def recent_counts(counts: Iterable[Counts | RecentCounts]) -> RecentCounts:
    """Several counts of the last ten minutes as one."""
    together = _Counted()
    for each in counts:
        together.add(each)
    return together.sums()


def _add(table: dict[str, int], more: Mapping[str, int]) -> None:
    for code, count in more.items():
        table[code] = table.get(code, 0) + count


def _codes(table: Mapping[str, int]) -> dict[str, int]:
    known = sorted(code for code, count in table.items() if count and len(code) <= LONGEST_WORD)
    return {code: counted(table[code]) for code in known[:MAX_CODES]}


def hit_rate_percent(prompts: Iterable[tuple[int, int]]) -> int | None:
    """Of prompts, as (tokens, those of them that were found), how much was found; None where there were none."""
    asked = found = 0
    for tokens, cached in prompts:
        asked += tokens
        found += min(cached, tokens)
    return found * 100 // asked if asked else None


def _newer(refusal: Refusal, known: Refusal | None) -> Refusal | None:
    """The newer one of two, as far as its time can be written; of two at once always the same."""
    if not 0 <= refusal.at <= LATEST_TIME:
        return known
    if known is None or (refusal.at, refusal.code, refusal.message) > (known.at, known.code, known.message):
        return refusal
    return known


def _written(refusal: Refusal) -> LastRefusal:
    time = datetime.fromtimestamp(int(refusal.at), UTC)
    return LastRefusal(code=refusal.code[:LONGEST_WORD], message=refusal.message, time=time)


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
