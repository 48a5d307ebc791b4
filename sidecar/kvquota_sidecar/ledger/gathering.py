"""From an ask to the values that `admission` decides on.

Decides what a request promises, which limit its output has, and at which lengths of its prompts it is judged. Pure.

Invariants:

1. The promise is the 90th percentile of the tenant's outputs, never more than the limit; it is the limit while nobody
   can say, and where nobody will see the output grow. A request that generates nothing promises nothing.
2. Without a limit from the client, the limit is what the context leaves beside the prompt, at least 1. Where that is
   the tenant's own, which the engine does not know, the engine is told that number, and it stays the limit whatever
   the prompt is counted to have: what the books let grow is what the engine makes.

It does not decide whether the request may run, and changes nothing.
"""

from __future__ import annotations

from typing import Final

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.pod_config import TenantShare
from kvquota_sidecar.admission.case import Demand, Holder, Pool
from kvquota_sidecar.ledger.accounts import Account
from kvquota_sidecar.ledger.asking import Ask, AskedPrompt
from kvquota_sidecar.ledger.drain import Drain
from kvquota_sidecar.ledger.entries import Entry, Prompt, limit_of
from kvquota_sidecar.ledger.law import Law
from kvquota_sidecar.ledger.roll import Roll

_NO_TOKENS: Final = Tokens(0)
_ONE_TOKEN: Final = Tokens(1)


def is_exact(ask: Ask) -> bool:
    """Whether the engine will find just so many tokens."""
    first = ask.prompts[0]
    return first.tokens == first.most and all(each.tokens == each.most for each in ask.prompts[1:])


def _is_guessed(ask: Ask) -> bool:
    """Whether what counts as exact is a guess."""
    return ask.prompts[0].guessed or any(each.guessed for each in ask.prompts[1:])


def at_least(ask: Ask) -> list[Tokens]:
    """Whatever it holds, a prompt has one token."""
    return [_ONE_TOKEN] * len(ask.prompts)


def entry_of(ask: Ask, account: Account, share: TenantShare, law: Law, *, ticket: int, rank: int, now: float) -> Entry:
    """The request as it would stand in the books, not yet in them: charged nothing, and sharing nothing."""
    pools, context, given, told = ask.kind == "Pool", account.context, _given(ask), None
    if given is None and context < law.max_model_len:
        told = given = _told(ask, context)
        context = law.max_model_len
    prompts, limit = _prompts(ask.prompts, given, context)
    typical = None if ask.growth == "Unseen" else _typical(ask, account)
    promise = limit if typical is None or limit < typical else typical
    copies = 1 if pools else ask.copies
    sequences, hard = len(prompts) * copies, Blocks(share.hard_blocks)
    return Entry(
        ticket, ask.tenant, ask.kind, law.tariff, prompts, copies, sequences, limit, promise, hard, now, rank, context,
        given, not is_exact(ask), told=told, guessed=_is_guessed(ask),
    )  # fmt: skip


def _prompts(
    asked: tuple[AskedPrompt, ...], given: Tokens | None, context: Tokens
) -> tuple[tuple[Prompt, ...], Tokens]:
    """The prompts, and the largest limit that an output of theirs has."""
    if len(asked) == 1:
        one = asked[0]
        limit = limit_of(given, context, one.tokens)
        return (Prompt(one.tokens, one.most, limit, one.chain, one.size),), limit
    prompts = tuple([Prompt(p.tokens, p.most, limit_of(given, context, p.tokens), p.chain, p.size) for p in asked])
    return prompts, max([each.limit for each in prompts])


def demand_of(ask: Ask, entry: Entry, full: Blocks) -> Demand:
    """What `entry` asks; `full`: its blocks at its limits, when it shares nothing."""
    prompts = entry.prompts
    longest = prompts[0].tokens if len(prompts) == 1 else max([each.tokens for each in prompts])
    return Demand(longest, _given(ask), entry.sequences, full, entry.charge, ask.kind, entry.known)


def demand_at_most(ask: Ask, entry: Entry, ceiling: Blocks) -> Demand:
    """What `entry` would ask if its prompts were as long as they can be; `ceiling`: its blocks then."""
    prompts = entry.prompts
    longest = prompts[0].most if len(prompts) == 1 else max([each.most for each in prompts])
    if ask.kind == "Pool":
        return Demand(longest, _NO_TOKENS, entry.sequences, ceiling, ceiling, "Pool")
    tariff, copies, full = entry.tariff, entry.copies, 0
    for each in prompts:
        full += tariff.prompt(each.most, limit_of(entry.given, entry.context, each.most), copies)
    return Demand(longest, ask.output_limit, entry.sequences, Blocks(full), ceiling)


def demand_at(ask: Ask, account: Account, entry: Entry, lengths: list[Tokens]) -> Demand:
    """What `entry` would ask if its prompts were of these lengths."""
    if ask.kind == "Pool":
        blocks = Blocks(entry.tariff.batch(lengths))
        return Demand(max(lengths), _NO_TOKENS, entry.sequences, blocks, blocks, "Pool")
    tariff, copies, typical = entry.tariff, entry.copies, _typical(ask, account)
    full = reserve = 0
    for place, prompt in enumerate(entry.prompts):
        tokens = lengths[place]
        limit = limit_of(entry.given, entry.context, tokens)
        output = limit if typical is None or limit < typical else typical
        full += tariff.prompt(tokens, limit, copies)
        reserve += tariff.prompt(tokens, output, copies, prompt.shared(tokens) if prompt.leading else 0)
    return Demand(max(lengths), ask.output_limit, entry.sequences, Blocks(full), Blocks(reserve))


def holder_of(account: Account, share: TenantShare, doubt: int, now: float) -> Holder:
    """`doubt`: blocks that count as held beside the charges."""
    return Holder(
        share,
        account.soft,
        Blocks(account.charged + doubt),
        account.sequences,
        account.pressed,
        account.shed_percent,
        lambda blocks: account.blocks_drain.wait(blocks, now),
        lambda sequences: account.sequences_drain.wait(sequences, now),
        len(account.live) + len(account.waiting),
        Blocks(doubt),
    )


def pool_of(
    law: Law, account: Account, roll: Roll, rank_free: int, *, lends_in: float, drain: Drain, now: float
) -> Pool:
    """`rank_free`: F of the rank with the most room. `account` is the one that asks. `lends_in` in seconds; `drain`: of
    the whole pool."""
    lines, ranks = law.lines, roll.ranks
    return Pool(
        law.config.pool.name,
        lines.usable,
        rank_free if len(ranks.each) == 1 else ranks.free(now),
        ranks.usable,
        rank_free,
        lines.reserve,
        Blocks(roll.claims - account.unclaimed),
        Blocks(lines.soft_sum - account.soft),
        law.worth,
        law.max_model_len,
        law.shadow,
        lambda blocks: drain.wait(blocks, now),
        lends_in,
    )


def _given(ask: Ask) -> Tokens | None:
    """The output limit that comes with the request."""
    return _NO_TOKENS if ask.kind == "Pool" else ask.output_limit


def _told(ask: Ask, context: Tokens) -> Tokens:
    """What `context` leaves beside the longest prompt: an engine gets one limit for all of a request."""
    return limit_of(None, context, max([each.tokens for each in ask.prompts]))


def _typical(ask: Ask, account: Account) -> Tokens | None:
    """Tokens that nine of ten outputs do not pass; None: nobody can say, or nobody would see this one pass it."""
    return account.outputs.p90() if ask.growth == "Seen" else None
