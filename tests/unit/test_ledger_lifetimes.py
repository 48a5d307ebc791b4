"""From ask to release, over restarts and changes of the config: nothing leaks, nothing is released twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookkeeping import admit, ask, config, ended, open_books, sample, share
from kvquota_api.amounts import Tokens
from kvquota_sidecar.ledger import books as books_module
from kvquota_sidecar.ledger.books import Admitted, Books, Cause, LedgerError, Waiting


def state(books: Books) -> tuple[int, int]:
    usage = books.tenant_usage(0.0, 0.0)[0]
    return usage.reserved, usage.in_flight


@pytest.mark.parametrize("cause", list(Cause))
def test_a_request_is_released_once_whatever_ended_it(cause: Cause) -> None:
    books = open_books(share())
    ticket = admit(books, "search", 10)
    assert state(books) == (10, 1)
    books.release(ticket, cause, 0.0)
    assert state(books) == (0, 0)
    with pytest.raises(LedgerError, match="released before"):
        books.release(ticket, cause, 0.0)
    assert state(books) == (0, 0)


@pytest.mark.parametrize("call", ["grow", "settle", "release"])
def test_a_ticket_that_was_never_given_is_an_error(call: str) -> None:
    books = open_books(share())
    arguments = {"grow": (Tokens(1), 0.0), "settle": (Tokens(1), Tokens(1), 0.0), "release": (Cause.FINISHED, 0.0)}
    with pytest.raises(LedgerError, match="ticket 7 is not in the books"):
        getattr(books, call)(7, *arguments[call])


def test_an_engine_that_restarted_holds_nothing_of_what_it_ran() -> None:
    books = open_books(share(hard_blocks=100))
    ticket = admit(books, "search", 100)
    books.observe(sample(used=100), 1.0)
    books.observe(sample(used=0, started=2.0), 2.0)
    assert state(books) == (0, 0)
    admit(books, "search", 100, now=2.0)
    books.grow(ticket, Tokens(16), 2.0)
    books.settle(ticket, Tokens(5), Tokens(5), 2.0)
    books.release(ticket, Cause.ENGINE_FAILED, 2.0)
    assert state(books) == (100, 1)
    books.check_integrity()


def test_what_was_admitted_after_the_last_reading_may_run_on_the_new_engine_and_stays() -> None:
    books = open_books(share())
    admit(books, "search", 10, now=0.0)
    admit(books, "search", 20, now=0.5)
    books.observe(sample(used=0, started=2.0), 1.0)
    assert state(books) == (20, 1)


def test_an_engine_that_does_not_say_when_it_started_is_taken_for_the_same() -> None:
    books = open_books(share())
    admit(books, "search", 10)
    books.observe(sample(used=0, started=None), 1.0)
    books.observe(sample(used=0, started=1.0), 2.0)
    assert state(books) == (10, 1)


def test_a_restart_is_seen_though_the_reading_does_not_say_what_is_used() -> None:
    books = open_books(share())
    admit(books, "search", 10)
    books.observe(sample(used=None, started=2.0), 1.0)
    assert state(books) == (0, 0)


def test_learnt_outputs_stay_over_a_restart_of_the_engine() -> None:
    books = open_books(share())
    ticket = admit(books, "search", 2)
    books.grow(ticket, Tokens(16), 0.0)
    books.release(ticket, Cause.FINISHED, 0.0)
    books.observe(sample(used=0, started=2.0), 1.0)
    assert admit(books, "search", 11, now=1.0)
    usage = books.tenant_usage(1.0, 0.0)[0]
    assert usage.reserved == 11


def test_a_restart_lets_a_tenant_that_grew_past_hard_begin_again() -> None:
    books = open_books(share(hard_blocks=30))
    first, second = admit(books, "search", 10), admit(books, "search", 10)
    books.settle(first, Tokens(400), Tokens(16), 0.0)
    assert ended(books) == [second]
    books.observe(sample(used=0, started=2.0), 1.0)
    admit(books, "search", 10, now=1.0)


def test_a_config_that_comes_again_changes_nothing() -> None:
    books = open_books(share(soft_blocks=50, hard_blocks=100), share("batch"))
    admit(books, "search", 60)
    before = books.tenant_usage(0.0, 0.0), books.pool_usage(0.0)
    books.configure(config(share(soft_blocks=50, hard_blocks=100), share("batch")), 0.0)
    assert (books.tenant_usage(0.0, 0.0), books.pool_usage(0.0)) == before
    books.check_integrity()


def test_totals_of_a_tenant_that_left_and_came_back_go_on() -> None:
    books = open_books(share())
    books.release(admit(books, "search", 10), Cause.FINISHED, 0.0)
    books.configure(config(share("batch")), 0.0)
    books.configure(config(share()), 0.0)
    assert books.tenant_usage(0.0, 0.0)[0].total.admitted == 1


@pytest.mark.interpreted  # a bound that is lowered: compiled, it is part of the code
def test_tenants_that_left_are_forgotten_beyond_a_bound_but_never_while_they_run_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(books_module, "MAX_ACCOUNTS", 3)
    books = open_books(share("running"), share("one"), share("two"))
    ticket = admit(books, "running", 10)
    for generation in range(20):
        books.configure(config(share(f"new-{generation}")), 0.0)
        assert len(books._roll.accounts) <= 3 + 1
    assert [each.reserved for each in books.tenant_usage(0.0, 0.0)] == [10, 0]
    books.release(ticket, Cause.FINISHED, 0.0)
    books.configure(config(share("last")), 0.0)
    assert len(books._roll.accounts) == 3
    books.check_integrity()


def test_a_measured_pool_stays_in_force_over_a_new_config() -> None:
    books = open_books(share())
    books.observe(sample(used=0, blocks=501), 0.0)
    books.configure(config(share()), 0.0)
    pool = books.pool_usage(0.0)
    assert pool is not None
    assert pool.usable == 500


def spoil(what: str, name: str, value: object) -> Callable[[Books], None]:
    """Set one figure of the sums, of the one tenant, or of its one request."""

    def do(books: Books) -> None:
        parts = {
            "roll": books._roll,
            "tenant": books._roll.accounts["inference/search"],
            "entry": books._roll.entries[1],
        }
        setattr(parts[what], name, value)

    return do


CORRUPTIONS = [
    pytest.param(spoil("roll", "charged", 7), "the sum of all C is 7 and should be 10", id="sum of C"),
    pytest.param(spoil("roll", "claims", 1), "the sum of all claims", id="sum of claims"),
    pytest.param(spoil("tenant", "charged", 7), "C of inference/search", id="one C"),
    pytest.param(spoil("tenant", "sequences", 7), "the sequences of", id="sequences"),
    pytest.param(spoil("tenant", "live", {}), "the live requests of", id="live"),
    pytest.param(spoil("tenant", "waiting", {7: None}), "the waiting requests of", id="waiting"),
    pytest.param(spoil("entry", "promise", Tokens(0)), "ticket 1", id="a charge"),
]


@pytest.mark.parametrize(("corrupt", "named"), CORRUPTIONS)
def test_books_that_do_not_add_up_are_found_and_the_sum_is_named(
    corrupt: Callable[[Books], object], named: str
) -> None:
    books = open_books(share())
    admit(books, "search", 10)
    books.check_integrity()
    corrupt(books)
    with pytest.raises(LedgerError, match=named):
        books.check_integrity()


@pytest.mark.parametrize(
    ("used", "is_calm"),
    [
        pytest.param(20, True, id="two percent of the pool in use are next to nothing"),
        pytest.param(21, False, id="more is not"),
        pytest.param(None, False, id="an engine that does not say may hold something"),
    ],
)
def test_an_engine_is_calm_that_holds_next_to_nothing(used: int | None, is_calm: bool) -> None:
    books = Books(jitter=lambda: 0.0)
    books.configure(config(share()), 0.0)
    books.observe(sample(used=used), 0.0)
    assert books.is_calm is is_calm


def test_an_engine_that_was_calm_counts_as_that_from_then_on() -> None:
    books = open_books(share())
    books.observe(sample(used=900), 1.0)
    assert books.is_calm


def test_a_reading_before_the_first_config_counts_when_that_comes() -> None:
    books = Books(jitter=lambda: 0.0)
    books.observe(sample(used=20), 0.0)
    before = books.is_calm
    books.configure(config(share()), 1.0)
    assert (before, books.is_calm) == (False, True)


def test_what_the_engine_has_of_us_and_what_was_cut_off_is_counted_in_sequences() -> None:
    books = open_books(share(soft_blocks=400))
    tickets = []
    for copies in (1, 2, 3, 4):
        answer = books.ask(ask("search", 10, copies=copies), 0.0)
        assert isinstance(answer, Admitted)
        tickets.append(answer.ticket)
    books.observe(sample(used=1000), 0.0)
    waiting = books.ask(ask("search", 10), 0.0)
    assert isinstance(waiting, Waiting)
    assert (books.sequences, books.cut, books.begun) == (10, 0, 10)
    for ticket, cause in zip(tickets, (Cause.FINISHED, Cause.CLIENT_GONE, Cause.DRAINED, Cause.ENDED), strict=True):
        books.release(ticket, cause, 0.0)
    books.release(waiting.ticket, Cause.CLIENT_GONE, 0.0)
    assert (books.sequences, books.cut, books.begun) == (0, 2 + 3 + 4, 10)


def test_the_limits_that_answers_tell_are_those_of_the_config_in_force() -> None:
    books = open_books(share(soft_blocks=100, hard_blocks=500))
    told = books.room("inference/search", 0.0)
    assert told is not None
    assert books.room("inference/search", 0.0) == told
    books.configure(config(share(soft_blocks=40, hard_blocks=500)), 1.0)
    assert books.room("inference/search", 1.0) != told
