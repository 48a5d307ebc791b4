"""What the books say of themselves: usage of pool and tenant, room, rung, counts, and waits."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from bookkeeping import admit, ask, config, open_books, sample, share
from kvquota_api import usage
from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.memory.worth import Worth
from kvquota_sidecar.ledger.books import Books, Cause, Refusal, Room
from kvquota_sidecar.ledger.drain import Drain
from kvquota_sidecar.ledger.tally import BUCKETS, Tally
from kvquota_sidecar.refusals import Code, refuse
from kvquota_sidecar.refusals.headers import allowance_of


def test_the_usage_of_a_tenant() -> None:
    books = open_books(share(soft_blocks=15, hard_blocks=40, max_concurrent_requests=3))
    first = admit(books, "search", 10, output=32)
    admit(books, "search", 10, output=32)
    books.grow(first, Tokens(1), 0.0)
    books.ask(ask("search", 30), 100.0)
    (told,) = books.tenant_usage(130.0, 5000.0)
    counts = usage.Counts(admitted=2, rejected={"tenant_kv_quota_exceeded": 1})
    assert told == usage.TenantUsage(
        id="inference/search",
        reserved=20,
        used=9,
        over_soft=10,
        in_flight=2,
        total=counts,
        recent=counts,
        last_refusal=usage.Refusal(
            code="tenant_kv_quota_exceeded",
            message="Tenant inference/search holds 320 tokens of KV cache, its hard quota is 640, and this request "
            "asks for 480. Shorten the input by about 160 tokens, or wait for one of your 2 running requests to end.",
            at=4970.0,
        ),
    )


def test_the_usage_of_the_pool() -> None:
    books = open_books(share(), share("batch"))
    books.grow(admit(books, "search", 100, output=160), Tokens(1), 0.0)
    admit(books, "batch", 50)
    books.observe(sample(used=120, waiting=1), 0.0)
    assert books.pool_usage(0.0) == usage.PoolUsage(
        usable=1000, free=1000 - 120 - 9 - 50, reserved=150, used=91, unattributed=29, pressure_percent=17.9
    )


def test_over_soft_is_all_of_each_request_after_the_protected_ones() -> None:
    books = open_books(share(soft_blocks=25))
    first, *_ = [admit(books, "search", blocks) for blocks in (10, 20, 5)]
    assert books.tenant_usage(0.0, 0.0)[0].over_soft == 25  # the third fits beside the first, but came after the second
    books.release(first, Cause.FINISHED, 0.0)
    assert books.tenant_usage(0.0, 0.0)[0].over_soft == 0


def test_protection_follows_todays_soft() -> None:
    books = open_books(share(soft_blocks=25))
    admit(books, "search", 20)
    books.configure(config(share(soft_blocks=19)), 0.0)
    assert books.tenant_usage(0.0, 0.0)[0].over_soft == 20


def test_the_room_on_a_hybrid_is_told_in_tokens_of_requests_not_of_blocks() -> None:
    groups = (LayerGroup("Full", 16), LayerGroup("State", 16, fixed_blocks=10))
    books = Books(lambda: 0.0)
    plain = config(share(soft_blocks=0, hard_blocks=220), usable=1_000, max_model_len=1_600)
    books.configure(msgspec.structs.replace(plain, kv=msgspec.structs.replace(plain.kv, groups=groups)), 0.0)
    room = books.room("inference/search", 0.0)
    assert room is not None
    assert (room.tokens(room.hard), room.tokens(Blocks(110))) == (3_200, 1_600)


def test_the_room_of_a_tenant() -> None:
    books = open_books(share(soft_blocks=15, hard_blocks=40, max_concurrent_requests=3), usable=100)
    admit(books, "search", 10)
    room = books.room("inference/search", 0.0)
    assert room == Room(
        allowance_of(Blocks(15), Blocks(40), Worth((LayerGroup("Full", 16),), Tokens(32_768)), 3),
        reserved=Blocks(10),
        in_flight=1,
        rung="Normal",
        pressure_percent=10.0,
    )


def test_a_room_follows_the_config_and_what_is_measured() -> None:
    books = open_books(share(soft_blocks=15, hard_blocks=40), usable=100)
    rooms = [books.room("inference/search", 0.0)]
    books.configure(config(share(soft_blocks=10, hard_blocks=80), usable=100), 0.0)
    rooms.append(books.room("inference/search", 0.0))
    books.observe(sample(used=0, blocks=61), 0.0)
    rooms.append(books.room("inference/search", 0.0))
    assert [room and (room.soft, room.hard) for room in rooms] == [(15, 40), (10, 80), (10, 60)]


def test_a_hard_without_limit_is_the_pool() -> None:
    books = open_books(share(), usable=100)
    room = books.room("inference/search", 0.0)
    assert room is not None
    assert (room.hard, room.max_concurrent) == (100, None)


def test_a_tenant_that_left_still_has_a_room_and_nothing_in_it() -> None:
    books = open_books(share(soft_blocks=10))
    admit(books, "search", 10)
    books.configure(config(share("batch")), 0.0)
    room = books.room("inference/search", 0.0)
    assert room is not None
    assert (room.reserved, room.soft, room.hard, room.max_concurrent) == (10, 0, 0, None)


def test_the_rung_is_entered_at_once_and_left_below_its_exit_after_the_dwell_time() -> None:
    books = open_books(share())
    seen = []
    for now, used in (
        (1.0, 840),
        (2.0, 850),
        (3.0, 790),
        (11.9, 790),
        (12.0, 790),
        (13.0, 920),
        (23.0, 850),
        (24.0, 0),
    ):
        books.observe(sample(used=used), now)
        pool = books.pool_usage(now)
        assert pool is not None
        seen.append(pool.rung)
    assert seen == ["Normal", "Shed", "Shed", "Shed", "Normal", "Evict", "Shed", "Shed"]


def test_a_rung_that_nobody_looked_at_was_entered_all_the_same() -> None:
    books = open_books(share())
    books.observe(sample(used=860), 1.0)
    books.observe(sample(used=0), 2.0)
    assert rung_of(books) == "Shed"
    books = open_books(share())
    admit(books, "search", 100)
    books.configure(config(share(), usable=110), 1.0)
    books.configure(config(share(), usable=1000), 2.0)
    assert rung_of(books) == "Shed"


def rung_of(books: Books) -> str:
    pool = books.pool_usage(2.0)
    assert pool is not None
    return pool.rung


def test_a_refusal_decided_elsewhere_is_counted() -> None:
    books = open_books(share())
    books.count_refusal("inference/search", refuse(Code.DRAINING), 0.0)
    told = books.tenant_usage(0.0, 0.0)[0]
    assert told.total.rejected == {"draining": 1}
    assert told.last_refusal is not None
    assert told.last_refusal.code == "draining"


def test_a_million_unknown_names_are_not_kept() -> None:
    books = open_books(share())
    for name in range(1000):
        books.count_refusal(f"inference/{name}", refuse(Code.UNKNOWN_TENANT), 0.0)
        books.ask(ask(f"{name}", 1), 0.0)
    assert [each.id for each in books.tenant_usage(0.0, 0.0)] == ["inference/search"]
    assert len(books._roll.accounts) == 1


def test_recent_is_the_last_ten_minutes_and_total_everything() -> None:
    tally = Tally()
    for minute in range(30):
        tally.count("admitted", minute * 60.0)
    tally.count("evicted", 29 * 60.0)
    now = 29 * 60.0 + 59
    assert (tally.recent(now).admitted, tally.total().admitted) == (10, 30)
    assert (tally.recent(now + 1).admitted, tally.recent(now + 1).evicted) == (9, 1)
    assert tally.recent(now + 600) == usage.Counts()
    assert len(tally._recent) == BUCKETS


def test_counts_are_ordered_by_code() -> None:
    tally = Tally()
    for code in (Code.NOT_CONFIGURED, Code.DRAINING, Code.KV_EVICTED):
        tally.refused("rejected", refuse(code), 0.0)
    assert list(tally.total().rejected) == ["draining", "kv_evicted", "not_configured"]


def test_without_a_drain_the_wait_is_five_seconds() -> None:
    assert Drain().wait(100, 0.0) == 5.0


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        pytest.param(20, pytest.approx(2.0, rel=0.1), id="ten a second give twenty in two"),
        pytest.param(1, 1.0, id="never less than one second"),
        pytest.param(800, 60.0, id="never more than a minute"),
        pytest.param(1000, 10.0, id="where too little is known for so much, ten seconds"),
    ],
)
def test_the_wait_follows_the_rate_of_release(amount: int, expected: float) -> None:
    drain = Drain()
    for second in range(600):
        drain.add(10, float(second))
    assert drain.wait(amount, 600.0) == expected


def test_a_rate_that_has_died_down_to_nothing_counts_as_unknown_no_longer_than_a_float_lasts() -> None:
    drain = Drain()
    drain.add(10, 0.0)
    assert drain.wait(1, 60.0) > drain.wait(1, 1.0)
    assert drain.wait(1, 1e9) == 5.0


def test_retries_are_spread_by_a_quarter() -> None:
    waits = []
    for jitter in (0.0, 1.0):
        books = Books(jitter=partial(float, jitter))
        books.configure(config(share(hard_blocks=10)), 0.0)
        admit(books, "search", 10)
        answer = books.ask(ask("search", 1), 0.0)
        assert isinstance(answer, Refusal)
        waits.append(answer.retry_after)
    assert waits == [5.0, 6.25]


def test_no_wait_is_longer_than_a_minute_whatever_the_spread() -> None:
    books = Books(jitter=lambda: 1.0)
    books.configure(config(share(hard_blocks=500)), 0.0)
    for second in range(0, 100, 5):
        books.release(admit(books, "search", 20, float(second)), Cause.FINISHED, float(second))
    admit(books, "search", 500, 100.0)
    answer = books.ask(ask("search", 300), 100.0)
    assert isinstance(answer, Refusal)
    assert answer.retry_after == 60.0


@pytest.mark.parametrize(
    ("given_back", "at"),
    [
        pytest.param([5, 5, 5], 1.0, id="a little, often"),
        pytest.param([200], 1.0, id="much, once"),
        pytest.param([200, 200], 61.0, id="much, long ago"),
    ],
)
def test_where_little_is_known_nobody_waits_long(given_back: list[int], at: float) -> None:
    """With the rate of so little a client of 200 blocks would wait for up to a minute."""
    drain = Drain()
    for amount in given_back:
        drain.add(amount, 0.0)
    assert drain.wait(200, at) == 10.0


def test_a_rate_that_is_known_is_believed() -> None:
    drain = Drain()
    for second in (0.0, 5.0):
        drain.add(100, second)
    assert 20 < drain.wait(200, 5.0) < 30


def test_the_wait_for_a_sequence_and_the_wait_for_blocks_follow_their_own_drains() -> None:
    books = open_books(share(max_concurrent_requests=2, hard_blocks=1000))
    for second in range(100):
        books.release(admit(books, "search", 1, now=float(second)), Cause.FINISHED, float(second))
    admit(books, "search", 10, now=100.0)
    admit(books, "search", 10, now=100.0)
    answer = books.ask(ask("search", 800), 100.0)
    assert isinstance(answer, Refusal)
    assert answer.code == Code.TENANT_CONCURRENCY_EXCEEDED
    assert answer.retry_after == pytest.approx(1.0, rel=0.1)
