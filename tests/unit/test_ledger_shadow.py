"""Shadow: what is counted and not enforced, for one tenant and for the whole pool."""

from __future__ import annotations

from typing import Any

import pytest

from bookkeeping import admit, ask, asking, config, open_books, sample, share
from kvquota_api.amounts import Tokens
from kvquota_sidecar.ledger.books import Admitted, Books, Cause, Refusal, Turn
from kvquota_sidecar.refusals import Code


def would_reject(books: Books) -> dict[str, int]:
    return dict(books.tenant_usage(0.0, 0.0)[0].total.would_reject)


OWN_LIMITS = [
    pytest.param({"max_concurrent_requests": 1}, 1, Code.TENANT_CONCURRENCY_EXCEEDED, id="concurrency"),
    pytest.param({"hard_blocks": 15}, 10, Code.TENANT_KV_QUOTA_EXCEEDED, id="hard"),
    pytest.param({"hard_blocks": 15}, 20, Code.REQUEST_EXCEEDS_KV_QUOTA, id="the whole of hard"),
    pytest.param({"max_context_tokens": 160}, 11, Code.CONTEXT_LENGTH_EXCEEDED, id="context"),
]


@pytest.mark.parametrize(("limits", "blocks", "code"), OWN_LIMITS)
def test_a_tenant_in_shadow_passes_its_own_limits_and_is_counted(
    limits: dict[str, Any], blocks: int, code: Code
) -> None:
    books = open_books(share(enforcement="Shadow", **limits))
    admit(books, "search", 10)
    assert isinstance(books.ask(ask("search", blocks), 0.0), Admitted)
    assert would_reject(books) == {code: 1}
    assert books.tenant_usage(0.0, 0.0)[0].last_refusal is None


@pytest.mark.parametrize(("limits", "blocks", "code"), OWN_LIMITS)
def test_the_same_tenant_enforced_is_refused(limits: dict[str, Any], blocks: int, code: Code) -> None:
    books = open_books(share(**limits))
    admit(books, "search", 10)
    answer = books.ask(ask("search", blocks), 0.0)
    assert isinstance(answer, Refusal)
    assert answer.code == code
    assert would_reject(books) == {}


def test_a_tenant_in_shadow_has_no_guarantee_and_its_blocks_are_over_soft() -> None:
    books = open_books(share(soft_blocks=500, enforcement="Shadow"), share("batch"))
    admit(books, "search", 100)
    usage = books.tenant_usage(0.0, 0.0)[0]
    assert (usage.reserved, usage.over_soft) == (100, 100)
    room = books.room("inference/search", 0.0)
    assert room is not None
    assert room.soft == 0


def test_the_soft_of_a_tenant_in_shadow_keeps_nothing_free() -> None:
    books = open_books(share("batch", soft_blocks=0), share(soft_blocks=500, enforcement="Shadow"), usable=1000)
    admit(books, "batch", 849)


def test_pool_level_refusals_hold_for_a_tenant_in_shadow() -> None:
    books = open_books(share(soft_blocks=500, enforcement="Shadow"), usable=1000)
    books.observe(sample(used=900), 0.0)
    refused = [books.ask(ask("search", blocks), 0.0) for blocks in (100, 1001)]
    assert [each.code for each in refused if isinstance(each, Refusal)] == [
        Code.KV_POOL_CONTENDED,
        Code.REQUEST_EXCEEDS_KV_QUOTA,
    ]
    assert would_reject(books) == {}


def test_one_request_counts_once_by_the_first_limit_that_it_passes() -> None:
    books = open_books(share(enforcement="Shadow", max_concurrent_requests=1, hard_blocks=15))
    admit(books, "search", 10)
    admit(books, "search", 10)
    assert would_reject(books) == {Code.TENANT_CONCURRENCY_EXCEEDED: 1}


def test_a_pool_in_shadow_refuses_nothing_and_counts_all() -> None:
    books = open_books(share(soft_blocks=2000, max_context_tokens=32_768), usable=1000, enforcement="Shadow")
    books.observe(sample(used=1000), 0.0)
    admit(books, "search", 100)
    admit(books, "search", 1001)
    assert would_reject(books) == {Code.KV_POOL_EXHAUSTED: 1, Code.REQUEST_EXCEEDS_KV_QUOTA: 1}
    assert books.tenant_usage(0.0, 0.0)[0].total.rejected == {}


@pytest.mark.parametrize("where", ["tenant", "pool"])
def test_growth_past_hard_in_shadow_ends_nothing_and_counts_once_for_a_request(where: str) -> None:
    own, pool = ("Shadow", "Enforce") if where == "tenant" else ("Enforce", "Shadow")
    books = open_books(share(hard_blocks=40, enforcement=own), enforcement=pool)
    for _ in range(40):
        short = admit(books, "search", 2)
        books.grow(short, Tokens(16), 0.0)
        books.release(short, Cause.FINISHED, 0.0)
    answer = books.ask(asking("inference/search", (Tokens(160),), 1, Tokens(480)), 0.0)
    assert isinstance(answer, Admitted)
    for blocks in (30, 31, 35):
        books.grow(answer.ticket, Tokens(blocks * 16), 0.0)
    assert books.turn(0.0) == Turn()
    assert books.tenant_usage(0.0, 0.0)[0].reserved == 45
    assert would_reject(books) == {Code.TENANT_KV_QUOTA_EXCEEDED: 1}


def test_leaving_shadow_ends_nothing_and_holds_new_requests() -> None:
    books = open_books(share(hard_blocks=40, enforcement="Shadow"))
    admit(books, "search", 60)
    books.configure(config(share(hard_blocks=40)), 0.0)
    assert books.tenant_usage(0.0, 0.0)[0].reserved == 60
    answer = books.ask(ask("search", 1), 0.0)
    assert isinstance(answer, Refusal)
    assert answer.code == Code.TENANT_KV_QUOTA_EXCEEDED
