"""Whether one request is admitted: a chain of rules, each of which refuses or lets pass.

Decides by docs/accounting.md, steps 4 to 7: what can never be, concurrency, hard, room. Pure.

Invariants:

1. The first rule that refuses decides; its code and its sentence reach client, counter and status unchanged.
2. What can never fit is refused for good and names the setting; everything else can be retried.
3. A rule of the tenant's own limits only counts where the tenant is in Shadow; no rule refuses where the pool is.
4. The chain takes nothing: the caller does, in the same step, when all rules have passed.

It does not know how the figures came about (`ledger`), nor who asks (`proxy`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kvquota_api.amounts import Blocks, Tokens
from kvquota_sidecar.admission.case import Case
from kvquota_sidecar.refusals import Code, Refusal, refuse


class Owner(Enum):
    """Whose limit a rule keeps, and so whose Shadow suspends it."""

    TENANT = "tenant"
    POOL = "pool"


@dataclass(frozen=True, slots=True)
class Grant:
    """The request may run. `would_reject`: what would have refused it without Shadow."""

    would_reject: Refusal | None = None


def decide(case: Case) -> Grant | Refusal:
    """The first enforced refusal, else a grant that carries the first one that was only counted."""
    counted: Refusal | None = None
    for owner, rule in RULES:
        refusal = rule(case)
        if refusal is None:
            continue
        if _enforced(owner, case):
            return refusal
        counted = counted or refusal
    return Grant(counted)


def _enforced(owner: Owner, case: Case) -> bool:
    if case.pool.shadow:
        return False
    return owner is Owner.POOL or case.holder.share.enforcement == "Enforce"


def model_context(case: Case) -> Refusal | None:
    """No sequence is longer than the engine's longest."""
    setting = f"ModelPool {case.pool.name} (spec.model.maxModelLen)"
    return _context(case, case.pool.max_model_len, setting)


def tenant_context(case: Case) -> Refusal | None:
    """No sequence is longer than the tenant's `maxContextTokens`."""
    limit, quota = case.holder.share.max_context_tokens, case.holder.share.quota
    return None if limit is None else _context(case, limit, f"TenantQuota {quota} (spec.maxContextTokens)")


def _context(case: Case, limit: int, setting: str) -> Refusal | None:
    prompt, output = case.demand.prompt, case.demand.output_limit
    output = Tokens(1) if output is None else output
    if prompt + output <= limit:
        return None
    return refuse(
        Code.CONTEXT_LENGTH_EXCEEDED,
        f"The request may become {prompt + output} tokens long (about {prompt} of input and {output} of output) and "
        f"{setting} allows {limit}. Shorten the input or lower max_tokens.",
    )


def never_within_hard(case: Case) -> Refusal | None:
    """At its limits the request fits the tenant's whole hard."""
    share = case.holder.share
    if case.demand.full <= share.hard_blocks:
        return None
    reason = f"TenantQuota {share.quota} (spec.kv.hard) allows {case.tokens(share.hard_blocks)}"
    return _never(case, case.demand.full, reason)


def never_within_pool(case: Case) -> Refusal | None:
    """At its limits the request fits the whole pool."""
    if case.demand.full <= case.pool.usable:
        return None
    reason = f"ModelPool {case.pool.name} (spec.memory.kvPool) has {case.tokens(case.pool.usable)}"
    return _never(case, case.demand.full, reason)


def never_lent(case: Case) -> Refusal | None:
    """Beyond the tenant's soft, an idle pool would lend what the request reserves."""
    demand, pool = case.demand, case.pool
    if demand.reserve <= case.holder.soft:
        return None
    kept = min(pool.other_softs, pool.reserve)
    below_shed = _pressure(pool.usable, pool.usable - demand.reserve) < case.holder.shed_percent
    if pool.usable - demand.reserve >= kept and below_shed:
        return None
    reason = (
        f"the guaranteed share of TenantQuota {case.holder.share.quota} (spec.kv.soft) is "
        f"{case.tokens(case.holder.soft)}; ModelPool {pool.name} (spec.degradation: guaranteeReservePercent and "
        "shed.enterPercent) lends no request this much beyond it"
    )
    return _never(case, demand.reserve, reason)


def _never(case: Case, needed: Blocks, reason: str) -> Refusal:
    unset = "" if case.demand.output_limit is not None else " It sets no max_tokens, so the longest answer counts."
    return refuse(
        Code.REQUEST_EXCEEDS_KV_QUOTA,
        f"The request needs {case.tokens(needed)} tokens of KV cache and {reason}.{unset} "
        "Shorten the input or lower max_tokens or n.",
    )


