"""Guaranteed requests that wait for room: their turn, their end, and what may happen to them meanwhile."""

from __future__ import annotations

import pytest

from bookkeeping import admit, answered, ask, config, ended, open_books, sample, share, streamed
from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.pod_config import Ladder
from kvquota_sidecar.ledger.books import Admitted, Books, Cause, Ending, Refusal, Turn, Waiting
from kvquota_sidecar.refusals import Code


def full(*shares: object, **changes: object) -> Books:
    """A pool of 1000 blocks that somebody unknown fills."""
    books = open_books(*(shares or (share(soft_blocks=400),)), **changes)  # type: ignore[arg-type]  # changes by name
    books.observe(sample(used=1000), 0.0)
    return books


def waits(books: Books, name: str, blocks: int, now: float = 0.0) -> int:
    answer = books.ask(ask(name, blocks), now)
    assert isinstance(answer, Waiting), answer
    return answer.ticket


def usage(books: Books, place: int = 0) -> tuple[int, int, int, int]:
    """C, sequences, admitted and missed of a tenant."""
    told = books.tenant_usage(0.0, 0.0)[place]
    return told.reserved, told.in_flight, told.total.admitted, told.total.guarantee_missed


def test_it_is_charged_and_counted_from_the_first_moment_and_admitted_when_room_comes() -> None:
    books = full()
    ticket = waits(books, "search", 100)
    assert (books.restless, books.someone_waits, usage(books)) == (True, True, (100, 1, 0, 0))
    assert books.turn(0.0) == Turn()
    assert (books.restless, books.turn(0.5)) == (False, Turn())
    books.observe(sample(used=900), 1.0)
    assert books.restless
    assert books.turn(1.0) == Turn(admitted=(Admitted(ticket, Blocks(100), None, protected=True),))
    assert (books.restless, books.someone_waits, usage(books)) == (False, False, (100, 1, 1, 0))
    books.check_integrity()
    books.release(ticket, Cause.FINISHED, 1.0)
    assert usage(books) == (0, 0, 1, 0)


def test_it_is_told_what_was_missing_when_its_time_is_over() -> None:
    books = full()
    ticket = waits(books, "search", 100)
    books.observe(sample(used=960), 1.0)
    assert books.turn(1.999) == Turn()
    (missed,) = books.turn(2.0).missed
    assert (missed.ticket, missed.refusal.code, missed.refusal.status) == (ticket, Code.KV_POOL_EXHAUSTED, 503)
    assert missed.refusal.message == (
        "The request is within the guaranteed share of tenant inference/search and asks for 1,600 tokens of KV cache, "
        "but the pool had room for 640 and no more came free in time. Shorten the input by about 960 tokens, or retry."
    )
    assert usage(books) == (0, 0, 0, 1)
    assert books.tenant_usage(0.0, 0.0)[0].total.rejected == {"kv_pool_exhausted": 1}
    assert books.turn(2.0) == Turn()
    books.check_integrity()


def test_where_nobody_may_wait_it_misses_in_the_same_turn_and_nobody_is_ended_for_it() -> None:
    books = open_books(share(soft_blocks=400), share("batch"), usable=1000, ladder=Ladder(eviction_wait_seconds=0.0))
    admit(books, "batch", 800)
    ticket = waits(books, "search", 300)
    turn = books.turn(0.0)
    assert ([each.ticket for each in turn.missed], turn.endings, turn.admitted) == ([ticket], (), ())


@pytest.mark.parametrize(
    ("wait", "told"),
    [
        pytest.param(0.5, [0.5, 0.6], id="a shorter wait holds for those that wait already"),
        pytest.param(5.0, [5.0, 5.1], id="and so does a longer one"),
    ],
)
def test_a_changed_wait_holds_at_once_and_nobody_waits_for_those_before(wait: float, told: list[float]) -> None:
    books = full()
    tickets = [waits(books, "search", 10, now) for now in (0.0, 0.1)]
    books.configure(config(share(soft_blocks=400), ladder=Ladder(eviction_wait_seconds=wait)), 0.2)
    seen = [[each.ticket for each in books.turn(now).missed] for now in (0.3, *told)]
    assert seen == [[], tickets[:1], tickets[1:]]


def test_the_next_one_gets_the_room_of_one_that_has_missed() -> None:
    books = full()
    first = waits(books, "search", 200)
    second = waits(books, "search", 100, 1.0)
    books.observe(sample(used=880), 1.9)
    turn = books.turn(2.0)
    assert ([each.ticket for each in turn.missed], [each.ticket for each in turn.admitted]) == ([first], [second])


def test_nobody_overtakes_one_that_waits() -> None:
    books = full(share(soft_blocks=400), share("other", soft_blocks=400))
    waits(books, "search", 300)
    books.observe(sample(used=750), 0.5)
    later = waits(books, "other", 100, 0.5)
    books.observe(sample(used=600), 0.9)
    assert [each.reserved for each in books.turn(0.9).admitted] == [300, 100]
    books.release(later, Cause.FINISHED, 1.0)


@pytest.mark.parametrize("by", ["release", "settle"])
def test_what_somebody_else_gives_back_stirs_the_books(by: str) -> None:
    books = open_books(share(soft_blocks=800), usable=1000)
    books.observe(sample(used=300), 0.0)
    other = admit(books, "search", 500, 0.1, output=1600)
    waits(books, "search", 300, 0.2)
    books.turn(0.2)
    assert not books.restless
    if by == "release":
        books.release(other, Cause.FINISHED, 0.3)
    else:
        books.settle(other, Tokens(16), Tokens(1), 0.3)
    assert books.restless


