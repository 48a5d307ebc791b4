"""A stream that nobody reads any more goes on in the engine: it is charged what it may become."""

from bookkeeping import BLOCK, answered, ask, open_books, share
from kvquota_api.amounts import Tokens
from kvquota_sidecar.ledger.books import Admitted, Books, Cause


def reserved(books: Books) -> int:
    books.check_integrity()
    return sum(each.reserved for each in books.tenant_usage(0.0, 0.0))


def test_an_output_that_nobody_sees_is_charged_to_its_limit_once() -> None:
    books = open_books(share())
    answered(books, produced=BLOCK)
    stream = books.ask(ask("search", 20, output=10 * BLOCK), 0.0)
    assert isinstance(stream, Admitted)
    assert stream.reserved == 11  # what its answers had so far
    books.unseen(stream.ticket, 0.0)
    books.unseen(stream.ticket, 0.0)
    assert reserved(books) == 20
    books.grow(stream.ticket, Tokens(9 * BLOCK), 0.0)
    assert reserved(books) == 20
    books.release(stream.ticket, Cause.CLIENT_GONE, 0.0)
    assert reserved(books) == 0


def test_what_it_may_become_is_held_against_hard_as_growth_is() -> None:
    books = open_books(share(hard_blocks=30))
    answered(books, produced=BLOCK)
    older, younger = (books.ask(ask("search", 20, output=10 * BLOCK), 0.0) for _ in range(2))
    assert isinstance(older, Admitted)
    assert isinstance(younger, Admitted)
    books.unseen(older.ticket, 0.0)
    assert [each.ticket for each in books.turn(0.0).endings] == [younger.ticket]
    books.unseen(younger.ticket, 0.0)  # it is ended already: nothing more is charged to it
    assert reserved(books) == 20
