"""The worked example of the accounting rules, number by number: steps 1, 2 and 4."""

from __future__ import annotations

from bookkeeping import admit, ask, config, sample, share
from kvquota_api.amounts import Tokens
from kvquota_sidecar.ledger.books import Books, Cause, Refusal
from kvquota_sidecar.refusals import Code

SEARCH = share("search", priority=100, soft_blocks=7372, hard_blocks=11_058, max_concurrent_requests=32)
BATCH = share("batch", priority=10, soft_blocks=1250, hard_blocks=4096, max_concurrent_requests=8)
EXAMPLE = config(SEARCH, BATCH, usable=18_431)


def example() -> Books:
    books = Books(jitter=lambda: 0.0)
    books.configure(EXAMPLE, 0.0)
    books.observe(sample(used=0, blocks=18_432), 0.0)
    return books


def after_step_1() -> Books:
    books = example()
    for _ in range(22):
        admit(books, "search", 500)
    return books


def after_step_2() -> Books:
    books = after_step_1()
    for _ in range(8):
        admit(books, "batch", 500)
    return books


def figures(books: Books) -> tuple[int, int, int, int]:
    """U, ΣC, F, and the pressure in whole percent."""
    pool = books.pool_usage(0.0)
    assert pool is not None
    return pool.usable, pool.reserved, pool.free, int(pool.pressure_percent)


def over_soft(books: Books) -> dict[str, int]:
    return {each.id: each.over_soft for each in books.tenant_usage(0.0, 0.0)}


def refused(books: Books, name: str, blocks: int) -> Code:
    answer = books.ask(ask(name, blocks), 0.0)
    assert isinstance(answer, Refusal)
    return answer.code


def test_step_1_of_22_requests_of_search_14_are_protected_and_8_are_over_soft() -> None:
    books = after_step_1()
    assert figures(books) == (18_431, 11_000, 7_431, 59)
    assert over_soft(books) == {"inference/search": 8 * 500, "inference/batch": 0}


def test_step_1_two_guaranteed_requests_of_batch_leave_6431() -> None:
    books = after_step_1()
    admit(books, "batch", 500)
    admit(books, "batch", 500)
    assert figures(books) == (18_431, 12_000, 6_431, 65)
    assert over_soft(books)["inference/batch"] == 0


def test_step_2_batch_borrows_until_it_runs_8_requests_at_a_pressure_of_81_percent() -> None:
    books = after_step_2()
    assert figures(books) == (18_431, 15_000, 3_431, 81)
    assert over_soft(books)["inference/batch"] == 6 * 500


def test_step_2_a_ninth_request_of_batch_and_more_of_search_are_refused() -> None:
    books = after_step_2()
    assert refused(books, "batch", 500) == Code.TENANT_CONCURRENCY_EXCEEDED
    assert refused(books, "search", 100) == Code.TENANT_KV_QUOTA_EXCEEDED
    assert figures(books)[1] == 15_000


def test_step_4_a_lowered_hard_ends_nothing_and_holds_new_requests_until_enough_has_drained() -> None:
    books = after_step_2()
    lowered = share("search", priority=100, soft_blocks=7372, hard_blocks=9215, max_concurrent_requests=32)
    books.configure(config(lowered, BATCH, usable=18_431, generation=2), 0.0)
    assert figures(books)[1] == 15_000
    assert refused(books, "search", 100) == Code.TENANT_KV_QUOTA_EXCEEDED
    running = list(range(1, 23))
    for ticket in running[:4]:  # 11,000 - 2,000 + 100 <= 9,215
        books.grow(ticket, Tokens(1), 0.0)
        books.release(ticket, Cause.FINISHED, 0.0)
    admit(books, "search", 100)
    books.check_integrity()
