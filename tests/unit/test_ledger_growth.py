"""Growth past hard: who is ended, who never is, and what a lowered hard means."""

from __future__ import annotations

from bookkeeping import admit, answered, ask, config, ended, open_books, share, streamed
from kvquota_api.amounts import Tokens
from kvquota_sidecar.ledger.books import Admitted, Books, Cause, Refusal
from kvquota_sidecar.refusals import Code

TENANT = "inference/search"


def expecting_little(*shares: object, **changes: object) -> Books:
    """Books that expect one block of output of tenant search."""
    books = open_books(*shares, **changes)  # type: ignore[arg-type]  # changes by name
    answered(books, 16)
    return books


def long_request(books: Books) -> int:
    """Ten blocks of prompt, one expected of output, and twenty allowed."""
    answer = books.ask(streamed(TENANT, (Tokens(160),), 1, Tokens(320)), 0.0)
    assert isinstance(answer, Admitted), answer
    assert answer.reserved == 11
    return answer.ticket


def charged(books: Books) -> int:
    return books.tenant_usage(0.0, 0.0)[0].reserved


def ended_by(books: Books, ticket: int, output_blocks: int) -> list[int]:
    books.grow(ticket, Tokens(output_blocks * 16), 0.0)
    return ended(books)


def test_the_tenants_youngest_unprotected_request_is_ended() -> None:
    books = expecting_little(share(soft_blocks=22, hard_blocks=60))
    first, second, third, fourth = (long_request(books) for _ in range(4))
    assert ended_by(books, first, 17) == []
    assert charged(books) == 60
    assert ended_by(books, first, 18) == [fourth]
    assert charged(books) == 50
    assert ended_by(books, second, 12) == [third]
    books.check_integrity()


def test_the_one_that_grows_may_be_the_youngest_itself() -> None:
    books = expecting_little(share(soft_blocks=11, hard_blocks=60))
    long_request(books)
    second = long_request(books)
    assert ended_by(books, second, 50) == [second]
    assert charged(books) == 11


def test_as_many_are_ended_as_it_takes_and_no_more() -> None:
    books = expecting_little(share(soft_blocks=11, hard_blocks=63))
    first, _, third, fourth, fifth = (long_request(books) for _ in range(5))
    assert ended_by(books, first, 35) == [fifth, fourth, third]
    assert charged(books) == 45 + 11


def test_protected_work_is_never_ended() -> None:
    books = expecting_little(share(soft_blocks=60, hard_blocks=60))
    first, second, third = (long_request(books) for _ in range(3))
    assert ended_by(books, first, 28) == []
    assert ended_by(books, second, 50) == [third, second]
    assert charged(books) == 38


def test_nobody_is_ended_where_all_is_protected_though_hard_is_less_than_soft() -> None:
    books = expecting_little(share(soft_blocks=60, hard_blocks=50))
    first = long_request(books)
    long_request(books)
    books.settle(first, Tokens(45 * 16), Tokens(16), 0.0)
    assert ended(books) == []
    assert charged(books) == 46 + 11


def test_another_tenants_work_is_never_ended() -> None:
    books = expecting_little(share(soft_blocks=11, hard_blocks=40), share("batch", hard_blocks=100))
    admit(books, "batch", 100)
    first, second = long_request(books), long_request(books)
    assert ended_by(books, first, 30) == [second]
    assert books.tenant_usage(0.0, 0.0)[1].reserved == 100


def test_the_ended_one_is_told_the_quota_the_use_and_what_to_do() -> None:
    books = expecting_little(share(soft_blocks=11, hard_blocks=40))
    first, second = long_request(books), long_request(books)
    books.grow(first, Tokens(30 * 16), 0.0)
    (ending,) = books.turn(0.0).endings
    assert ending.ticket == second
    told = ending.refusal
    assert (told.code, told.status, told.retryable) == (Code.TENANT_KV_QUOTA_EXCEEDED, 429, True)
    assert told.message == (
        "This request was ended: the running requests of tenant inference/search have grown to 816 tokens of KV cache "
        "and its hard quota is 640. Retry later, or run fewer at a time, or lower max_tokens."
    )
    usage = books.tenant_usage(0.0, 0.0)[0]
    assert (usage.total.ended, usage.total.evicted, usage.total.rejected) == (1, 0, {})
    assert usage.last_refusal is not None
    assert usage.last_refusal.code == "tenant_kv_quota_exceeded"


def test_the_engines_own_count_can_pass_hard_too() -> None:
    books = expecting_little(share(soft_blocks=11, hard_blocks=30))
    first, second = long_request(books), long_request(books)
    books.settle(first, Tokens(320), Tokens(16), 0.0)
    assert ended(books) == [second]


