"""The free room F: what the gauge says, what the books say, and what neither explains."""

from __future__ import annotations

from typing import Any

import pytest

from bookkeeping import admit, answered, asking, config, open_books, sample, share, streamed
from kvquota_api.amounts import Blocks, Tokens
from kvquota_sidecar.ledger.books import Admitted, Books, Cause
from kvquota_sidecar.ledger.gauge import Gauge


def free(books: Books, now: float) -> int:
    pool = books.pool_usage(now)
    assert pool is not None
    return pool.free


def unattributed(books: Books, now: float = 0.0) -> int:
    pool = books.pool_usage(now)
    assert pool is not None
    return pool.unattributed


def usable(books: Books) -> int:
    pool = books.pool_usage(0.0)
    assert pool is not None
    return pool.usable


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        pytest.param(None, 1000, id="before the engine says: what the plan leaves without the null block"),
        pytest.param(901, 900, id="the engine came up smaller: what it has without the null block"),
        pytest.param(5001, 1000, id="the engine came up larger: what the plan leaves"),
        pytest.param(0, 0, id="an engine without blocks has none"),
    ],
)
def test_usable_is_the_smaller_of_plan_and_measured(measured: int | None, expected: int) -> None:
    books = open_books(share())
    books.observe(sample(used=0, blocks=measured), 0.0)
    assert usable(books) == expected


def test_a_reading_without_the_pools_size_keeps_the_last_one() -> None:
    books = open_books(share())
    books.observe(sample(used=0, blocks=901), 0.0)
    books.observe(sample(used=0), 1.0)
    assert usable(books) == 900


def test_what_is_promised_counts_beside_what_the_gauge_shows() -> None:
    books = open_books(share())
    admit(books, "search", 100)
    books.observe(sample(used=300, waiting=1), 0.0)
    assert free(books, 0.0) == 1000 - 300 - 100


def test_what_is_admitted_after_a_reading_counts_beside_it() -> None:
    books = open_books(share())
    books.observe(sample(used=300), 0.0)
    admit(books, "search", 100)
    assert free(books, 0.0) == 1000 - 300 - 100


def test_what_is_admitted_counts_beside_what_is_still_being_freed() -> None:
    books = open_books(share())
    ticket = admit(books, "search", 100, output=160)
    books.grow(ticket, Tokens(160), 0.0)
    books.release(ticket, Cause.FINISHED, 1.0)
    books.observe(sample(used=100), 1.1)
    ticket = admit(books, "search", 50, now=1.2)
    assert free(books, 1.2) == 1000 - 100 - 50
    books.grow(ticket, Tokens(1), 1.2)
    books.settle(ticket, Tokens(800 + 160), Tokens(1), 1.2)
    assert free(books, 1.2) == 1000 - 100 - 61


def test_what_came_and_finished_since_the_reading_counts_as_what_it_filled() -> None:
    """A client that asks for much, gets little, and asks again at once."""
    books = open_books(share(soft_blocks=1000))
    for asked in range(1, 51):
        ticket = finished(books, estimate=160, prompt=80, produced=16, at=asked / 100)
        assert ticket == asked
    assert free(books, 0.5) == 1000 - 50 * (5 + 1)
    books.observe(sample(used=0), 0.6)
    assert free(books, 0.6) == 1000


def test_what_came_before_the_reading_gives_room_at_the_next_one() -> None:
    books = open_books(share(), now=0.0)
    ticket = admit(books, "search", 100, now=0.1, output=1440)
    books.observe(sample(used=0), 0.2)
    books.settle(ticket, Tokens(160), Tokens(16), 0.3)
    books.release(ticket, Cause.FINISHED, 0.3)
    assert free(books, 0.3) == 1000 - 100


@pytest.mark.parametrize("cause", [each for each in Cause if each is not Cause.FINISHED])
def test_what_was_broken_off_may_have_filled_all_that_it_was_promised(cause: Cause) -> None:
    books = open_books(share())
    ticket = admit(books, "search", 100, now=0.1, output=1440)
    books.grow(ticket, Tokens(16), 0.2)
    books.release(ticket, cause, 0.3)
    assert free(books, 0.3) == 1000 - 100


