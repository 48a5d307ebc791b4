"""Whether one request is admitted: a chain of rules, each of which refuses or lets pass.

Decides by docs/accounting.md, steps 4 to 7: what can never be, concurrency, hard, room. Pure.

Invariants:

1. The first rule that refuses decides; its code and its sentence reach client, counter and status unchanged.
2. What can never fit is refused for good and names the setting; everything else can be retried.
3. A rule of the tenant's own limits only counts where the tenant is in Shadow; no rule refuses where the pool is.
4. The chain takes nothing: the caller does, in the same step, when all rules have passed.
5. Of two requests of one tenant, one that asks for more blocks or a longer sequence is not admitted where the other is
   not. Words are made only for what is told.

It does not know how the figures came about (`ledger`), nor who asks (`proxy`); what is said to whom is in `wording`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

import msgspec

from kvquota_api.amounts import Tokens
from kvquota_sidecar.admission import wording
from kvquota_sidecar.admission.case import Case
from kvquota_sidecar.refusals import Code, Refusal

Words = Callable[[], Refusal]


class Owner(Enum):
    """Whose limit a rule keeps, and so whose Shadow suspends it."""

    TENANT = "tenant"
    POOL = "pool"


class Rule(NamedTuple):
    """`objects`: what the rule has to say against a case; None: it lets it pass."""

    owner: Owner
    code: Code
    objects: Callable[[Case], Words | None]


class Grant(msgspec.Struct, frozen=True, gc=False):
    """The request may run. `would_reject`: what would have refused it without Shadow."""

    would_reject: Refusal | None = None


class Judgement(msgspec.Struct, frozen=True, gc=False):
    """What the chain says, not yet in words. `code`: of the refusal, None where there is none. `counted`: the words of
    what would have refused it without Shadow."""

    code: Code | None = None
    words: Words | None = None
    counted: Words | None = None


GRANTED: Final = Grant()
PASSED: Final = Judgement()


def decide(case: Case) -> Grant | Refusal:
    """The first enforced refusal, else a grant that carries the first one that was only counted."""
    return told(judge(case))


def told(judgement: Judgement) -> Grant | Refusal:
    """A judgement in words."""
    if judgement.words is not None:
        return judgement.words()
    return GRANTED if judgement.counted is None else Grant(judgement.counted())


def judge(case: Case) -> Judgement:
    """The first rule that refuses and is enforced, else the first one that was only counted."""
    counted: Words | None = None
    for owner, code, objects in RULES:
        words = objects(case)
        if words is None:
            continue
        if _enforced(owner, case):
            return Judgement(code, words)
        counted = counted or words
    return PASSED if counted is None else Judgement(counted=counted)


def _enforced(owner: Owner, case: Case) -> bool:
    if case.pool.shadow:
        return False
    return owner is Owner.POOL or case.holder.share.enforcement == "Enforce"


def model_context(case: Case) -> Words | None:
    """No sequence is longer than the engine's longest."""
    limit = case.pool.max_model_len
    if _length(case) <= limit:
        return None
    return partial(wording.too_long, case, _length(case), limit, f"ModelPool {case.pool.name} (spec.model.maxModelLen)")


def tenant_context(case: Case) -> Words | None:
    """No sequence is longer than the tenant's `maxContextTokens`."""
    limit = case.holder.share.max_context_tokens
    if limit is None or _length(case) <= limit:
        return None
    setting = f"TenantQuota {case.holder.share.quota} (spec.maxContextTokens)"
    return partial(wording.too_long, case, _length(case), Tokens(limit), setting)


def _length(case: Case) -> int:
    """Tokens that the longest sequence may have, at least."""
    output = case.demand.output_limit
    return case.demand.prompt + (1 if output is None else output)


def never_within_hard(case: Case) -> Words | None:
    """At its limits the request fits the tenant's whole hard."""
    share = case.holder.share
    whole = share.hard_blocks if share.whole_hard_blocks is None else share.whole_hard_blocks
    if case.demand.full <= whole:
        return None
    reason = f"TenantQuota {share.quota} (spec.kv.hard) allows {case.tokens(whole):,}"
    return partial(wording.never, case, case.demand.full, case.demand.full - whole, reason)


def never_within_pool(case: Case) -> Words | None:
    """At its limits the request fits an empty rank, which where there is one is the whole pool."""
    pool = case.pool
    if case.demand.full <= pool.rank_usable:
        return None
    whose = "" if pool.rank_usable == pool.usable else "each rank of "
    reason = f"{whose}ModelPool {pool.name} (spec.memory.kvPool) has {case.tokens(pool.rank_usable):,}"
    return partial(wording.never, case, case.demand.full, case.demand.full - pool.rank_usable, reason)


