"""What one tenant is told of itself, beside many others."""

from bookkeeping import open_books, share, streamed
from kvquota_sidecar.ledger.asking import Admitted, Cause


def test_the_usage_of_one_is_what_the_report_says_of_it() -> None:
    books = open_books(*[share(f"t{each}", soft_blocks=0) for each in range(5)], usable=1000)
    running = books.ask(streamed("inference/t1", (16,), 1, 16), 0.0)
    over = books.ask(streamed("inference/t2", (16,), 1, 16), 0.0)
    assert isinstance(running, Admitted)
    assert isinstance(over, Admitted)
    books.release(over.ticket, Cause.FINISHED, 0.5)
    for told in books.tenant_usage(1.0, 2.0):
        assert books.usage_of(told.id, 1.0, 2.0) == told
    assert books.usage_of("inference/t1", 1.0, 2.0).reserved == running.reserved
