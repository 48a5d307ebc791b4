"""What a tenant is charged: C(t)."""

from __future__ import annotations

import pytest

from bookkeeping import BLOCK, admit, answered, ask, asking, open_books, share, streamed
from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.outputs import FEWEST
from kvquota_sidecar.ledger.books import Admitted, Books, Cause

TENANT = "inference/search"


def charged(books: Books, name: str = "search") -> int:
    return {each.id: each.reserved for each in books.tenant_usage(0.0, 0.0)}[f"inference/{name}"]


def reserved(books: Books, *prompts: int, copies: int = 1, limit: int | None) -> int:
    wanted = streamed(TENANT, tuple(Tokens(each) for each in prompts), copies, None if limit is None else Tokens(limit))
    answer = books.ask(wanted, 0.0)
    assert isinstance(answer, Admitted), answer
    return answer.reserved


@pytest.mark.parametrize(
    ("finished", "limit", "expected"),
    [
        pytest.param([], 800, 10 + 50, id="with none finished yet the limit is reserved"),
        pytest.param([16] * 19, 800, 10 + 50, id="with nineteen finished still the limit"),
        pytest.param([160] * 20, 800, 10 + 10, id="then the 90th percentile of the finished outputs"),
        pytest.param([160] * 18 + [480] * 2, 800, 10 + 10, id="nine of ten outputs are at most the 90th percentile"),
        pytest.param(
            [160] * 17 + [480] * 3, 800, 10 + 30, id="when three of twenty are longer, the longer length counts"
        ),
        pytest.param([480] * 20, 160, 10 + 10, id="never more than the request's own limit"),
    ],
)
def test_a_request_reserves_its_prompt_and_its_expected_output(finished: list[int], limit: int, expected: int) -> None:
    books = open_books(share())
    for produced in finished:
        answered(books, produced, times=1)
    assert reserved(books, 160, limit=limit) == expected


def test_what_is_not_seen_to_grow_reserves_its_whole_limit() -> None:
    """Not streamed, it could pass hard by all that the promise left out, and nobody would see it."""
    books = open_books(share())
    answered(books, 16)
    unseen = books.ask(asking(TENANT, (Tokens(160),), 1, Tokens(800)), 0.0)
    assert isinstance(unseen, Admitted)
    assert unseen.reserved == 10 + 50


def test_an_output_that_was_not_seen_to_grow_is_learnt_from_when_it_has_finished() -> None:
    books = open_books(share(), usable=20_000)
    for _ in range(FEWEST):
        unseen = books.ask(asking(TENANT, (Tokens(16),), 1, Tokens(800)), 0.0)
        assert isinstance(unseen, Admitted)
        books.settle(unseen.ticket, Tokens(16), Tokens(160), 0.0)
        books.release(unseen.ticket, Cause.FINISHED, 0.0)
    assert reserved(books, 160, limit=800) == 10 + 10


def test_many_requests_that_show_nothing_until_they_end_stay_within_hard() -> None:
    """32 of at most 15,000 tokens, from a tenant whose answers have all been short."""
    books = open_books(share(hard_blocks=11_058), usable=18_431)
    answered(books, 4)
    answers = [books.ask(asking(TENANT, (Tokens(3),), 1, Tokens(15_000)), 0.0) for _ in range(32)]
    assert sum(isinstance(each, Admitted) for each in answers) == 11_058 // 938


def test_a_request_that_was_ended_counts_as_at_least_its_output() -> None:
    books = open_books(share())
    answered(books, 16)
    answered(books, 160, Cause.CLIENT_GONE)
    assert reserved(books, 160, limit=800) == 10 + 50


