"""What the books say, read in one word, and scenes in which they are full."""

from __future__ import annotations

from typing import Any

import msgspec

from bookkeeping import admit, ask, config, open_books, sample, share
from kvquota_api.amounts import Tokens
from kvquota_api.pod_config import KvPlan, TenantShare
from kvquota_api.usage import PoolUsage, TenantUsage
from kvquota_sidecar.ledger.books import Admitted, Ask, AskedPrompt, Books, Cause, Refusal, Waiting
from kvquota_sidecar.refusals import Code


def pool(books: Books, now: float = 0.0) -> PoolUsage:
    told = books.pool_usage(now)
    assert told is not None
    return told


def free(books: Books, now: float = 0.0) -> int:
    """F."""
    return pool(books, now).free


def tenant(books: Books, name: str, now: float = 0.0) -> TenantUsage:
    return {each.id: each for each in books.tenant_usage(now, 0.0)}[f"inference/{name}"]


def charged(books: Books, name: str, now: float = 0.0) -> int:
    """C(t)."""
    return tenant(books, name, now).reserved


def refused(books: Books, wanted: Ask, now: float = 0.0) -> Refusal:
    answer = books.ask(wanted, now)
    assert isinstance(answer, Refusal), answer
    return answer


def outcome(books: Books, name: str, blocks: int, now: float = 0.0) -> Code | None:
    """How a request of `blocks` is refused; None: it is admitted, and stays."""
    answer = books.ask(ask(name, blocks), now)
    if isinstance(answer, Refusal):
        return answer.code
    assert isinstance(answer, Admitted), answer
    return None


def running(books: Books, name: str, blocks: int, now: float = 0.0) -> int:
    """The ticket of an admitted request whose blocks are all in the engine, by the output that was seen."""
    ticket = admit(books, name, blocks, now)
    books.grow(ticket, Tokens(1), now)
    return ticket


def waits(books: Books, name: str, blocks: int, now: float = 0.0) -> int:
    """The ticket of a request that has to wait."""
    answer = books.ask(ask(name, blocks), now)
    assert isinstance(answer, Waiting), answer
    return answer.ticket


def end_the_victims(books: Books, now: float = 0.0) -> list[int]:
    """Obey: the tickets that the books ended, in their order."""
    tickets = [each.ticket for each in books.turn(now).endings]
    for ticket in tickets:
        books.release(ticket, Cause.ENDED, now)
    return tickets


def estimated(name: str, tokens: int, most: int, *, output: int = 16) -> Ask:
    """A streamed request of which only an estimate and an upper bound are known."""
    return Ask(f"inference/{name}", (AskedPrompt(Tokens(tokens), Tokens(most)),), 1, Tokens(output), "Seen")


def plan(**changes: Any) -> KvPlan:
    """The plan of `config`, changed."""
    return msgspec.structs.replace(config().kv, **changes)


def lent_out(*others: TenantShare, guest: int = 400, **changes: Any) -> tuple[Books, list[int]]:
    """A pool of 1000 blocks whose borrower runs eight requests of 100 blocks beyond its soft; tenant guest has
    a soft of `guest` blocks and runs nothing yet."""
    shares = (share("borrower"), share("guest", soft_blocks=guest, priority=10), *others)
    books = open_books(*shares, **changes)
    tickets = [running(books, "borrower", 100) for _ in range(8)]
    books.observe(sample(used=800), 0.0)
    return books, tickets
