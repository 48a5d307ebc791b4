"""The lines that the pool draws: softs in force, the reserve for guarantees, and each tenant's shed threshold.

Decides all that depends on the config and on U alone. Pure.

Invariants:

1. The softs in force never sum to more than `shed.enterPercent` of U.
2. Shed thresholds grow with priority, from `shed.enterPercent` to `evict.enterPercent`, and stay between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvquota_api.amounts import Blocks, Hundredths, Tokens, percent_of
from kvquota_api.pod_config import KvPlan, Ladder, PodConfig, TenantShare


@dataclass(frozen=True, slots=True)
class Lines:
    """Of all ranks together, in blocks. `usable`: U. `reserve`: R. `softs`: in force; `soft_sum` of them. `sheds`:
    percent of pressure."""

    usable: Blocks
    reserve: Blocks
    softs: Mapping[str, Blocks]
    soft_sum: Blocks
    sheds: Mapping[str, float]


def draw(config: PodConfig, measured: Blocks | None) -> Lines:
    """The lines of a config on an engine that measured so many blocks of a rank, its null block included (None: not
    yet)."""
    usable = usable_blocks(config.kv, measured)
    softs = softs_in_force(config, usable)
    reserve = guarantee_reserve(config.ladder, usable)
    return Lines(usable, reserve, softs, Blocks(sum(softs.values())), shed_thresholds(config))


def usable_blocks(kv: KvPlan, measured: Blocks | None) -> Blocks:
    """U = min(cap, measured) − null block of each rank, summed; by the plan where nothing was measured yet."""
    blocks = kv.cap_blocks if measured is None else measured
    return Blocks(kv.ranks * max(0, min(kv.cap_blocks, blocks) - kv.null_blocks))


def guarantee_reserve(ladder: Ladder, usable: Blocks) -> Blocks:
    """R: what stays free of over-soft work while others may still claim it."""
    return percent_of(usable, Hundredths(ladder.guarantee_reserve_percent * 100))


def softs_in_force(config: PodConfig, usable: Blocks) -> Mapping[str, Blocks]:
    """Soft of each tenant: none in Shadow, all scaled down in proportion where they sum to more than may be."""
    softs = {share.id: 0 if share.enforcement == "Shadow" else share.soft_blocks for share in config.tenants}
    total, most = sum(softs.values()), percent_of(usable, Hundredths(config.ladder.shed.enter_percent * 100))
    if total <= most:
        return {tenant: Blocks(soft) for tenant, soft in softs.items()}
    return {tenant: Blocks(soft * most // total) for tenant, soft in softs.items()}


def shed_thresholds(config: PodConfig) -> Mapping[str, float]:
    """Percent of pressure at which each tenant's over-soft work is refused."""
    priorities = [share.priority for share in config.tenants]
    lowest, highest = min(priorities, default=0), max(priorities, default=0)
    first, last = config.ladder.shed.enter_percent, config.ladder.evict.enter_percent
    if lowest == highest:
        return {share.id: float(first) for share in config.tenants}
    slope = (last - first) / (highest - lowest)
    return {share.id: first + slope * (share.priority - lowest) for share in config.tenants}


def context_limit(share: TenantShare, max_model_len: Tokens) -> Tokens:
    """Tokens that a sequence of this tenant may have; a limit in Shadow is only counted, the engine's own holds."""
    own = None if share.enforcement == "Shadow" else share.max_context_tokens
    return max_model_len if own is None else Tokens(min(own, max_model_len))
