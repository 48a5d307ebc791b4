"""What a client is told of its own case: the numbers, the setting, and what it can do.

Decides sentences and waits, not whether a request is refused (`rules`, `ledger`). Pure.

Invariants:

1. Every sentence says what the reader can do, and by how much where that is a number.
2. Amounts are in tokens, as a reader counts them, with separators; blocks appear nowhere.
3. What a request asks for is said to be "about" or "at least" so much where its prompts are not known exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kvquota_api.amounts import Blocks, Tokens
from kvquota_sidecar.admission.case import Case, Known
from kvquota_sidecar.refusals import Code, Refusal, refuse

# Seconds after which a request that is larger than a pod's part may come again: parts move when pods come and go, and
# until then only another pod can help, which is asked at once.
BEYOND_ITS_PART_SECONDS: Final = 5.0

_SAID: Final[Mapping[Known, str]] = MappingProxyType({"Exactly": "", "About": "about ", "AtLeast": "at least "})


def too_long(case: Case, length: int, limit: Tokens, setting: str) -> Refusal:
    """`length`: tokens that a sequence may have; `setting` allows `limit`."""
    prompt, output = case.demand.prompt, length - case.demand.prompt
    said = _SAID[case.demand.known]
    whole = f"{length:,}" if output else f"{said}{length:,}"
    parts = f"{said}{prompt:,} of input and {output:,} of output" if output else "all of it input"
    how = "Shorten the input or lower max_tokens" if output else "Shorten the input"
    return refuse(
        Code.CONTEXT_LENGTH_EXCEEDED,
        f"The request may become {whole} tokens long ({parts}) and {setting} allows {limit:,}. "
        f"{how} by about {length - limit:,} tokens.",
    )


def never(case: Case, needed: Blocks, beyond: int, reason: str) -> Refusal:
    """`needed` blocks are `beyond` more than can ever be; `reason` says by which setting."""
    demand, tokens = case.demand, case.tokens(beyond)
    unset = " It sets no max_tokens, so the longest answer counts." if demand.output_limit is None else ""
    if demand.kind == "Pool":
        how = "Split the list of inputs, or shorten them."
    elif demand.sequences > 1:
        how = f"Split it, lower n, or shorten the input or lower max_tokens, by about {tokens:,} tokens in all."
    else:
        how = f"Shorten the input or lower max_tokens by about {tokens:,} tokens."
    needs = f"The request needs {_asked(case, needed)} tokens of KV cache and {reason}.{unset} {how}"
    return refuse(Code.REQUEST_EXCEEDS_KV_QUOTA, needs)


def too_many(case: Case, most: int) -> Refusal:
    """The request alone has more sequences than `most`, which is all that its tenant may run."""
    return refuse(
        Code.REQUEST_EXCEEDS_KV_QUOTA,
        f"The request has {case.demand.sequences:,} sequences (prompts times n) and TenantQuota "
        f"{case.holder.share.quota} (spec.maxConcurrentRequests) allows {most:,}. Split it or lower n.",
    )


def concurrency(case: Case, most: int) -> Refusal:
    """The tenant runs `most` sequences at once, and this request would be beyond."""
    holder, sequences = case.holder, case.demand.sequences
    beyond = holder.sequences + sequences - most
    if sequences > most:
        return _beyond_its_part(
            case, Code.TENANT_CONCURRENCY_EXCEEDED, f"{sequences:,} sequences (prompts times n)", f"{most:,}"
        )
    until = "one of them has" if beyond == 1 else f"{beyond:,} of them have"
    fewer = f", or send {beyond:,} fewer (prompts times n)" if beyond < sequences else ""
    return refuse(
        Code.TENANT_CONCURRENCY_EXCEEDED,
        f"Tenant {holder.share.id} runs {holder.sequences:,} of at most {most:,} sequences and this request has "
        f"{sequences:,}. Wait until {until} ended{fewer}.",
        retry_after=holder.sequences_wait(beyond),
    )


def hard(case: Case, missing: int) -> Refusal:
    """The request would take its tenant `missing` blocks beyond hard, or nothing new may start now."""
    holder, reserve = case.holder, case.demand.reserve
    if reserve > holder.share.hard_blocks and holder.share.whole_hard_blocks is not None:
        asked, part = _asked(case, reserve), case.tokens(holder.share.hard_blocks)
        return _beyond_its_part(case, Code.TENANT_KV_QUOTA_EXCEEDED, f"{asked} tokens of KV cache", f"{part:,}")
    if holder.pressed:
        how = "What it runs has grown to that, so nothing new starts until something has ended. " + _waiting(
            holder.requests
        )
    else:
        how = _shorter_or(case, missing, _waiting(holder.requests))
    until = " until its prompts are counted" if holder.doubt else ""
    return refuse(
        Code.TENANT_KV_QUOTA_EXCEEDED,
        f"Tenant {holder.share.id} holds {case.tokens(holder.held):,} tokens of KV cache{until}, its hard quota is "
        f"{case.tokens(holder.share.hard_blocks):,}, and this request asks for {_asked(case, reserve)}. {how}",
        retry_after=holder.blocks_wait(max(missing, reserve)),
    )


def _beyond_its_part(case: Case, code: Code, asked: str, part: str) -> Refusal:
    """The request is larger than this pod's part of what its tenant has on all pods together."""
    return refuse(
        code,
        f"The request asks for {asked}, and of what TenantQuota {case.holder.share.quota} allows on all replicas "
        f"together this one has a part of {part}. Retry, another replica may have more, or send a smaller request.",
        retry_after=BEYOND_ITS_PART_SECONDS,
    )


