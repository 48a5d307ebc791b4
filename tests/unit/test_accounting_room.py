"""The rules of docs/accounting.md on the free room F, one test for each."""

from __future__ import annotations

import pytest

from bookkeeping import PERIOD, admit, answered, ask, open_books, sample, share, streamed
from kvquota_api.amounts import Tokens
from kvquota_sidecar.engines.watching import HURRY_SECONDS
from kvquota_sidecar.ledger.books import Admitted, Cause, Waiting
from kvquota_sidecar.refusals import Code
from ledger_figures import end_the_victims, free, lent_out, outcome, pool, running, waits


def test_free_fresh() -> None:
    books = open_books(share())
    running(books, "search", 100)
    books.observe(sample(used=150), 1.0)
    assert free(books, 1.0) == 1000 - 150, "50 are nobody's"
    admit(books, "search", 40, 1.0)
    assert free(books, 1.0) == 1000 - 150 - 40, "promised, and not in the gauge"


def test_free_fresh__what_shows_nothing_is_filled_once_the_engine_lets_nothing_wait() -> None:
    books = open_books(share())
    admit(books, "search", 100, 0.5)
    books.observe(sample(used=100, waiting=1), 1.0)
    assert free(books, 1.0) == 1000 - 200, "nobody can say whose those in use are"
    books.observe(sample(used=100, waiting=0), 1.1)
    assert free(books, 1.1) == 1000 - 100


def test_free_fresh__what_has_grown_past_its_promise_since_the_sample() -> None:
    books = open_books(share())
    answered(books, 16)
    answer = books.ask(streamed("inference/search", (160,), 1, 800), 0.0)
    assert isinstance(answer, Admitted)
    books.grow(answer.ticket, Tokens(1), 0.0)
    books.observe(sample(used=11), 1.0)
    books.grow(answer.ticket, Tokens(16 + 5 * 16), 1.5)
    assert free(books, 1.5) == 1000 - 11 - 5


def test_free_waiting() -> None:
    """A later one does not overtake: what the first one asks is not free, though the second would fit."""
    books, _ = lent_out()
    running(books, "guest", 150)
    assert free(books) == 50
    first = waits(books, "guest", 100)
    assert free(books) == 50 - 100
    second = waits(books, "guest", 50)
    assert free(books) == 50 - 100 - 50
    end_the_victims(books)
    books.observe(sample(used=860), 0.1)
    assert [each.ticket for each in books.turn(0.1).admitted] == [first]
    books.observe(sample(used=850), 0.2)
    assert [each.ticket for each in books.turn(0.2).admitted] == [second]


def test_free_ended() -> None:
    books = open_books(share())
    ticket = running(books, "search", 300)
    books.observe(sample(used=300), 1.0)
    books.release(ticket, Cause.FINISHED, 1.2)
    assert free(books, 1.5) == 700, "the gauge has not shown it yet"
    books.observe(sample(used=300), 1.6)
    assert free(books, 1.6) == 700, "the engine still holds it"
    books.observe(sample(used=0), 2.0)
    assert free(books, 2.0) == 1000


def test_free_ended__what_came_and_finished_since_the_sample_counts_as_what_it_filled() -> None:
    """One short answer with a large limit after the other: all admitted by an idle pool."""
    books = open_books(share())
    for _ in range(10):
        ticket = admit(books, "search", 600, 0.5, output=590 * 16)
        books.grow(ticket, Tokens(16), 0.5)
        books.release(ticket, Cause.FINISHED, 0.5)
    assert free(books, 0.5) == 1000 - 10 * 11


def test_free_hurried() -> None:
    """60 blocks come free 100 ms after somebody began to wait for them: no miss, if only somebody looks."""
    books, tickets = lent_out()
    running(books, "guest", 150)
    books.observe(sample(used=950), 0.0)
    assert pool(books).waiting == 0
    waiter = waits(books, "guest", 60)
    assert books.someone_waits
    end_the_victims(books)
    for ticket in tickets[:1]:
        books.release(ticket, Cause.FINISHED, 0.0)
    books.observe(sample(used=890), 0.1)
    assert [each.ticket for each in books.turn(0.1).admitted] == [waiter]
    assert pool(books, 0.1).waiting == 0
    assert HURRY_SECONDS <= 0.1


def test_free_stale() -> None:
    """40 were sent while 80 were still held."""
    books = open_books(share(soft_blocks=85), usable=100)
    old = running(books, "search", 80)
    books.observe(sample(used=80), 0.0)
    late = 2 * PERIOD + 0.1
    books.release(old, Cause.FINISHED, late)
    assert not pool(books, late).gauge_is_fresh
    assert free(books, late) == 20
    assert isinstance(books.ask(ask("search", 40), late), Waiting)
    assert free(books, late + 1.0) == 100 - 40, "after the freeing delay"


def test_free_forgotten() -> None:
    books = open_books(share())
    books.observe(sample(used=300), 0.0)
    assert (free(books, 30.0), pool(books, 30.0).unattributed) == (700, 300)
    assert (free(books, 30.1), pool(books, 30.1).unattributed) == (1000, 0)


@pytest.mark.parametrize(("used", "percent"), [(0, 0.0), (250, 25.0), (1000, 100.0)])
def test_pressure(used: int, percent: float) -> None:
    books = open_books(share(soft_blocks=10))
    books.observe(sample(used=used), 0.0)
    room = books.room("inference/search", 0.0)
    assert room is not None
    assert (room.pressure_percent, pool(books).pressure_percent) == (percent, percent)
    assert outcome(books, "search", 100) == (None if used <= 250 else Code.KV_POOL_CONTENDED)
