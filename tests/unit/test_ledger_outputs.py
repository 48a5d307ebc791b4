"""What the books learn of the length of outputs: when it is taken anew, and what does not count as short."""

from __future__ import annotations

from bookkeeping import answered, open_books, share, streamed
from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.outputs import FEWEST, RENEWED, WINDOW, Outputs
from kvquota_sidecar.ledger.books import Admitted, Books, Cause


def reserved(books: Books) -> int:
    answer = books.ask(streamed("inference/search", (160,), 1, 800), 0.0)
    assert isinstance(answer, Admitted)
    books.release(answer.ticket, Cause.ENGINE_FAILED, 0.0)
    return answer.reserved


def test_until_the_window_is_full_every_output_counts_at_once() -> None:
    outputs = Outputs()
    seen = []
    for _ in range(FEWEST + 1):
        outputs.finished(Tokens(16))
        seen.append(outputs.p90())
    assert seen == [None] * (FEWEST - 1) + [16, 16]
    for _ in range(3):
        outputs.finished(Tokens(160))
    assert outputs.p90() == 160


def test_when_the_window_is_full_the_percentile_is_taken_anew_with_every_sixteenth() -> None:
    outputs = Outputs()
    for _ in range(WINDOW):
        outputs.finished(Tokens(16))
    assert outputs.p90() == 16
    seen = []
    for _ in range(RENEWED):
        outputs.finished(Tokens(160))
        seen.append(outputs.p90())
    assert seen == [16] * (RENEWED - 1) + [160]


def test_those_that_fell_out_of_the_window_are_not_counted_as_finished() -> None:
    outputs = Outputs()
    for _ in range(WINDOW):
        outputs.finished(Tokens(16))
    for _ in range(WINDOW - FEWEST + 1):
        outputs.ended(Tokens(16))
    for _ in range(RENEWED):
        outputs.p90()
    assert outputs.p90() is None


def test_answers_that_stopped_at_their_own_limit_do_not_make_a_tenant_one_of_short_answers() -> None:
    books = open_books(share())
    for _ in range(3 * FEWEST):
        answer = books.ask(streamed("inference/search", (1,), 1, 1), 0.0)
        assert isinstance(answer, Admitted)
        books.grow(answer.ticket, Tokens(1), 0.0)
        books.release(answer.ticket, Cause.FINISHED, 0.0)
    assert reserved(books) == 10 + 50
    answered(books, 16)
    assert reserved(books) == 10 + 1
