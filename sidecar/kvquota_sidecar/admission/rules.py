"""Whether one request is admitted: rules, each of which refuses or lets pass.

Decides by docs/accounting.md, steps 4 to 7: what can never be, concurrency, hard, room. Pure.

Invariants:

1. The first rule that refuses and is enforced decides; its code and its sentence reach client, counter and status
   unchanged.
2. What can never fit is refused for good and names the setting; everything else can be retried.
3. A rule of the tenant's own limits only counts where the tenant is in Shadow; no rule refuses where the pool is.
4. The rules take nothing: the caller does, in the same step, when all have passed.
5. Of two requests of one tenant, one that asks for more blocks or a longer sequence is not admitted where the other is
   not. Words are made only for what is told.

It does not know how the figures came about (`ledger`), nor who asks (`proxy`); what is said to whom is in `wording`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from kvquota_api.amounts import Tokens
from kvquota_api.pod_config import TenantShare
from kvquota_sidecar.admission import wording
from kvquota_sidecar.admission.case import Case
from kvquota_sidecar.records import LeafValue
from kvquota_sidecar.refusals import Code, Refusal

Words = Callable[[Case], Refusal]


class Owner(Enum):
    """Whose limit a rule keeps, and so whose Shadow suspends it."""

    TENANT = "tenant"
    POOL = "pool"


class Rule(NamedTuple):
    """`code`: of the refusal that `words` makes of a case that breaks it."""

    owner: Owner
    code: Code
    words: Words


class Grant(LeafValue, frozen=True):
    """The request may run. `would_reject`: what would have refused it without Shadow."""

    would_reject: Refusal | None = None


class Judgement(LeafValue, frozen=True):
    """What the rules say, not yet in words. `code`: of the refusal, None where there is none. `counted`: what would
    have refused `case` without Shadow."""

    code: Code | None = None
    case: Case | None = None
    words: Words | None = None
    counted: Words | None = None


GRANTED: Final = Grant()
PASSED: Final = Judgement()


def decide(case: Case) -> Grant | Refusal:
    """The first enforced refusal, else a grant that carries the first one that was only counted."""
    return told(judge(case))


def told(judgement: Judgement) -> Grant | Refusal:
    """A judgement in words."""
    case, words, counted = judgement.case, judgement.words, judgement.counted
    if case is not None and words is not None:
        return words(case)
    return GRANTED if case is None or counted is None else Grant(counted(case))


def judge(case: Case) -> Judgement:
    """The first rule that refuses and is enforced, else the first one that was only counted."""
    shadow = case.pool.shadow
    is_enforced = not shadow and case.holder.share.enforcement == "Enforce"
    broken = _broken(case, first=is_enforced)
    for owner, code, words in broken:
        if is_enforced or (owner is Owner.POOL and not shadow):
            return Judgement(code, case, words)
    return Judgement(None, case, counted=broken[0].words) if broken else PASSED


def _broken(case: Case, *, first: bool) -> list[Rule]:
    """The rules that a case breaks, in their order; at least the first one where only that counts."""
    broken = _broken_for_good(case, first=first)
    if broken and first:
        return broken
    demand, holder = case.demand, case.holder
    share, held = holder.share, holder.held + demand.reserve
    most = share.max_concurrent_requests
    if most is not None and holder.sequences + demand.sequences > most:
        broken.append(_CONCURRENCY)
    if held > share.hard_blocks or holder.pressed:  # what has grown past hard takes nothing more
        broken.append(_HARD)
    if held > holder.soft:
        if not _is_lent(case):
            broken.append(_LENT_ROOM)
    elif demand.reserve > case.pool.rank_free:
        broken.append(_GUARANTEED_ROOM)
    return broken


def _broken_for_good(case: Case, *, first: bool) -> list[Rule]:
    """Those that it breaks however empty the pool is, as above."""
    demand, holder, pool, broken = case.demand, case.holder, case.pool, list[Rule]()
    share, full, length = holder.share, demand.full, _length(case)
    if length > pool.max_model_len:
        broken.append(_MODEL_CONTEXT)
    if share.max_context_tokens is not None and length > share.max_context_tokens:
        broken.append(_TENANT_CONTEXT)
    if full > _whole_hard(share):
        broken.append(_NEVER_WITHIN_HARD)
    if full > pool.rank_usable:
        broken.append(_NEVER_WITHIN_POOL)
    if broken and first:
        return broken
    if demand.reserve > holder.soft and not _is_ever_lent(case):
        broken.append(_NEVER_LENT)
    most = share.whole_concurrent_requests or share.max_concurrent_requests
    if most is not None and demand.sequences > most:
        broken.append(_NEVER_THAT_MANY)
    return broken


def _length(case: Case) -> int:
    """Tokens that the longest sequence may have, at least."""
    output = case.demand.output_limit
    return case.demand.prompt + (1 if output is None else output)


def _whole_hard(share: TenantShare) -> int:
    """Of all pods together."""
    return share.hard_blocks if share.whole_hard_blocks is None else share.whole_hard_blocks


def _is_ever_lent(case: Case) -> bool:
    """Whether an idle pool would lend what the request reserves."""
    reserve, pool = case.demand.reserve, case.pool
    below_shed = _pressure(pool.rank_usable, pool.rank_usable - reserve) < case.holder.shed_percent
    return below_shed and pool.usable - reserve >= min(pool.other_softs, pool.reserve)


def _is_lent(case: Case) -> bool:
    """The reserve for guarantees stays free, pressure below the shed threshold, no eviction just now."""
    pool, after = case.pool, case.pool.rank_free - case.demand.reserve
    below_shed = _pressure(pool.rank_usable, after) < case.holder.shed_percent
    return below_shed and pool.lends_in <= 0 and case.missing_of_kept <= 0


def _at_shed(case: Case) -> int:
    """Blocks of a rank that are free at the tenant's shed threshold, rounded down."""
    return int(case.pool.rank_usable * (100 - case.holder.shed_percent) / 100)


