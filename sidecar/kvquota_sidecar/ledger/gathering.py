"""From an ask to the values that `admission` decides on.

Decides what a request promises, and which limit its output has. Pure.

Invariants:

1. The promise is the 90th percentile of the tenant's outputs, never more than the limit; it is the limit while nobody
   can say, and where nobody will see the output grow.
2. Without a limit from the client, the limit is what the context leaves beside the prompt, at least 1.

It does not decide whether the request may run, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.pod_config import PodConfig, TenantShare
from kvquota_sidecar.admission.case import Demand, Holder, Pool
from kvquota_sidecar.admission.thresholds import Lines, context_limit
from kvquota_sidecar.ledger.accounts import Account
from kvquota_sidecar.ledger.asking import Ask
from kvquota_sidecar.ledger.entries import Entry, Prompt


def entry_of(ask: Ask, account: Account, share: TenantShare, config: PodConfig, *, ticket: int, now: float) -> Entry:
    """The request as it would stand in the books, not yet in them."""
    context = context_limit(share, Tokens(config.kv.max_model_len))
    prompts = tuple(Prompt(each, _limit(each, ask.output_limit, context)) for each in ask.prompts)
    limit = max(each.limit for each in prompts)
    typical = account.outputs.p90() if ask.growth == "Seen" else None
    entry = Entry(
        ticket=ticket,
        tenant=ask.tenant,
        groups=config.kv.groups,
        prompts=prompts,
        copies=ask.copies,
        promise=limit if typical is None else min(limit, typical),
        hard=Blocks(share.hard_blocks),
        admitted_at=now,
    )
    entry.charge = entry.cost()
    return entry


def _limit(prompt: Tokens, given: Tokens | None, context: Tokens) -> Tokens:
    left = max(1, context - prompt)
    return Tokens(left if given is None else min(given, left))


def demand_of(ask: Ask, entry: Entry) -> Demand:
    return Demand(
        prompt=max(ask.prompts),
        output_limit=ask.output_limit,
        sequences=entry.sequences,
        full=entry.cost_at_limits(),
        reserve=entry.charge,
    )


def holder_of(account: Account, share: TenantShare, lines: Lines, now: float) -> Holder:
    return Holder(
        share=share,
        soft=account.soft,
        held=Blocks(account.charged),
        sequences=account.sequences,
        pressed=account.pressed,
        shed_percent=lines.sheds[share.id],
        blocks_wait=lambda blocks: account.blocks_drain.wait(blocks, now),
        sequences_wait=lambda sequences: account.sequences_drain.wait(sequences, now),
    )


def pool_of(
    config: PodConfig, lines: Lines, account: Account, *, free: int, claims: int, wait: Callable[[int], float]
) -> Pool:
    """`free`: F. `claims`: what all tenants may still claim of their softs; `account` is the one that asks."""
    return Pool(
        name=config.pool.name,
        usable=lines.usable,
        free=free,
        reserve=lines.reserve,
        claimed=Blocks(claims - account.unclaimed),
        other_softs=Blocks(lines.soft_sum - account.soft),
        worth=config.kv.worth,
        max_model_len=Tokens(config.kv.max_model_len),
        shadow=config.enforcement == "Shadow",
        wait=wait,
    )