def test_what_finished_and_never_said_how_long_it_was_may_have_filled_it_all_too() -> None:
    books = open_books(share())
    books.release(admit(books, "search", 100, now=0.1), Cause.FINISHED, 0.2)
    assert free(books, 0.2) == 1000 - 100


def finished(books: Books, *, estimate: int, prompt: int, produced: int, at: float) -> int:
    """The ticket of a request of at most 100 blocks that has come to its end at once."""
    answer = books.ask(asking("inference/search", (Tokens(estimate),), 1, Tokens(1600 - estimate)), at)
    assert isinstance(answer, Admitted), answer
    books.settle(answer.ticket, Tokens(prompt), Tokens(produced), at)
    books.release(answer.ticket, Cause.FINISHED, at)
    return answer.ticket


def test_growth_past_the_promise_counts_beside_the_reading() -> None:
    books = open_books(share())
    ticket = grown(books, produced=1)
    books.observe(sample(used=300), 0.0)
    before = free(books, 0.0)
    books.grow(ticket, Tokens(1 + 20 * 16), 0.0)
    assert free(books, 0.0) == before - 20


def grown(books: Books, produced: int) -> int:
    """A request of which one block of output was expected, and whose first output was seen."""
    answered(books, 16)
    ticket = admit_long(books)
    books.grow(ticket, Tokens(produced), 0.0)
    return ticket


def admit_long(books: Books) -> int:
    answer = books.ask(streamed("inference/search", (Tokens(160),), 1, Tokens(800)), 0.0)
    assert isinstance(answer, Admitted)
    return answer.ticket


def test_what_is_filled_is_in_the_gauge_and_not_counted_again() -> None:
    books = open_books(share())
    ticket = admit(books, "search", 100, output=160)
    books.grow(ticket, Tokens(80), 0.0)
    books.observe(sample(used=95), 0.0)
    assert free(books, 0.0) == 1000 - 95 - 5


def test_after_a_preemption_the_books_count_since_they_say_more_than_the_gauge() -> None:
    books = open_books(share())
    ticket = admit(books, "search", 100, output=160)
    books.grow(ticket, Tokens(160), 0.0)
    books.observe(sample(used=0), 0.0)
    assert free(books, 0.0) == 1000 - 100


def test_ended_work_gives_room_at_the_next_reading() -> None:
    books = open_books(share())
    ticket = admit(books, "search", 100, output=160)
    books.grow(ticket, Tokens(160), 0.0)
    books.observe(sample(used=100), 0.0)
    books.release(ticket, Cause.FINISHED, 0.1)
    assert free(books, 0.2) == 900
    books.observe(sample(used=100), 0.3)
    assert free(books, 0.3) == 900
    books.observe(sample(used=0), 0.5)
    assert free(books, 0.5) == 1000


def test_a_request_that_shows_nothing_fills_what_the_gauge_shows_once_the_engine_lets_nothing_wait() -> None:
    books = open_books(share())
    admit(books, "search", 100, output=160)
    books.observe(sample(used=60), 1.0)
    assert free(books, 1.0) == 1000 - 60 - 100  # admitted since the reading before: it may not have started
    books.observe(sample(used=60), 2.0)
    assert free(books, 2.0) == 1000 - 100
    assert unattributed(books, 2.0) == 0


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        pytest.param(1, 1000 - 60 - 100, id="while the engine lets requests wait it may not have started"),
        pytest.param(None, 1000 - 60 - 100, id="an engine that does not say may let it wait"),
        pytest.param(0, 1000 - 100, id="nothing waits, so it has started"),
    ],
)
def test_a_request_has_started_only_when_nothing_waits(waiting: int | None, expected: int) -> None:
    books = open_books(share())
    admit(books, "search", 100)
    for now in (1.0, 2.0):
        books.observe(sample(used=60, waiting=waiting), now)
    assert free(books, 2.0) == expected


def test_a_request_that_shows_nothing_explains_no_more_than_its_charge() -> None:
    books = open_books(share())
    admit(books, "search", 100)
    for now in (1.0, 2.0):
        books.observe(sample(used=160), now)
    assert unattributed(books, 2.0) == 60
    assert free(books, 2.0) == 1000 - 160


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        pytest.param(2.0, 1000 - 300 - 100, id="two sampling periods old is fresh"),
        pytest.param(2.001, 1000 - 100 - 300, id="older is stale: charges and the unattributed"),
    ],
)
def test_a_gauge_is_stale_after_two_sampling_periods(age: float, expected: int) -> None:
    books = open_books(share())
    books.observe(sample(used=300), 0.0)
    admit(books, "search", 100)
    assert free(books, age) == expected


