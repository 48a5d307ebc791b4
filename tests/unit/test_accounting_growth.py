"""The rules of docs/accounting.md on growth and changed limits, one test for each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bookkeeping import admit, answered, asking, config, ended, open_books, sample, share, streamed
from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.shape import Shape, read_shape
from kvquota_sidecar.estimate.steering import WITHOUT_STEERING, engine_priority
from kvquota_sidecar.ledger.books import Admitted, Books, Cause
from kvquota_sidecar.refusals import Code
from ledger_figures import charged, end_the_victims, free, outcome, running, tenant


def expecting_little(*shares: Any, **changes: Any) -> Books:
    """Books that expect one block of output of tenant search."""
    books = open_books(*shares, **changes)
    answered(books, 16)
    return books


def long_request(books: Books, now: float = 0.0) -> int:
    """Ten blocks of prompt, one expected of output, and five hundred allowed."""
    answer = books.ask(streamed("inference/search", (160,), 1, 8000), now)
    assert isinstance(answer, Admitted), answer
    assert answer.reserved == 11
    return answer.ticket


def grow(books: Books, ticket: int, output_blocks: int, now: float = 0.0) -> None:
    books.grow(ticket, Tokens(output_blocks * 16), now)


def test_limits_bind_new() -> None:
    books = expecting_little(share(soft_blocks=520, hard_blocks=1000))
    first = long_request(books)
    admit(books, "search", 400)
    books.configure(config(share(soft_blocks=10, hard_blocks=600)), 0.0)
    assert ended(books) == []
    grow(books, first, 450)
    assert ended(books) == [], "held against the hard of its admission, which was larger"
    assert tenant(books, "search").over_soft == 860, "protection follows today's soft"
    assert outcome(books, "search", 1) == Code.TENANT_KV_QUOTA_EXCEEDED
    books.configure(config(share(soft_blocks=10, hard_blocks=870)), 0.0)
    assert outcome(books, "search", 11) == Code.TENANT_KV_QUOTA_EXCEEDED


def test_limits_bind_new__a_raised_hard_holds_at_once() -> None:
    books = expecting_little(share(hard_blocks=520))
    first = long_request(books)
    long_request(books)
    books.configure(config(share(hard_blocks=600)), 0.0)
    grow(books, first, 500)
    assert (ended(books), charged(books, "search")) == ([], 521)


def test_growth_past_hard() -> None:
    books = expecting_little(share(soft_blocks=522, hard_blocks=530), share("batch"))
    running(books, "batch", 200)
    first, second, third = (long_request(books) for _ in range(3))
    grow(books, first, 480)
    assert ended(books) == []
    grow(books, first, 499)
    assert ended(books) == [third], "its youngest unprotected one, and nobody else's"
    assert (charged(books, "search"), charged(books, "batch")) == (509 + 11, 200)
    assert outcome(books, "search", 1) == Code.TENANT_KV_QUOTA_EXCEEDED, "nothing more until one has ended by itself"
    books.release(third, Cause.ENDED, 0.0)
    assert outcome(books, "search", 1) == Code.TENANT_KV_QUOTA_EXCEEDED
    books.release(second, Cause.FINISHED, 0.0)
    assert outcome(books, "search", 1) is None


def test_growth_past_hard__never_a_protected_one() -> None:
    books = expecting_little(share(soft_blocks=530, hard_blocks=530))
    first, second = long_request(books), long_request(books)
    grow(books, first, 500)
    assert ended(books) == []
    grow(books, second, 400)
    assert ended(books) == [second]


HIDDEN = ('"include_reasoning":false', '"use_beam_search":true', '"allowed_token_ids":[2]', '"logit_bias":{"2":100}')


@pytest.mark.parametrize("field", HIDDEN)
def test_growth_hidden(field: str) -> None:
    shape = read_shape("/v1/chat/completions", f'{{"messages":[],"stream":true,{field}}}'.encode(), engine="vLLM")
    assert isinstance(shape, Shape)
    assert not shape.shows_output
    answer = expecting_little(share()).ask(asking("inference/search", (160,), 1, 8000, growth="Unseen"), 0.0)
    assert isinstance(answer, Admitted)
    assert answer.reserved == 510, "the limit, not what is expected"


def test_growth_hidden__frames_of_many_tokens_are_not_asked_for() -> None:
    assert "stream_interval" in WITHOUT_STEERING


def test_growth_told() -> None:
    books = expecting_little(share(soft_blocks=11, hard_blocks=510))
    first, second = long_request(books), long_request(books)
    grow(books, first, 495)
    (ending,) = books.turn(0.0).endings
    assert (ending.ticket, ending.refusal.code) == (second, Code.TENANT_KV_QUOTA_EXCEEDED)
    counts = tenant(books, "search").total
    assert (counts.ended, counts.evicted) == (1, 0)


def full(engine_type: str = "vLLM") -> tuple[Books, int, list[int]]:
    """Of 1000 blocks, seven requests of 100 are borrowed, and a long one of tenant search has 11 within its soft."""
    books = expecting_little(share(soft_blocks=400), share("borrower"), engine_type=engine_type)
    mine = long_request(books)
    grow(books, mine, 1)
    lent = [running(books, "borrower", 100) for _ in range(7)]
    books.observe(sample(used=711), 0.1)
    return books, mine, lent


@pytest.mark.parametrize("engine_type", ["vLLM", "SGLang"])
def test_growth_protected(engine_type: str) -> None:
    books, mine, lent = full(engine_type)
    grow(books, mine, 289, 0.1)
    assert (free(books, 0.1), ended(books, 0.1)) == (1, [])
    grow(books, mine, 290, 0.1)
    assert free(books, 0.1) == 0
    assert end_the_victims(books, 0.1) == []
    grow(books, mine, 291, 0.1)
    assert end_the_victims(books, 0.1) == [lent[-1]], "one block is missing by the ledger"
    assert tenant(books, "borrower", 0.1).total.evicted == 1


@pytest.mark.parametrize("engine_type", ["vLLM", "SGLang"])
def test_growth_over_soft(engine_type: str) -> None:
    """The grower may be its own victim."""
    books = open_books(share(), share("batch", soft_blocks=300), engine_type=engine_type)
    answered(books, 16)
    running(books, "batch", 300)
    mine = [long_request(books) for _ in range(2)]
    for ticket in mine:
        grow(books, ticket, 1)
    books.observe(sample(used=322), 0.1)
    grow(books, mine[0], 500, 0.1)
    grow(books, mine[1], 180, 0.1)
    assert ended(books, 0.1) == []
    grow(books, mine[1], 181, 0.1)
    assert end_the_victims(books, 0.1) == [mine[1]]


def test_engine_priority() -> None:
    """Lower is earlier: (protected, tenant's priority), and a client may only lower its own."""

    def given(protected: bool, priority: int, asked: bytes = b"") -> int:
        return engine_priority(protected=protected, tenant_priority=priority, asked=asked)

    order = [given(True, 1000), given(True, 0), given(False, 1000), given(False, 0)]
    assert order == sorted(set(order))
    assert given(True, 5, b"3") >= given(True, 5)
    assert given(True, 5, b"-3") == given(True, 5)


def test_preempted_still_charged() -> None:
    books = open_books(share())
    running(books, "search", 300)
    books.observe(sample(used=300), 0.1)
    books.observe(sample(used=100), 0.2)
    assert (charged(books, "search", 0.2), free(books, 0.2)) == (300, 700)


def preempted(books: Books, *counts: int | None) -> int:
    """Misses of tenant search when the engine says one after the other how often it has preempted."""
    for count in counts:
        books.observe(replace(sample(used=0), preemptions=count), 0.0)
    return books.tenant_usage(0.0, 0.0)[0].total.guarantee_missed


@pytest.mark.parametrize(
    ("counts", "missed"),
    [
        pytest.param((7,), 0, id="the first reading says nothing of what is new"),
        pytest.param((7, 7), 0, id="nothing new"),
        pytest.param((7, 10, 11), 4, id="each one is a guarantee missed"),
        pytest.param((7, None, 11), 0, id="a reading that does not say"),
        pytest.param((7, 3), 0, id="a count that falls"),
    ],
)
def test_engine_preemption(counts: tuple[int | None, ...], missed: int) -> None:
    books = open_books(share(soft_blocks=500))
    admit(books, "search", 100)
    assert preempted(books, *counts) == missed


def test_engine_preemption__counts_from_nothing_after_a_restart() -> None:
    books = open_books(share(soft_blocks=500))
    preempted(books, 7)
    admit(books, "search", 100, 1.0)
    books.observe(replace(sample(used=0, started=2.0), preemptions=2), 2.0)
    assert books.tenant_usage(2.0, 0.0)[0].total.guarantee_missed == 2


@pytest.mark.parametrize(
    ("soft", "enforcement"),
    [
        pytest.param(50, "Enforce", id="something runs beyond soft, and that may have been it"),
        pytest.param(500, "Shadow", id="nothing is guaranteed"),
    ],
)
def test_engine_preemption__that_need_not_be_of_protected_work_is_none(soft: int, enforcement: Any) -> None:
    books = open_books(share(soft_blocks=soft), enforcement=enforcement)
    admit(books, "search", 100)
    assert preempted(books, 0, 1) == 0


def test_engine_preemption__while_nothing_of_ours_runs_is_nobodys() -> None:
    assert preempted(open_books(share(soft_blocks=500)), 0, 1) == 0


def test_engine_preemption__before_the_first_config_is_nobodys() -> None:
    books = Books(jitter=lambda: 0.0)
    books.observe(replace(sample(used=0), preemptions=1), 0.0)
    books.observe(replace(sample(used=0), preemptions=2), 0.0)
    books.configure(config(share(soft_blocks=500)), 0.0)
    assert preempted(books, 2) == 0