def _pressure(usable: int, free: int) -> float:
    """Percent of U that is not free; a pool of no blocks is full."""
    return 100 * (usable - free) / usable if usable else 100.0


def _too_long_for_model(case: Case) -> Refusal:
    pool = case.pool
    setting = f"ModelPool {pool.name} (spec.model.maxModelLen)"
    return wording.too_long(case, _length(case), pool.max_model_len, setting)


def _too_long_for_tenant(case: Case) -> Refusal:
    share = case.holder.share
    setting = f"TenantQuota {share.quota} (spec.maxContextTokens)"
    return wording.too_long(case, _length(case), Tokens(share.max_context_tokens or 0), setting)


def _beyond_hard(case: Case) -> Refusal:
    full, whole = case.demand.full, _whole_hard(case.holder.share)
    reason = f"TenantQuota {case.holder.share.quota} (spec.kv.hard) allows {case.tokens(whole):,}"
    return wording.never(case, full, full - whole, reason)


def _beyond_pool(case: Case) -> Refusal:
    pool, full = case.pool, case.demand.full
    whose = "" if pool.rank_usable == pool.usable else "each rank of "
    reason = f"{whose}ModelPool {pool.name} (spec.memory.kvPool) has {case.tokens(pool.rank_usable):,}"
    return wording.never(case, full, full - pool.rank_usable, reason)


def _beyond_loans(case: Case) -> Refusal:
    holder, pool, reserve = case.holder, case.pool, case.demand.reserve
    reason = (
        f"the guaranteed share of TenantQuota {holder.share.quota} (spec.kv.soft) is "
        f"{case.tokens(holder.soft):,}; ModelPool {pool.name} (spec.degradation: guaranteeReservePercent and "
        "shed.enterPercent) lends no request this much beyond it"
    )
    most = min(pool.usable - min(pool.other_softs, pool.reserve), pool.rank_usable - _at_shed(case) - 1)
    return wording.never(case, reserve, reserve - max(most, holder.soft), reason)


def _too_many(case: Case) -> Refusal:
    share = case.holder.share
    return wording.too_many(case, share.whole_concurrent_requests or share.max_concurrent_requests or 0)


def _too_many_now(case: Case) -> Refusal:
    return wording.concurrency(case, case.holder.share.max_concurrent_requests or 0)


def _past_hard(case: Case) -> Refusal:
    return wording.hard(case, case.holder.held + case.demand.reserve - case.holder.share.hard_blocks)


def _exhausted(case: Case) -> Refusal:
    return wording.exhausted(case, case.demand.reserve - case.pool.rank_free)


def _contended(case: Case) -> Refusal:
    after = case.pool.rank_free - case.demand.reserve
    return wording.contended(case, max(case.missing_of_kept, _at_shed(case) + 1 - after))


_MODEL_CONTEXT: Final = Rule(Owner.POOL, Code.CONTEXT_LENGTH_EXCEEDED, _too_long_for_model)
_TENANT_CONTEXT: Final = Rule(Owner.TENANT, Code.CONTEXT_LENGTH_EXCEEDED, _too_long_for_tenant)
_NEVER_WITHIN_HARD: Final = Rule(Owner.TENANT, Code.REQUEST_EXCEEDS_KV_QUOTA, _beyond_hard)
_NEVER_WITHIN_POOL: Final = Rule(Owner.POOL, Code.REQUEST_EXCEEDS_KV_QUOTA, _beyond_pool)
_NEVER_LENT: Final = Rule(Owner.POOL, Code.REQUEST_EXCEEDS_KV_QUOTA, _beyond_loans)
_NEVER_THAT_MANY: Final = Rule(Owner.TENANT, Code.REQUEST_EXCEEDS_KV_QUOTA, _too_many)
_CONCURRENCY: Final = Rule(Owner.TENANT, Code.TENANT_CONCURRENCY_EXCEEDED, _too_many_now)
_HARD: Final = Rule(Owner.TENANT, Code.TENANT_KV_QUOTA_EXCEEDED, _past_hard)
_GUARANTEED_ROOM: Final = Rule(Owner.POOL, Code.KV_POOL_EXHAUSTED, _exhausted)
_LENT_ROOM: Final = Rule(Owner.POOL, Code.KV_POOL_CONTENDED, _contended)
