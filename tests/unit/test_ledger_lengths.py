"""Prompts of which only an estimate and an upper bound are known: when that is enough, and when it is not."""

from __future__ import annotations

from typing import Any

import pytest

from bookkeeping import open_books, sample, share
from kvquota_api.amounts import Tokens
from kvquota_sidecar.ledger.books import Admitted, Answer, Ask, AskedPrompt, Books, Cause, Close, Refusal, Waiting
from kvquota_sidecar.refusals import Code


def about(tokens: int, most: int, *, output: int = 16, prompts: int = 1, **more: Any) -> Ask:
    """A request whose prompts have about `tokens` tokens each, and at most `most`."""
    each = AskedPrompt(Tokens(tokens), Tokens(most))
    return Ask("inference/search", (each,) * prompts, 1, Tokens(output), "Seen", **more)


def reserved(answer: Answer) -> int:
    assert isinstance(answer, Admitted), answer
    return answer.reserved


def code(answer: Answer) -> Code:
    assert isinstance(answer, Refusal), answer
    return answer.code


def charged(books: Books) -> int:
    return books.tenant_usage(0.0, 0.0)[0].reserved


def test_what_fits_at_its_longest_is_charged_at_its_estimate() -> None:
    books = open_books(share(hard_blocks=100))
    assert reserved(books.ask(about(160, 1584), 0.0)) == 11


def test_what_does_not_fit_at_its_longest_is_to_be_asked_again_and_nothing_was_taken() -> None:
    books = open_books(share(hard_blocks=100, max_concurrent_requests=1))
    assert books.ask(about(160, 1600), 0.0) == Close()
    assert (charged(books), books.tenant_usage(0.0, 0.0)[0].in_flight) == (0, 0)
    assert books.tenant_usage(0.0, 0.0)[0].total.rejected == {}
    assert reserved(books.ask(about(1584, 1584), 0.0)) == 100
    books.check_integrity()


def test_estimates_are_not_stacked_past_hard() -> None:
    books = open_books(share(hard_blocks=100))
    first = books.ask(about(144, 784), 0.0)
    assert reserved(first) == 10
    assert books.ask(about(144, 784), 0.0) != Close()
    assert books.ask(about(144, 160), 0.0) == Close()
    assert charged(books) == 20
    assert isinstance(first, Admitted)
    books.settle(first.ticket, Tokens(144), Tokens(1), 0.0)
    assert reserved(books.ask(about(144, 160), 0.0)) == 10
    books.check_integrity()


def test_the_doubt_of_one_that_is_over_is_over() -> None:
    books = open_books(share(hard_blocks=100))
    first = books.ask(about(144, 1584), 0.0)
    assert isinstance(first, Admitted)
    assert books.ask(about(144, 160), 0.0) == Close()
    books.release(first.ticket, Cause.FINISHED, 0.0)
    assert reserved(books.ask(about(144, 160), 0.0)) == 10


def test_a_known_length_that_fits_only_beside_the_estimates_of_others_is_to_be_asked_again() -> None:
    books = open_books(share(hard_blocks=100))
    first = books.ask(about(144, 1584), 0.0)
    assert isinstance(first, Admitted)
    assert books.ask(about(1424, 1424), 0.0) == Close()
    assert charged(books) == 10
    books.count(first.ticket, (Tokens(144),), 0.0)
    assert reserved(books.ask(about(1424, 1424), 0.0)) == 90
    assert code(books.ask(about(16, 16), 0.0)) == Code.TENANT_KV_QUOTA_EXCEEDED


def test_a_known_length_that_does_not_fit_whatever_the_others_are_is_refused_at_once() -> None:
    books = open_books(share(hard_blocks=100))
    books.ask(about(144, 1584), 0.0)
    assert code(books.ask(about(1440, 1440), 0.0)) == Code.TENANT_KV_QUOTA_EXCEEDED