def test_an_ended_request_is_not_charged_and_not_ended_again_but_counts_until_it_is_released() -> None:
    books = expecting_little(share(soft_blocks=11, hard_blocks=40, max_concurrent_requests=2))
    first, second = long_request(books), long_request(books)
    assert ended_by(books, first, 19) == []
    assert ended_by(books, first, 20) == [second]
    assert ended_by(books, second, 20) == []
    books.settle(second, Tokens(160), Tokens(800), 0.0)
    assert ended(books) == []
    assert charged(books) == 30
    assert books.tenant_usage(0.0, 0.0)[0].in_flight == 2
    books.release(second, Cause.ENDED, 0.0)
    assert books.tenant_usage(0.0, 0.0)[0].in_flight == 1
    books.check_integrity()


def test_a_tenant_that_grew_past_hard_admits_nothing_more_until_something_ends_by_itself() -> None:
    books = expecting_little(share(soft_blocks=11, hard_blocks=60))
    first, second = long_request(books), long_request(books)
    third = long_request(books)
    assert ended_by(books, first, 50) == [third, second]
    books.release(third, Cause.ENDED, 0.0)
    books.release(second, Cause.ENDED, 0.0)
    books.release(first, Cause.FINISHED, 0.0)
    fourth, fifth, sixth = (long_request(books) for _ in range(3))
    assert ended_by(books, fourth, 30) == [sixth]
    told = books.ask(streamed(TENANT, (Tokens(16),), 1, Tokens(16)), 0.0)
    assert isinstance(told, Refusal)
    assert told.code == Code.TENANT_KV_QUOTA_EXCEEDED
    assert "nothing new starts until something has ended" in told.message
    books.release(fifth, Cause.FINISHED, 0.0)
    assert isinstance(books.ask(ask("search", 2), 0.0), Admitted)


def test_a_tenant_that_has_nothing_running_is_not_held_back_by_its_past() -> None:
    books = expecting_little(share(soft_blocks=0, hard_blocks=50))
    only = long_request(books)
    books.settle(only, Tokens(800), Tokens(800), 0.0)
    books.release(only, Cause.ENDED, 0.0)
    long_request(books)


def test_a_raised_hard_lets_a_tenant_that_grew_past_it_go_on() -> None:
    books = expecting_little(share(soft_blocks=11, hard_blocks=40))
    first, _ = long_request(books), long_request(books)
    ended_by(books, first, 30)
    books.configure(config(share(soft_blocks=11, hard_blocks=60)), 0.0)
    assert isinstance(books.ask(ask("search", 2), 0.0), Admitted)


def test_a_lowered_hard_ends_nothing_even_when_the_running_requests_grow_up_to_the_old_one() -> None:
    books = expecting_little(share(soft_blocks=11, hard_blocks=60))
    first, second = long_request(books), long_request(books)
    books.configure(config(share(soft_blocks=11, hard_blocks=20)), 0.0)
    assert ended_by(books, first, 39) == []
    assert charged(books) == 60
    assert ended_by(books, first, 40) == [second]


def test_a_request_is_held_against_the_hard_of_its_own_admission_where_that_was_larger() -> None:
    books = expecting_little(share(soft_blocks=0, hard_blocks=30))
    first = long_request(books)
    books.configure(config(share(soft_blocks=0, hard_blocks=60)), 0.0)
    second = long_request(books)
    books.configure(config(share(soft_blocks=0, hard_blocks=30)), 0.0)
    assert ended_by(books, first, 39) == [first]  # 60 in all, which the second may have
    assert ended_by(books, second, 50) == []


def test_a_raised_hard_holds_for_what_was_admitted_under_a_lower_one() -> None:
    books = expecting_little(share(soft_blocks=11, hard_blocks=30))
    first, _ = long_request(books), long_request(books)
    books.configure(config(share(soft_blocks=11, hard_blocks=60)), 0.0)
    assert ended_by(books, first, 30) == []


def test_a_tenant_that_left_the_config_keeps_what_it_runs_until_it_is_released() -> None:
    books = expecting_little(share(soft_blocks=11, hard_blocks=60), share("batch"))
    first, second = long_request(books), long_request(books)
    books.configure(config(share("batch")), 0.0)
    assert ended_by(books, first, 39) == []
    assert charged(books) == 60
    refused = books.ask(ask("search", 1), 0.0)
    assert isinstance(refused, Refusal)
    assert refused.code == Code.UNKNOWN_TENANT
    assert ended_by(books, first, 40) == [second]
    for ticket in (first, second):
        books.release(ticket, Cause.FINISHED, 0.0)
    assert [each.id for each in books.tenant_usage(0.0, 0.0)] == ["inference/batch"]
    books.check_integrity()
