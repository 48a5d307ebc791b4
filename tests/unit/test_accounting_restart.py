"""The rules of docs/accounting.md on restarts, one test for each."""

from __future__ import annotations

from bookkeeping import answered, config, open_books, sample, share, streamed
from kvquota_sidecar.ledger.books import Admitted, Books, Cause
from kvquota_sidecar.settings import Settings
from ledger_figures import charged, end_the_victims, free, lent_out, pool, running, tenant, waits


def test_restart_sidecar() -> None:
    """In front of an engine that still works for clients of before."""
    books = Books(jitter=lambda: 0.0)
    books.configure(config(share(soft_blocks=400)), 0.0)
    books.observe(sample(used=300), 0.0)
    assert (pool(books).unattributed, free(books), charged(books, "search")) == (300, 700, 0)
    calm = []
    for used in (21, 20):
        books.observe(sample(used=used), 2.0)
        calm.append(books.is_calm)
    assert calm == [False, True], "2 percent of it"
    assert (pool(books, 2.0).unattributed, free(books, 2.0)) == (20, 980)
    assert Settings().settle_seconds == 5.0, "whatever its engine does"


def test_restart_engine() -> None:
    books = open_books(share(soft_blocks=400))
    answered(books, 16)
    dead = running(books, "search", 300)
    books.observe(sample(used=300), 1.0)
    books.observe(sample(used=0, started=2.0), 2.0)
    assert (charged(books, "search", 2.0), tenant(books, "search", 2.0).in_flight, free(books, 2.0)) == (0, 0, 1000)
    answer = books.ask(streamed("inference/search", (160,), 1, 800), 2.0)
    assert isinstance(answer, Admitted)
    assert answer.reserved == 11, "what was learnt stays"
    books.release(dead, Cause.ENGINE_FAILED, 2.1)
    assert charged(books, "search", 2.1) == 11
    books.check_integrity()


def test_restart_engine__what_waits_goes_on_waiting() -> None:
    books, _ = lent_out()
    running(books, "guest", 150)
    books.observe(sample(used=950), 0.1)
    waiter = waits(books, "guest", 100)
    end_the_victims(books, 0.1)
    books.observe(sample(used=0, started=2.0), 0.5)
    assert [each.ticket for each in books.turn(0.5).admitted] == [waiter]
    assert (charged(books, "guest", 0.5), charged(books, "borrower", 0.5)) == (100, 0)
    books.check_integrity()