def test_in_shadow_nobody_waits_for_what_others_are() -> None:
    books = open_books(share(hard_blocks=100, enforcement="Shadow"))
    first = books.ask(about(144, 1584), 0.0)
    assert isinstance(first, Admitted)
    assert not first.count
    assert reserved(books.ask(about(1424, 1424), 0.0)) == 90


def test_a_list_that_is_counted_is_charged_what_was_counted() -> None:
    books = open_books(share())
    ticket = books.ask(about(160, 400, prompts=4, kind="Pool"), 0.0)
    assert isinstance(ticket, Admitted)
    books.count(ticket.ticket, (Tokens(160), Tokens(400), Tokens(160), Tokens(16)), 0.0)
    assert charged(books) == 10 + 25 + 10 + 1
    books.check_integrity()


def test_a_count_that_comes_when_it_has_been_ended_changes_nothing() -> None:
    books = open_books(share(soft_blocks=0), share("guest", soft_blocks=500))
    first = books.ask(about(9568, 9584), 0.0)
    assert isinstance(first, Admitted)
    books.grow(first.ticket, Tokens(1), 0.0)
    books.observe(sample(used=600), 0.0)
    guest = Ask("inference/guest", (AskedPrompt(Tokens(7984), Tokens(7984)),), 1, Tokens(16), "Seen")
    assert isinstance(books.ask(guest, 0.0), Waiting)
    assert [each.ticket for each in books.turn(0.0).endings] == [first.ticket]
    books.count(first.ticket, (Tokens(9584),), 0.0)
    assert charged(books) == 0
    books.check_integrity()


def test_what_no_length_would_let_in_is_refused_at_once_in_words_of_its_estimate() -> None:
    books = open_books(share(hard_blocks=100))
    books.ask(about(1568, 1568, output=32), 0.0)
    told = books.ask(about(160, 1568), 0.0)
    assert code(told) == Code.TENANT_KV_QUOTA_EXCEEDED
    assert isinstance(told, Refusal)
    assert "this request asks for about 176." in told.message


def test_of_a_prompt_that_is_not_known_a_refusal_says_what_is_sure() -> None:
    """By its estimate it is beyond the context, and that is not sure; its output alone is beyond hard, and that is."""
    books = open_books(share(hard_blocks=100, max_context_tokens=3200))
    told = books.ask(about(1616, 3000, output=1600), 0.0)
    assert isinstance(told, Refusal)
    assert "The request needs at least 1,616 tokens of KV cache" in told.message


def test_who_has_waited_in_vain_is_told_that_its_size_is_an_estimate() -> None:
    books = open_books(share(soft_blocks=400))
    books.observe(sample(used=1000), 0.0)
    assert isinstance(books.ask(about(160, 1600), 0.0), Waiting)
    (missed,) = books.turn(2.0).missed
    assert "asks for about 176 tokens of KV cache" in missed.refusal.message


def test_what_would_be_refused_for_another_reason_at_its_estimate_is_refused_for_the_one_that_is_sure() -> None:
    books = open_books(share(hard_blocks=100, max_concurrent_requests=1, max_context_tokens=1500))
    books.ask(about(16, 16), 0.0)
    assert code(books.ask(about(1490, 3000), 0.0)) == Code.TENANT_CONCURRENCY_EXCEEDED


def test_in_shadow_the_estimate_decides_what_is_counted() -> None:
    books = open_books(share(hard_blocks=100, enforcement="Shadow"))
    assert reserved(books.ask(about(160, 3200), 0.0)) == 11
    assert reserved(books.ask(about(1600, 3200), 0.0)) == 101
    assert dict(books.tenant_usage(0.0, 0.0)[0].total.would_reject) == {"request_exceeds_kv_quota": 1}


def test_where_every_length_waits_it_waits() -> None:
    books = open_books(share(soft_blocks=400))
    books.observe(sample(used=1000), 0.0)
    assert isinstance(books.ask(about(160, 1600), 0.0), Waiting)