def test_a_stale_gauge_gives_no_room_back_before_the_freeing_delay_is_over() -> None:
    books = open_books(share())
    ticket = admit(books, "search", 100, output=160)
    books.grow(ticket, Tokens(160), 0.0)
    books.observe(sample(used=None), 10.0)
    books.release(ticket, Cause.FINISHED, 10.0)
    assert [free(books, now) for now in (10.0, 10.9, 11.1)] == [900, 900, 1000]


def test_the_freeing_delay_is_measured() -> None:
    books = open_books(share())
    ticket = admit(books, "search", 100, output=160)
    books.grow(ticket, Tokens(160), 0.0)
    books.release(ticket, Cause.FINISHED, 1.0)
    for now, used in ((2.0, 100), (3.0, 100), (4.0, 0)):
        books.observe(sample(used=used), now)
    ticket = admit(books, "search", 100, output=160, now=4.0)
    books.grow(ticket, Tokens(160), 4.0)
    books.release(ticket, Cause.FINISHED, 10.0)
    assert [free(books, now) for now in (12.9, 13.1)] == [900, 1000]


def test_what_ended_at_nearly_the_same_time_is_kept_as_one_and_for_five_seconds_at_most() -> None:
    gauge = Gauge(1.0)
    for step in range(20_000):
        gauge.ended(1, step * 0.001)
    assert len(gauge._freeing) <= 5.0 / 0.01 + 1
    assert sum(blocks for _, blocks in gauge._freeing) == pytest.approx(5_000, abs=20)
    assert gauge.free(Blocks(10_000), 0, 19.999) == pytest.approx(10_000 - 1_000, abs=20)


def test_a_gauge_that_was_never_read_is_missing_and_the_books_decide_alone() -> None:
    books = Books(jitter=lambda: 0.0)
    books.configure(config(share()), 0.0)
    admit(books, "search", 100)
    assert free(books, 0.0) == 900


def test_a_reading_that_does_not_say_what_is_used_leaves_the_gauge_to_grow_stale() -> None:
    books = open_books(share())
    books.observe(sample(used=300), 0.0)
    books.observe(sample(used=None), 2.0)
    assert free(books, 2.0) == 700
    books.observe(sample(used=None), 3.0)
    admit(books, "search", 100, now=3.0)
    assert free(books, 3.0) == 600


def test_after_a_restart_of_the_sidecar_what_the_engine_holds_is_nobodys_and_decays_with_the_gauge() -> None:
    books = open_books(share(soft_blocks=100, hard_blocks=100))
    seen: list[Any] = []
    for now, used in ((1.0, 300), (2.0, 120), (3.0, 0)):
        books.observe(sample(used=used), now)
        seen.append((unattributed(books, now), free(books, now), books.tenant_usage(now, 0.0)[0].reserved))
    assert seen == [(300, 700, 0), (120, 880, 0), (0, 1000, 0)]


def test_what_is_unattributed_counts_beside_new_promises() -> None:
    books = open_books(share())
    books.observe(sample(used=300), 0.0)
    ticket = admit(books, "search", 100, output=160)
    books.observe(sample(used=300, waiting=1), 1.0)
    assert (unattributed(books, 1.0), free(books, 1.0)) == (300, 600)
    books.grow(ticket, Tokens(16), 1.0)
    books.observe(sample(used=391), 2.0)
    assert (unattributed(books, 2.0), free(books, 2.0)) == (300, 600)


def test_blocks_of_ended_work_are_not_unattributed_within_the_freeing_delay() -> None:
    books = open_books(share())
    ticket = admit(books, "search", 100, output=160)
    books.grow(ticket, Tokens(160), 0.0)
    books.release(ticket, Cause.FINISHED, 1.0)
    books.observe(sample(used=100), 1.5)
    assert unattributed(books, 1.5) == 0
    books.observe(sample(used=100), 2.5)
    assert unattributed(books, 2.5) == 100