def test_a_request_that_ended_without_a_sign_of_output_says_nothing() -> None:
    books = open_books(share())
    for cause in (Cause.ENGINE_FAILED, Cause.FINISHED):
        books.release(admit(books, "search", 2), cause, 0.0)
    assert reserved(books, 160, limit=800) == 10 + 50


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        pytest.param(None, 640 // BLOCK, id="up to the model's context"),
        pytest.param(320, 320 // BLOCK, id="up to the tenant's context where that is shorter"),
        pytest.param(3200, 640 // BLOCK, id="up to the model's context where the tenant's is longer"),
    ],
)
def test_without_a_limit_the_output_may_fill_the_context(own: int | None, expected: int) -> None:
    books = open_books(share(max_context_tokens=own), max_model_len=640)
    assert reserved(books, 160, limit=None) == expected


def test_a_limit_beyond_the_context_is_cut_where_only_shadow_lets_it_pass() -> None:
    books = open_books(share(max_context_tokens=320, enforcement="Shadow"), max_model_len=640)
    assert reserved(books, 160, limit=480) == 640 // BLOCK


def test_copies_hold_the_prompt_once_and_each_output_for_itself() -> None:
    books = open_books(share())
    assert reserved(books, 160, copies=4, limit=80) == 10 + 4 * 5


def test_each_copy_has_its_own_of_the_block_in_which_the_prompt_ends() -> None:
    books = open_books(share())
    assert reserved(books, 168, copies=4, limit=8) == 10 + 4 * 1


def test_a_list_of_prompts_is_one_sequence_each() -> None:
    books = open_books(share())
    assert reserved(books, 160, 17, 1, copies=2, limit=16) == (10 + 2) + (1 + 2 * 2) + 2 * 2
    assert books.tenant_usage(0.0, 0.0)[0].in_flight == 6


def test_growth_within_the_promise_changes_nothing() -> None:
    books = open_books(share())
    ticket = admit(books, "search", 20, output=160)
    books.grow(ticket, Tokens(160), 0.0)
    assert not books.restless
    assert charged(books) == 20


def test_growth_past_the_promise_is_charged_block_by_block() -> None:
    books = open_books(share())
    answered(books, 16)
    ticket = admit_promised(books, 160, 800)
    seen = []
    for produced in (16, 17, 32, 33, 320):
        books.grow(ticket, Tokens(produced), 0.0)
        seen.append(charged(books))
    assert seen == [11, 12, 12, 13, 30]


def admit_promised(books: Books, prompt: int, limit: int) -> int:
    answer = books.ask(streamed(TENANT, (Tokens(prompt),), 1, Tokens(limit)), 0.0)
    assert isinstance(answer, Admitted)
    return answer.ticket


def test_what_was_seen_never_shrinks() -> None:
    books = open_books(share())
    answered(books, 16)
    ticket = admit_promised(books, 160, 800)
    books.grow(ticket, Tokens(320), 0.0)
    books.grow(ticket, Tokens(16), 0.0)
    assert charged(books) == 30


def test_output_of_several_sequences_is_taken_as_shared_evenly_and_rounded_up() -> None:
    books = open_books(share())
    answered(books, 16)
    answer = books.ask(streamed(TENANT, (Tokens(160),), 2, Tokens(800)), 0.0)
    assert isinstance(answer, Admitted)
    books.grow(answer.ticket, Tokens(33), 0.0)
    assert charged(books) == 10 + 2 * 2


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        pytest.param(80, 5 + 10, id="an estimate that was too high is given back"),
        pytest.param(320, 20 + 10, id="an estimate that was too low is charged"),
        pytest.param(160, 20, id="an estimate that was right stays"),
    ],
)
def test_the_engines_own_count_corrects_the_estimate(prompt: int, expected: int) -> None:
    books = open_books(share())
    ticket = admit(books, "search", 20, output=160)
    books.settle(ticket, Tokens(prompt), Tokens(16), 0.0)
    assert charged(books) == expected
    books.check_integrity()


def test_the_engines_count_over_several_prompts_is_shared_in_proportion() -> None:
    books = open_books(share())
    answer = books.ask(streamed(TENANT, (Tokens(320), Tokens(160)), 1, Tokens(16)), 0.0)
    assert isinstance(answer, Admitted)
    books.settle(answer.ticket, Tokens(240), Tokens(2), 0.0)
    assert charged(books) == (10 + 1) + (5 + 1)


def test_a_prompt_of_no_tokens_stays_one_of_no_tokens() -> None:
    books = open_books(share())
    answer = books.ask(streamed(TENANT, (Tokens(0),), 1, Tokens(16)), 0.0)
    assert isinstance(answer, Admitted)
    books.settle(answer.ticket, Tokens(5), Tokens(16), 0.0)
    assert charged(books) == 1


def test_a_finished_request_is_charged_no_more() -> None:
    books = open_books(share(), share("batch"))
    first, second = admit(books, "search", 20), admit(books, "search", 30)
    admit(books, "batch", 40)
    books.release(first, Cause.FINISHED, 0.0)
    assert (charged(books), charged(books, "batch")) == (30, 40)
    books.release(second, Cause.CLIENT_GONE, 0.0)
    assert (charged(books), charged(books, "batch")) == (0, 40)


def test_a_refused_request_is_charged_nothing() -> None:
    books = open_books(share(hard_blocks=30))
    admit(books, "search", 20)
    assert not isinstance(books.ask(ask("search", 11), 0.0), Admitted)
    assert charged(books) == 20
    assert books.tenant_usage(0.0, 0.0)[0].in_flight == 1