@pytest.mark.parametrize(
    ("used", "soft"),
    [
        pytest.param(950, 400, id="a shorter one would get in at once"),
        pytest.param(1000, 50, id="at its longest it would go beyond soft, and be refused"),
    ],
)
def test_where_the_length_decides_between_room_and_waiting_it_is_to_be_known(used: int, soft: int) -> None:
    books = open_books(share(soft_blocks=soft))
    books.observe(sample(used=used), 0.0)
    assert books.ask(about(160, 1600), 0.0) == Close()


def outputs_that_share(tokens: int, most: int, *, copies: int = 4) -> Ask:
    """Several outputs that fill the context, so that a longer prompt takes less: they share it."""
    return Ask("inference/search", (AskedPrompt(Tokens(tokens), Tokens(most)),), copies, None, "Seen")


def test_where_a_longer_prompt_takes_less_the_dearer_of_both_lengths_has_to_fit() -> None:
    books = open_books(share(hard_blocks=120), max_model_len=640)
    assert books.ask(outputs_that_share(213, 426), 0.0) == Close()
    books = open_books(share(hard_blocks=121), max_model_len=640)
    assert reserved(books.ask(outputs_that_share(213, 426), 0.0)) == 121


def test_where_a_longer_prompt_takes_less_it_is_not_refused_for_what_a_short_one_would_take() -> None:
    books = open_books(share(hard_blocks=90), max_model_len=640)
    assert books.ask(outputs_that_share(213, 426), 0.0) == Close()
    assert reserved(books.ask(outputs_that_share(426, 426), 0.0)) == 82


def test_a_list_that_only_goes_through_the_model_is_judged_at_its_longest_too() -> None:
    books = open_books(share(hard_blocks=100))
    assert reserved(books.ask(about(160, 400, prompts=4, kind="Pool"), 0.0)) == 40
    assert books.ask(about(160, 800, prompts=4, kind="Pool"), 0.0) == Close()


def test_of_a_list_the_longest_text_is_held_against_the_context() -> None:
    books = open_books(share(max_context_tokens=500))
    short, long = AskedPrompt(Tokens(16), Tokens(32)), AskedPrompt(Tokens(160), Tokens(501))
    for prompts in ((short, long), (long, short)):
        assert books.ask(Ask("inference/search", prompts, 1, None, kind="Pool"), 0.0) == Close()
    exact = AskedPrompt(Tokens(501), Tokens(501))
    refused = books.ask(
        Ask("inference/search", (exact, AskedPrompt(Tokens(16), Tokens(16))), 1, None, kind="Pool"), 0.0
    )
    assert code(refused) == Code.CONTEXT_LENGTH_EXCEEDED


def test_of_several_prompts_the_longest_is_held_against_the_context() -> None:
    books = open_books(share(max_context_tokens=500))
    short, long = AskedPrompt(Tokens(16), Tokens(32)), AskedPrompt(Tokens(160), Tokens(485))
    for prompts in ((short, long), (long, short)):
        assert books.ask(Ask("inference/search", prompts, 1, Tokens(16), "Seen"), 0.0) == Close()


def test_without_a_limit_a_longer_prompt_leaves_less_to_its_output() -> None:
    books = open_books(share(hard_blocks=100), max_model_len=1600)
    unlimited = Ask("inference/search", (AskedPrompt(Tokens(160), Tokens(800)),), 1, None, "Seen")
    assert reserved(books.ask(unlimited, 0.0)) == 100


def test_without_a_limit_each_of_several_prompts_is_promised_what_the_context_leaves_beside_it() -> None:
    books = open_books(share(), max_model_len=640)
    prompts = tuple(AskedPrompt(Tokens(tokens), Tokens(tokens)) for tokens in (480, 160))
    assert reserved(books.ask(Ask("inference/search", prompts, 1, None), 0.0)) == 40 + 40
