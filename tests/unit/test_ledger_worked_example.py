"""The worked example of docs/accounting.md, number by number."""

from __future__ import annotations

from typing import Any

from bookkeeping import admit, ask, config, sample, share
from kvquota_api.amounts import Blocks
from kvquota_api.quota import Share
from kvquota_operator.planning.blocks import blocks_of
from kvquota_sidecar.admission.thresholds import draw
from kvquota_sidecar.ledger.books import Books, Cause
from kvquota_sidecar.refusals import Code
from ledger_figures import end_the_victims, pool, refused, running, tenant, waits

USABLE = Blocks(18_431)
KV = config(usable=USABLE).kv
BATCH = share(
    "batch",
    priority=10,
    soft_blocks=blocks_of(Share(tokens=20_000), USABLE, KV),
    hard_blocks=blocks_of(Share(bytes="8Gi"), USABLE, KV),
    max_concurrent_requests=8,
)
NEWCOMER = share("newcomer", priority=50, soft_blocks=4000, hard_blocks=18_431)


def search(hard_percent: int = 60) -> Any:
    soft, hard = (blocks_of(Share(percent=percent), USABLE, KV) for percent in (40, hard_percent))
    return share("search", priority=100, soft_blocks=soft, hard_blocks=hard, max_concurrent_requests=32)


def figures(books: Books, now: float) -> tuple[int, int, int]:
    """ΣC, F, and the pressure in whole percent."""
    told = pool(books, now)
    assert told.usable == USABLE
    return told.reserved, told.free, round(told.pressure_percent)


def code(books: Books, name: str, blocks: int, now: float) -> Code:
    return refused(books, ask(name, blocks), now).code


def test_worked_example() -> None:
    """The four scenes happen one after the other in the same pool."""
    books = Books(jitter=lambda: 0.0)
    the_pool_is_measured(books)
    of_search, of_batch = one_borrows(books)
    another_borrows(books, of_batch)
    a_newcomer_claims_what_is_his(books, of_search, of_batch)
    a_hard_is_lowered(books, of_search)
    books.check_integrity()


def the_pool_is_measured(books: Books) -> None:
    books.configure(config(search(), BATCH, usable=USABLE), 0.0)
    books.observe(sample(used=0, blocks=18_432), 0.0)
    lines = draw(config(search(), BATCH, usable=USABLE), Blocks(18_432))
    assert dict(lines.softs) == {"inference/search": 7372, "inference/batch": 1250}
    assert (search().hard_blocks, BATCH.hard_blocks, lines.soft_sum, lines.reserve) == (11_058, 4096, 8622, 3686)
    assert dict(lines.sheds) == {"inference/search": 92, "inference/batch": 85}


def one_borrows(books: Books) -> tuple[list[int], list[int]]:
    """1: the tickets of search and of batch."""
    of_search = [running(books, "search", 500) for _ in range(22)]
    assert tenant(books, "search").over_soft == 8 * 500
    assert figures(books, 0.0) == (11_000, 7_431, 60)
    of_batch = [running(books, "batch", 500) for _ in range(2)]
    assert tenant(books, "batch").over_soft == 0
    assert figures(books, 0.0) == (12_000, 6_431, 65)
    return of_search, of_batch


def another_borrows(books: Books, of_batch: list[int]) -> None:
    """2."""
    of_batch.append(running(books, "batch", 500))
    assert figures(books, 0.0) == (12_500, 5_931, 68)
    of_batch += [running(books, "batch", 500) for _ in range(5)]
    assert figures(books, 0.0) == (15_000, 3_431, 81)
    assert tenant(books, "batch").over_soft == 6 * 500
    assert code(books, "batch", 500, 0.0) == Code.TENANT_CONCURRENCY_EXCEEDED
    assert code(books, "search", 100, 0.0) == Code.TENANT_KV_QUOTA_EXCEEDED


def a_newcomer_claims_what_is_his(books: Books, of_search: list[int], of_batch: list[int]) -> None:
    """3."""
    books.configure(config(search(), BATCH, NEWCOMER, usable=USABLE, generation=2), 1.0)
    books.observe(sample(used=15_000), 1.0)
    over_soft = [tenant(books, name, 1.0).over_soft for name in ("search", "batch")]
    assert over_soft == [4000, 3000], "softs stay as they are"
    for _ in range(6):
        running(books, "newcomer", 500, 1.0)
    assert figures(books, 1.0)[1] == 431
    for ticket in (*of_search, *of_batch[:-2]):
        books.sent(ticket)
    seventh = waits(books, "newcomer", 500, 1.0)
    (ending,) = books.turn(1.0).endings
    assert (ending.ticket, ending.refusal.code, ending.refusal.status) == (of_batch[-1], Code.KV_EVICTED, 503)
    books.release(ending.ticket, Cause.ENDED, 1.0)
    books.observe(sample(used=18_000), 1.1)
    assert books.turn(1.1).admitted == ()
    books.observe(sample(used=17_500), 1.3)
    (admitted,) = books.turn(1.3).admitted
    assert (admitted.ticket, admitted.reserved) == (seventh, 500)
    assert (end_the_victims(books, 1.3), tenant(books, "newcomer", 1.3).total.guarantee_missed) == ([], 0)


def a_hard_is_lowered(books: Books, of_search: list[int]) -> None:
    """4."""
    books.configure(config(search(50), BATCH, NEWCOMER, usable=USABLE, generation=3), 12.0)
    assert (search(50).hard_blocks, tenant(books, "search", 12.0).reserved) == (9215, 11_000)
    for ticket in of_search[:4]:
        assert code(books, "search", 100, 12.0) == Code.TENANT_KV_QUOTA_EXCEEDED
        books.release(ticket, Cause.FINISHED, 12.0)
    books.observe(sample(used=16_000), 12.1)
    admit(books, "search", 100, 12.1)
    assert end_the_victims(books, 12.1) == []
