"""Several data-parallel ranks: one pool each, where the engine takes the rank with the request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bookkeeping import ask, config, ended, share
from kvquota_api.amounts import Blocks, Tokens
from kvquota_sidecar.ledger.asking import RankSample
from kvquota_sidecar.ledger.books import Admitted, Answer, Books, Cause, EngineSample, Refusal, Waiting
from kvquota_sidecar.refusals import Code


def pod(*shares: Any, ranks: int = 2, engine_type: str = "vLLM", **changes: Any) -> Books:
    """Books of an engine with so many ranks of 500 blocks each."""
    plain = config(*shares, usable=500, **changes)
    books = Books(jitter=lambda: 0.0)
    kv = msgspec.structs.replace(plain.kv, ranks=ranks)
    books.configure(msgspec.structs.replace(plain, kv=kv, engine_type=engine_type), 0.0)
    return books


def reading(*used: int | None, numbers: tuple[int, ...] = (), waiting: int | None = 0) -> EngineSample:
    """So many blocks in use on each rank, which are numbered from 0 unless told otherwise."""
    ranks = [
        RankSample(number, None if each is None else Blocks(each), 0, waiting)
        for number, each in zip(numbers or range(len(used)), used, strict=True)
    ]
    total = Blocks(sum(each or 0 for each in used))
    return EngineSample(None, Tokens(16), total, 0, waiting, 1.0, tuple(ranks))


def placed(answer: Answer) -> int | None:
    assert isinstance(answer, Admitted), answer
    return answer.rank


def pool(books: Books, now: float = 0.0) -> tuple[int, int, float]:
    """U, F and the pressure."""
    told = books.pool_usage(now)
    assert told is not None
    return told.usable, told.free, told.pressure_percent


def test_a_request_goes_to_the_rank_with_the_most_room_and_pressure_is_that_of_the_fullest() -> None:
    books = pod(share())
    assert [placed(books.ask(ask("search", 100), 0.0)) for _ in range(3)] == [0, 1, 0]
    assert pool(books) == (1000, 700, 40.0)
    books.check_integrity()


def test_the_gauges_of_the_ranks_are_told_apart() -> None:
    books = pod(share())
    books.observe(reading(300, 100), 0.0)
    assert pool(books) == (1000, 600, 60.0)
    assert placed(books.ask(ask("search", 100), 0.0)) == 1
    told = books.pool_usage(0.0)
    assert told is not None
    assert (told.unattributed, told.gauge_is_fresh) == (400, True)


def test_a_rank_is_named_by_the_number_that_the_engine_gives_it() -> None:
    books = pod(share())
    books.observe(reading(300, 100, numbers=(4, 5)), 0.0)
    assert placed(books.ask(ask("search", 100), 0.0)) == 5


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(reading(), id="it tells nothing apart"),
        pytest.param(reading(10, 10, 10), id="it has another number of ranks than planned"),
        pytest.param(reading(None, None), id="it does not say what is in use"),
    ],
)
def test_where_ranks_are_not_told_apart_the_ledger_decides(said: EngineSample) -> None:
    books = pod(share())
    books.observe(said, 0.0)
    assert placed(books.ask(ask("search", 100), 0.0)) == 0
    assert placed(books.ask(ask("search", 100), 0.0)) == 1
    told = books.pool_usage(0.0)
    assert told is not None
    assert (told.free, told.gauge_is_fresh) == (800, False)


def test_what_fits_on_no_rank_is_refused_for_good_though_the_pod_has_as_much() -> None:
    books = pod(share(soft_blocks=800))
    told = books.ask(ask("search", 501), 0.0)
    assert isinstance(told, Refusal)
    assert (told.code, told.retryable) == (Code.REQUEST_EXCEEDS_KV_QUOTA, False)
    assert "each rank of ModelPool llama-8b (spec.memory.kvPool) has 8,000" in told.message


def test_soft_and_hard_are_of_all_ranks_together() -> None:
    books = pod(share(soft_blocks=850, hard_blocks=850))
    assert [placed(books.ask(ask("search", 400), 0.0)) for _ in range(2)] == [0, 1]
    told = books.ask(ask("search", 51), 0.0)
    assert isinstance(told, Refusal)
    assert told.code == Code.TENANT_KV_QUOTA_EXCEEDED


def test_only_work_on_the_rank_that_is_short_is_ended() -> None:
    books = pod(share(soft_blocks=450, priority=9), share("batch"))
    tickets = []
    for _ in range(8):
        answer = books.ask(ask("batch", 100), 0.0)
        assert isinstance(answer, Admitted)
        books.grow(answer.ticket, Tokens(1), 0.0)
        tickets.append((answer.ticket, answer.rank))
    waiting = books.ask(ask("search", 300), 0.0)
    assert isinstance(waiting, Waiting)
    on_first = [ticket for ticket, rank in tickets if rank == 0]
    assert ended(books) == [on_first[-1], on_first[-2]]
    books.check_integrity()
    books.observe(reading(200, 400), 0.1)
    (admitted,) = books.turn(0.1).admitted
    assert (admitted.ticket, admitted.rank) == (waiting.ticket, 0)
    books.check_integrity()


def test_where_all_on_a_rank_is_not_enough_the_other_ranks_are_left_alone() -> None:
    books = pod(share(soft_blocks=500, priority=9), share("batch"))
    first = books.ask(ask("search", 250), 0.0)
    assert placed(first) == 0
    others = [books.ask(ask("batch", 100), 0.0) for _ in range(6)]
    on_first = [each.ticket for each in others if isinstance(each, Admitted) and each.rank == 0]
    books.observe(reading(500, 500), 0.0)
    assert isinstance(books.ask(ask("search", 250), 0.0), Waiting)
    assert sorted(ended(books)) == on_first


def test_an_engine_that_places_requests_itself_is_one_pool_of_all_its_ranks() -> None:
    books = pod(share(soft_blocks=800), engine_type="SGLang")
    books.observe(reading(300, 100), 0.0)
    assert pool(books) == (1000, 600, 40.0)
    assert placed(books.ask(ask("search", 600), 0.0)) is None


def test_what_ended_and_what_started_is_known_of_each_rank() -> None:
    books = pod(share(soft_blocks=800))
    for now in (0.0, 1.0):
        answer = books.ask(ask("search", 100), now)
        assert isinstance(answer, Admitted)
    books.observe(reading(100, 100), 2.0)
    books.observe(reading(100, 100), 3.0)
    assert pool(books, 3.0) == (1000, 800, 20.0)
    books.release(2, Cause.FINISHED, 3.0)
    books.observe(reading(100, 0), 4.0)
    assert pool(books, 4.0) == (1000, 900, 20.0)
    books.check_integrity()


def test_a_later_config_does_not_change_the_number_of_ranks() -> None:
    books = pod(share())
    books.ask(ask("search", 100), 0.0)
    books.ask(ask("search", 100), 0.0)
    later = config(share(), usable=500, generation=2)
    kv = msgspec.structs.replace(later.kv, ranks=4)
    books.configure(msgspec.structs.replace(later, kv=kv), 1.0)
    assert placed(books.ask(ask("search", 100), 1.0)) == 0
    books.check_integrity()


def test_a_restart_ends_what_ran_on_every_rank() -> None:
    books = pod(share())
    for _ in range(2):
        books.ask(ask("search", 100), 0.0)
    books.observe(reading(100, 100), 1.0)
    books.observe(replace(reading(0, 0), started_at=2.0), 2.0)
    assert books.tenant_usage(2.0, 0.0)[0].reserved == 0
    assert books.sequences == 2
    books.check_integrity()