def test_one_that_has_waited_long_has_not_started_in_the_engine_when_it_is_admitted() -> None:
    books = full()
    waits(books, "search", 100)
    for now, used in ((0.5, 1000), (1.0, 1000), (1.5, 900)):
        books.observe(sample(used=used), now)
    assert len(books.turn(1.5).admitted) == 1
    books.observe(sample(used=900), 1.6)
    pool = books.pool_usage(1.6)
    assert pool is not None
    assert (pool.free, pool.unattributed) == (0, 900)


def test_its_client_may_go_and_nothing_of_it_is_left() -> None:
    books = full()
    ticket = waits(books, "search", 100)
    books.release(ticket, Cause.CLIENT_GONE, 0.1)
    assert (usage(books), books.someone_waits, books.cut) == ((0, 0, 0, 0), False, 0)
    books.check_integrity()


def test_a_pool_that_goes_into_shadow_lets_everybody_in() -> None:
    books = full()
    ticket = waits(books, "search", 100)
    books.configure(config(share(soft_blocks=400), enforcement="Shadow"), 0.1)
    assert [each.ticket for each in books.turn(0.1).admitted] == [ticket]


def test_a_tenant_that_grows_to_its_hard_starts_nothing_new_so_what_waits_is_turned_away_first() -> None:
    books = open_books(share(soft_blocks=60, hard_blocks=60), share("batch"))
    answered(books, 16)
    first = books.ask(streamed("inference/search", (160,), 1, 320), 0.0)
    assert isinstance(first, Admitted)
    books.observe(sample(used=1000), 0.0)
    older, younger = waits(books, "search", 20), waits(books, "search", 20)
    books.turn(0.0)
    books.grow(first.ticket, Tokens(160 + 16), 0.1)
    (missed,) = books.turn(0.1).missed
    assert (missed.ticket, missed.refusal.code) == (younger, Code.TENANT_KV_QUOTA_EXCEEDED)
    told = books.ask(ask("search", 1), 0.1)
    assert isinstance(told, Refusal)
    assert "nothing new starts until something has ended" in told.message
    total = books.tenant_usage(0.1, 0.0)[0].total
    assert (total.guarantee_missed, total.ended) == (0, 0)
    assert total.rejected == {"tenant_kv_quota_exceeded": 2}
    books.release(older, Cause.CLIENT_GONE, 0.1)
    books.check_integrity()


def test_an_ending_is_not_told_of_a_request_that_was_released_meanwhile() -> None:
    books = open_books(share(hard_blocks=30))
    ticket = admit(books, "search", 10)
    books.settle(ticket, Tokens(800), Tokens(16), 0.0)
    assert books.restless
    books.release(ticket, Cause.CLIENT_GONE, 0.0)
    assert books.turn(0.0) == Turn()


def test_before_the_first_config_there_is_nothing_to_do() -> None:
    assert Books(jitter=lambda: 0.0).turn(0.0) == Turn()


def borrowed(**changes: object) -> tuple[Books, list[int]]:
    """A pool of 1000 blocks of which batch has borrowed 800, and search none of its 400."""
    books = open_books(share(soft_blocks=400), share("batch"), **changes)  # type: ignore[arg-type]  # changes by name
    tickets = [admit(books, "batch", 100) for _ in range(8)]
    books.observe(sample(used=800, waiting=1), 0.0)
    return books, tickets


def test_one_that_is_ended_for_others_is_told_its_share_and_when_to_come_back() -> None:
    books, tickets = borrowed()
    waits(books, "search", 250)
    (ending,) = books.turn(0.0).endings
    assert ending == Ending(tickets[-1], ending.refusal)
    told = ending.refusal
    assert (told.code, told.status, told.retry_after) == (Code.KV_EVICTED, 503, 10.0)
    assert told.message == (
        "This request was ended to make room in the KV cache: it held 1,600 tokens beyond the guaranteed share of "
        "tenant inference/batch (0 tokens). Retry later, or stay within that share."
    )
    total = books.tenant_usage(0.0, 0.0)[1].total
    assert (total.evicted, total.ended) == (1, 0)
    books.check_integrity()


def test_over_soft_work_is_told_how_long_it_has_to_stay_away_after_an_eviction() -> None:
    books, _ = borrowed()
    waits(books, "search", 250)
    books.turn(0.0)
    told = books.ask(ask("batch", 10), 4.0)
    assert isinstance(told, Refusal)
    assert (told.code, told.retry_after) == (Code.KV_POOL_CONTENDED, 6.0)
    assert "had to end such work just now" in told.message


def test_growth_without_room_ends_over_soft_work_and_maybe_the_one_that_grows() -> None:
    books = open_books(share(), share("batch", priority=5), usable=1000)
    answered(books, 16)
    grower = books.ask(streamed("inference/search", (1600,), 1, 14_000), 0.0)
    assert isinstance(grower, Admitted)
    admit(books, "batch", 700)
    for now in (0.1, 0.2):
        books.observe(sample(used=800), now)
    books.grow(grower.ticket, Tokens(16 * 199), 0.2)
    assert ended(books, 0.2) == []
    books.grow(grower.ticket, Tokens(16 * 210), 0.2)
    assert books.restless
    assert ended(books, 0.2) == [grower.ticket]


def test_who_would_have_been_ended_is_counted_once_in_a_pool_in_shadow() -> None:
    books = open_books(share(soft_blocks=400), share("batch"), enforcement="Shadow")
    for _ in range(8):
        admit(books, "batch", 100)
    admit(books, "search", 300)
    for now in (1.0, 2.0):
        books.observe(sample(used=1000, waiting=1), now)
    assert books.turn(2.0) == Turn()
    assert dict(books.tenant_usage(2.0, 0.0)[1].total.would_reject) == {"kv_evicted": 1}