def exhausted(case: Case, missing: int) -> Refusal:
    """Guaranteed work lacks `missing` blocks."""
    return no_room(
        case.holder.share.id,
        asked=case.tokens(case.demand.reserve),
        free=case.tokens(max(0, case.pool.rank_free)),
        wait=case.pool.wait(missing),
        known=case.demand.known,
    )


def no_room(tenant: str, *, asked: int, free: int, wait: float, known: Known) -> Refusal:
    """Guaranteed work found no room in time: it asks for `asked` tokens and `free` are; `wait` in seconds."""
    shorter = f"Shorten the input by about {asked - free:,} tokens, or retry." if 0 < free < asked else "Retry."
    return refuse(
        Code.KV_POOL_EXHAUSTED,
        f"The request is within the guaranteed share of tenant {tenant} and asks for {_SAID[known]}{asked:,} tokens of "
        f"KV cache, but the pool had room for {free:,} and no more came free in time. {shorter}",
        retry_after=wait,
    )


def contended(case: Case, missing: int) -> Refusal:
    """Work beyond soft lacks `missing` blocks, or may not start yet after an eviction."""
    holder, pool, reserve = case.holder, case.pool, case.demand.reserve
    full = 100 * (pool.rank_usable - pool.rank_free) / pool.rank_usable if pool.rank_usable else 100
    beyond = holder.held + reserve - holder.soft
    if pool.lends_in > 0:
        state, wait = "had to end such work just now", max(pool.lends_in, pool.wait(missing))
    else:
        state, wait = f"is {full:.0f} % full{_kept(case)}", pool.wait(missing)
    within = f", or stay within that share: about {case.tokens(beyond):,} tokens less" if beyond < reserve else ""
    return refuse(
        Code.KV_POOL_CONTENDED,
        f"The request goes beyond the guaranteed share of tenant {holder.share.id} ({case.tokens(holder.soft):,} "
        f"tokens) and the pool {state}. Retry later{within}.",
        retry_after=wait,
    )


def _kept(case: Case) -> str:
    """What the pool keeps for the guarantees of others, where the request would take of that."""
    kept = case.pool.kept
    if kept <= 0 or case.missing_of_kept <= 0:
        return ""
    return f" and keeps {case.tokens(kept):,} tokens free for the guaranteed shares of others"


def grown_past_hard(tenant: str, held: int, hard_tokens: int, wait: float) -> Refusal:
    """What the client of a request is told that is ended for its own tenant's growth: `held` and `hard_tokens` in
    tokens, `wait` in seconds."""
    why = (
        f": the running requests of tenant {tenant} have grown to {held:,} tokens of KV cache and its hard quota is "
        f"{hard_tokens:,}"
    )
    return _ended(Code.TENANT_KV_QUOTA_EXCEEDED, why, "run fewer at a time, or lower max_tokens", wait)


def evicted(tenant: str, held: int, soft_tokens: int, wait: float) -> Refusal:
    """What the client of a request is told that is ended for others: it held `held` tokens; `soft_tokens` of its
    tenant are guaranteed; `wait` in seconds."""
    why = (
        f" to make room in the KV cache: it held {held:,} tokens beyond the guaranteed share of tenant {tenant} "
        f"({soft_tokens:,} tokens)"
    )
    return _ended(Code.KV_EVICTED, why, "stay within that share", wait)


def _ended(code: Code, why: str, instead: str, wait: float) -> Refusal:
    return refuse(code, f"This request was ended{why}. Retry later, or {instead}.", retry_after=wait)


def _asked(case: Case, blocks: int) -> str:
    """Tokens that the request asks for, and how well they are known."""
    return f"{_SAID[case.demand.known]}{case.tokens(blocks):,}"


def _shorter_or(case: Case, missing: int, otherwise: str) -> str:
    """What to do about `missing` blocks, where a shorter request is a way at all."""
    if missing >= case.demand.reserve:
        return otherwise
    tokens = case.tokens(missing)
    what = "the input" if tokens < case.demand.prompt else "the input, or lower max_tokens, together"
    return f"Shorten {what} by about {tokens:,} tokens, or {otherwise[0].lower()}{otherwise[1:]}"


def _waiting(requests: int) -> str:
    """`requests`: that the tenant has running."""
    if requests > 1:
        return f"Wait for one of your {requests:,} running requests to end."
    return "Wait for your running request to end."
