"""A client sets no limit and its tenant's context is below the model's: the engine is told what the books count."""

from __future__ import annotations

from typing import Any

import pytest

from bookkeeping import BLOCK, asking, open_books, sample, share, streamed
from kvquota_api.amounts import Tokens
from kvquota_sidecar.ledger.asking import Admitted, Ask, AskedPrompt, Waiting
from kvquota_sidecar.ledger.books import Books

TENANT = "inference/search"
CONTEXT = 40 * BLOCK


def admitted(ask: Ask, *, pool: dict[str, Any] | None = None, **limits: Any) -> tuple[Books, Admitted]:
    books = open_books(share(**{"max_context_tokens": CONTEXT} | limits), **pool or {})
    answer = books.ask(ask, 0.0)
    assert isinstance(answer, Admitted)
    return books, answer


def limits(books: Books, ticket: int) -> list[int]:
    """What the books let each prompt's outputs have."""
    entry = books._roll.entry(ticket)
    return [each.limit for each in entry.prompts]


ASKS = {"streamed": streamed, "not streamed": asking}


@pytest.mark.parametrize("asks", ASKS.values(), ids=ASKS)
def test_the_engine_is_told_what_the_books_count(asks: Any) -> None:
    books, answer = admitted(asks(TENANT, (10 * BLOCK,), 1, None))
    assert (answer.limit, limits(books, answer.ticket), answer.reserved) == (30 * BLOCK, [30 * BLOCK], 40)


def test_of_several_prompts_the_longest_decides_as_the_engine_gets_one_limit() -> None:
    books, answer = admitted(asking(TENANT, (10 * BLOCK, 30 * BLOCK), 1, None))
    assert (answer.limit, limits(books, answer.ticket)) == (10 * BLOCK, [10 * BLOCK, 10 * BLOCK])


WIDE = {"max_model_len": 800 * BLOCK}  # far more than CONTEXT, and an idle pool has room for it
UNTOLD: dict[str, tuple[Ask, dict[str, Any], dict[str, Any]]] = {
    "the client set one": (asking(TENANT, (160,), 1, 16), {}, {}),
    "the tenant may fill the model's context": (asking(TENANT, (160,), 1, None), {"max_context_tokens": None}, WIDE),
    "its context is the model's": (asking(TENANT, (160,), 1, None), {}, {"max_model_len": CONTEXT}),
    "its context is only counted": (asking(TENANT, (160,), 1, None), {"enforcement": "Shadow"}, WIDE),
    "everybody's is only counted": (asking(TENANT, (160,), 1, None), {}, WIDE | {"enforcement": "Shadow"}),
    "it makes no output": (asking(TENANT, (160,), 1, None, kind="Pool"), {}, {}),
}


@pytest.mark.parametrize(("ask", "limits", "pool"), UNTOLD.values(), ids=UNTOLD)
def test_otherwise_the_engine_is_told_nothing(ask: Ask, limits: dict[str, Any], pool: dict[str, Any]) -> None:
    assert admitted(ask, pool=pool, **limits)[1].limit is None


def test_in_shadow_the_models_context_is_what_the_books_count() -> None:
    books, answer = admitted(asking(TENANT, (160,), 1, None), pool=WIDE | {"enforcement": "Shadow"})
    assert limits(books, answer.ticket) == [790 * BLOCK]


def test_what_was_told_stays_when_the_prompt_is_counted() -> None:
    prompt = AskedPrompt(Tokens(10 * BLOCK), Tokens(20 * BLOCK))
    books, answer = admitted(Ask(TENANT, (prompt,), 1, None))
    assert answer.limit == 30 * BLOCK
    books.count(answer.ticket, (Tokens(20 * BLOCK),), 0.0)
    assert (limits(books, answer.ticket), books.tenant_usage(0.0, 0.0)[0].reserved) == ([30 * BLOCK], 50)


def test_who_waits_is_told_when_there_is_room() -> None:
    books = open_books(share(soft_blocks=400, max_context_tokens=CONTEXT), usable=1000)
    books.observe(sample(used=1000), 0.0)
    waiting = books.ask(asking(TENANT, (10 * BLOCK,), 1, None), 0.0)
    assert isinstance(waiting, Waiting)
    books.observe(sample(used=0), 1.0)
    assert [(each.ticket, each.limit) for each in books.turn(1.0).admitted] == [(waiting.ticket, 30 * BLOCK)]