def never_lent(case: Case) -> Words | None:
    """Beyond the tenant's soft, an idle pool would lend what the request reserves."""
    demand, pool = case.demand, case.pool
    if demand.reserve <= case.holder.soft:
        return None
    kept = min(pool.other_softs, pool.reserve)
    below_shed = _pressure(pool.rank_usable, pool.rank_usable - demand.reserve) < case.holder.shed_percent
    if pool.usable - demand.reserve >= kept and below_shed:
        return None
    reason = (
        f"the guaranteed share of TenantQuota {case.holder.share.quota} (spec.kv.soft) is "
        f"{case.tokens(case.holder.soft):,}; ModelPool {pool.name} (spec.degradation: guaranteeReservePercent and "
        "shed.enterPercent) lends no request this much beyond it"
    )
    most = min(pool.usable - kept, pool.rank_usable - _at_shed(case) - 1)
    return partial(wording.never, case, demand.reserve, demand.reserve - max(most, case.holder.soft), reason)


def never_that_many(case: Case) -> Words | None:
    """The request alone has no more sequences than the tenant may run, on all pods together."""
    share = case.holder.share
    whole = share.whole_concurrent_requests
    most = share.max_concurrent_requests if whole is None else whole
    if most is None or case.demand.sequences <= most:
        return None
    return partial(wording.too_many, case, most)


def concurrency(case: Case) -> Words | None:
    """The tenant runs no more sequences than it may."""
    holder, most = case.holder, case.holder.share.max_concurrent_requests
    if most is None or holder.sequences + case.demand.sequences <= most:
        return None
    return partial(wording.concurrency, case, most)


def hard(case: Case) -> Words | None:
    """C + r ≤ hard; and a tenant whose running work has grown past hard takes nothing more."""
    holder = case.holder
    missing = holder.held + case.demand.reserve - holder.share.hard_blocks
    if missing <= 0 and not holder.pressed:
        return None
    return partial(wording.hard, case, missing)


def guaranteed_room(case: Case) -> Words | None:
    """Within soft: r ≤ F."""
    missing = case.demand.reserve - case.pool.rank_free
    return partial(wording.exhausted, case, missing) if missing > 0 and case.guaranteed else None


def lent_room(case: Case) -> Words | None:
    """Beyond soft: the reserve for guarantees stays free, pressure below the shed threshold, no eviction just now."""
    if case.guaranteed:
        return None
    pool, reserve = case.pool, case.demand.reserve
    missing = min(pool.claimed, pool.reserve) - (pool.free - reserve)
    after = pool.rank_free - reserve
    if missing <= 0 and _pressure(pool.rank_usable, after) < case.holder.shed_percent and pool.lends_in <= 0:
        return None
    return partial(wording.contended, case, max(missing, _at_shed(case) + 1 - after))


def _at_shed(case: Case) -> int:
    """Blocks of a rank that are free at the tenant's shed threshold, rounded down."""
    return int(case.pool.rank_usable * (100 - case.holder.shed_percent) / 100)


def _pressure(usable: int, free: int) -> float:
    """Percent of U that is not free; a pool of no blocks is full."""
    return 100 * (usable - free) / usable if usable else 100.0


RULES: Final = (
    Rule(Owner.POOL, Code.CONTEXT_LENGTH_EXCEEDED, model_context),
    Rule(Owner.TENANT, Code.CONTEXT_LENGTH_EXCEEDED, tenant_context),
    Rule(Owner.TENANT, Code.REQUEST_EXCEEDS_KV_QUOTA, never_within_hard),
    Rule(Owner.POOL, Code.REQUEST_EXCEEDS_KV_QUOTA, never_within_pool),
    Rule(Owner.POOL, Code.REQUEST_EXCEEDS_KV_QUOTA, never_lent),
    Rule(Owner.TENANT, Code.REQUEST_EXCEEDS_KV_QUOTA, never_that_many),
    Rule(Owner.TENANT, Code.TENANT_CONCURRENCY_EXCEEDED, concurrency),
    Rule(Owner.TENANT, Code.TENANT_KV_QUOTA_EXCEEDED, hard),
    Rule(Owner.POOL, Code.KV_POOL_EXHAUSTED, guaranteed_room),
    Rule(Owner.POOL, Code.KV_POOL_CONTENDED, lent_room),
)