def never_that_many(case: Case) -> Refusal | None:
    """The request alone has no more sequences than the tenant may run."""
    share = case.holder.share
    if share.max_concurrent_requests is None or case.demand.sequences <= share.max_concurrent_requests:
        return None
    return refuse(
        Code.REQUEST_EXCEEDS_KV_QUOTA,
        f"The request has {case.demand.sequences} sequences (prompts times n) and TenantQuota {share.quota} "
        f"(spec.maxConcurrentRequests) allows {share.max_concurrent_requests}. Split it or lower n.",
    )


def concurrency(case: Case) -> Refusal | None:
    """The tenant runs no more sequences than it may."""
    holder, most = case.holder, case.holder.share.max_concurrent_requests
    if most is None or holder.sequences + case.demand.sequences <= most:
        return None
    return refuse(
        Code.TENANT_CONCURRENCY_EXCEEDED,
        f"Tenant {holder.share.id} runs {holder.sequences} of at most {most} sequences and this request has "
        f"{case.demand.sequences}. Retry when one has ended, or lower the concurrency or n.",
        retry_after=holder.sequences_wait(holder.sequences + case.demand.sequences - most),
    )


def hard(case: Case) -> Refusal | None:
    """C + r ≤ hard; and a tenant whose running work has grown past hard takes nothing more."""
    holder, reserve = case.holder, case.demand.reserve
    missing = holder.held + reserve - holder.share.hard_blocks
    if missing <= 0 and not holder.pressed:
        return None
    grown = " What it runs has grown to that, so nothing new starts until something has ended." * holder.pressed
    return refuse(
        Code.TENANT_KV_QUOTA_EXCEEDED,
        f"Tenant {holder.share.id} holds {case.tokens(holder.held)} tokens of KV cache, its hard quota is "
        f"{case.tokens(holder.share.hard_blocks)}, and this request asks for {case.tokens(reserve)}.{grown} "
        "Retry later, or shorten the input or lower max_tokens or concurrency.",
        retry_after=holder.blocks_wait(max(missing, reserve)),
    )


def grown_past_hard(tenant: str, held: int, hard_tokens: int, wait: float) -> Refusal:
    """What the client of a running request is told that is ended for its own tenant's growth: `held` and `hard_tokens`
    in tokens, `wait` in seconds."""
    return refuse(
        Code.TENANT_KV_QUOTA_EXCEEDED,
        f"This request was ended: the running requests of tenant {tenant} have grown to {held} tokens of KV cache and "
        f"its hard quota is {hard_tokens}. Retry later, or shorten the input or lower max_tokens or concurrency.",
        retry_after=wait,
    )


def room(case: Case) -> Refusal | None:
    """Guaranteed: r ≤ F. Over-soft: the reserve for guarantees stays free, and pressure below the shed threshold."""
    return _guaranteed_room(case) if case.guaranteed else _lent_room(case)


def _guaranteed_room(case: Case) -> Refusal | None:
    missing = case.demand.reserve - case.pool.free
    if missing <= 0:
        return None
    return refuse(
        Code.KV_POOL_EXHAUSTED,
        f"The request is within the guaranteed share of tenant {case.holder.share.id}, but the pool has room for "
        f"{case.tokens(max(0, case.pool.free))} tokens and it asks for {case.tokens(case.demand.reserve)}. Retry.",
        retry_after=case.pool.wait(missing),
    )


def _lent_room(case: Case) -> Refusal | None:
    pool, after = case.pool, case.pool.free - case.demand.reserve
    missing = min(pool.claimed, pool.reserve) - after
    if missing <= 0 and _pressure(pool.usable, after) < case.holder.shed_percent:
        return None
    at_shed = pool.usable * (100 - case.holder.shed_percent) / 100
    return refuse(
        Code.KV_POOL_CONTENDED,
        f"The request goes beyond the guaranteed share of tenant {case.holder.share.id} and the pool is "
        f"{_pressure(pool.usable, pool.free):.0f} % full. Retry later, or lower max_tokens or concurrency.",
        retry_after=pool.wait(max(missing, int(at_shed) + 1 - after)),
    )


def _pressure(usable: int, free: int) -> float:
    """Percent of U that is not free; a pool of no blocks is full."""
    return 100 * (usable - free) / usable if usable else 100.0


RULES: Final[tuple[tuple[Owner, Callable[[Case], Refusal | None]], ...]] = (
    (Owner.POOL, model_context),
    (Owner.TENANT, tenant_context),
    (Owner.TENANT, never_within_hard),
    (Owner.POOL, never_within_pool),
    (Owner.POOL, never_lent),
    (Owner.TENANT, never_that_many),
    (Owner.TENANT, concurrency),
    (Owner.TENANT, hard),
    (Owner.POOL, room),
)
