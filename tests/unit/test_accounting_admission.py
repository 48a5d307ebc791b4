"""The rules of docs/accounting.md on admission, one test for each."""

from __future__ import annotations

from typing import Any

import pytest

from bookkeeping import admit, ask, config, open_books, sample, share, streamed
from kvquota_api.pod_config import Ladder, Threshold
from kvquota_api.usage import Rung
from kvquota_operator.planning.guarantees import given_softs, guarantee_limit
from kvquota_sidecar.admission.rung import next_rung
from kvquota_sidecar.admission.thresholds import draw
from kvquota_sidecar.estimate.shape import Shape, read_shape
from kvquota_sidecar.ledger.books import Admitted, Cause, Waiting
from kvquota_sidecar.refusals import Code
from ledger_figures import (
    charged,
    end_the_victims,
    free,
    lent_out,
    outcome,
    pool,
    refused,
    running,
    tenant,
    waits,
)

EVERY_LIMIT: list[Any] = [
    pytest.param({"max_context_tokens": 160}, Code.CONTEXT_LENGTH_EXCEEDED, id="what can never be comes first"),
    pytest.param({"max_concurrent_requests": 1}, Code.TENANT_CONCURRENCY_EXCEEDED, id="then concurrency"),
    pytest.param({}, Code.TENANT_KV_QUOTA_EXCEEDED, id="then hard"),
    pytest.param({"hard_blocks": 1000}, Code.KV_POOL_CONTENDED, id="then room"),
]


@pytest.mark.parametrize(("limits", "code"), EVERY_LIMIT)
def test_order(limits: dict[str, Any], code: Code) -> None:
    books = open_books(share(**{"hard_blocks": 20, **limits}))
    admit(books, "search", 10)
    books.observe(sample(used=990), 0.0)
    before = tenant(books, "search")
    assert outcome(books, "search", 20) == code
    after = tenant(books, "search")
    assert (after.reserved, after.in_flight) == (before.reserved, before.in_flight), "what is refused takes nothing"


def limit(path: str, fields: str) -> int | None:
    body = '{"model": "m", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi"' + fields + "}"
    shape = read_shape(path, body.encode())
    assert isinstance(shape, Shape)
    return shape.output_limit


def test_output_limit() -> None:
    assert limit("/v1/chat/completions", ', "max_tokens": 900, "max_completion_tokens": 5') == 900
    assert limit("/v1/chat/completions", ', "max_tokens": 900') == 900
    assert limit("/v1/completions", ', "max_tokens": 7') == 7
    books = open_books(share(max_context_tokens=640))
    answer = books.ask(streamed("inference/search", (160,), 1, None), 0.0)
    assert isinstance(answer, Admitted)
    assert answer.reserved == 40, "without a limit what the context leaves"


@pytest.mark.parametrize(
    ("limits", "blocks", "code", "setting"),
    [
        ({"max_context_tokens": 640}, 41, Code.CONTEXT_LENGTH_EXCEEDED, "spec.maxContextTokens"),
        ({"hard_blocks": 100}, 101, Code.REQUEST_EXCEEDS_KV_QUOTA, "spec.kv.hard"),
        ({"soft_blocks": 2000}, 1001, Code.REQUEST_EXCEEDS_KV_QUOTA, "spec.memory.kvPool"),
        ({}, 801, Code.REQUEST_EXCEEDS_KV_QUOTA, "guaranteeReservePercent"),
        ({"max_concurrent_requests": 1}, 1, Code.REQUEST_EXCEEDS_KV_QUOTA, "spec.maxConcurrentRequests"),
    ],
)
def test_never(limits: dict[str, Any], blocks: int, code: Code, setting: str) -> None:
    """Also of an idle pool: one that lends no more than that must not say "retry" for ever."""
    books = open_books(share(**limits), share("batch", soft_blocks=400))
    told = refused(books, ask("search", blocks, copies=2 if blocks == 1 else 1))
    assert (told.code, told.retryable, told.retry_after) == (code, False, None)
    assert setting in told.message


def test_hard() -> None:
    books = open_books(share(hard_blocks=100))
    admit(books, "search", 60)
    assert outcome(books, "search", 41) == Code.TENANT_KV_QUOTA_EXCEEDED
    assert outcome(books, "search", 40) is None


def test_hard__what_waits_counts() -> None:
    books, _ = lent_out(guest=400)
    running(books, "guest", 150)
    waits(books, "guest", 250)
    assert charged(books, "guest") == 400
    assert outcome(books, "guest", 1) == Code.KV_POOL_CONTENDED, "no longer guaranteed"


def test_guaranteed() -> None:
    books, _ = lent_out()
    assert outcome(books, "guest", 200) is None
    assert free(books) == 0
    assert isinstance(books.ask(ask("guest", 1), 0.0), Waiting)


def test_guaranteed_waits() -> None:
    books, tickets = lent_out()
    running(books, "guest", 150)
    waiter = waits(books, "guest", 100)
    assert (charged(books, "guest"), tenant(books, "guest").in_flight, pool(books).waiting) == (250, 2, 1)
    assert end_the_victims(books) == [tickets[-1]]
    assert books.turn(0.1).admitted == ()
    books.observe(sample(used=850), 0.2)
    (admitted,) = books.turn(0.2).admitted
    assert (admitted.ticket, admitted.reserved) == (waiter, 100)
    assert (charged(books, "guest", 0.2), tenant(books, "guest", 0.2).in_flight, pool(books, 0.2).waiting) == (
        250,
        2,
        0,
    )
    books.check_integrity()
    books.release(waiter, Cause.FINISHED, 0.3)
    assert charged(books, "guest", 0.3) == 150


def test_guaranteed_waits__in_order_of_arrival() -> None:
    books, _ = lent_out(guest=600)
    running(books, "guest", 150)
    waiting = [waits(books, "guest", blocks) for blocks in (120, 10, 80)]
    end_the_victims(books)
    books.observe(sample(used=890), 0.1)
    assert books.turn(0.1).admitted == ()
    books.observe(sample(used=850), 0.2)
    assert [each.ticket for each in books.turn(0.2).admitted] == waiting[:2]
    books.observe(sample(used=750), 0.3)
    assert [each.ticket for each in books.turn(0.3).admitted] == waiting[2:]


def test_guaranteed_waits__its_client_may_go() -> None:
    books, _ = lent_out()
    running(books, "guest", 150)
    waiter = waits(books, "guest", 100)
    books.release(waiter, Cause.CLIENT_GONE, 0.0)
    assert (charged(books, "guest"), tenant(books, "guest").in_flight, pool(books).waiting) == (150, 1, 0)
    assert end_the_victims(books) == [], "nobody is ended for somebody who has gone"
    assert not books.someone_waits
    books.check_integrity()


def test_guarantee_missed() -> None:
    books, _ = lent_out()
    running(books, "guest", 150)
    waiter = waits(books, "guest", 100)
    end_the_victims(books)
    books.observe(sample(used=950), 1.9)
    assert books.turn(1.9).missed == ()
    books.observe(sample(used=950), 2.1)
    (missed,) = books.turn(2.1).missed
    assert (missed.ticket, missed.refusal.code, missed.refusal.status) == (waiter, Code.KV_POOL_EXHAUSTED, 503)
    counts = tenant(books, "guest", 2.1).total
    assert (counts.guarantee_missed, counts.rejected) == (1, {Code.KV_POOL_EXHAUSTED: 1})
    assert (charged(books, "guest", 2.1), tenant(books, "guest", 2.1).in_flight) == (150, 1)
    books.check_integrity()


def test_evict_how_much() -> None:
    """On the ledger: 800 + 150 + 100 - 1000 = 50, and not the 100 that F lacks with the waiting one."""
    books, tickets = lent_out()
    running(books, "guest", 150)
    waits(books, "guest", 100)
    (ending,) = books.turn(0.0).endings
    assert (ending.ticket, ending.refusal.code, ending.refusal.status) == (tickets[-1], Code.KV_EVICTED, 503)
    assert ending.refusal.retryable
    assert "etry" in ending.refusal.message
    assert tenant(books, "borrower").total.evicted == 1


def test_evict_how_much__what_has_ended_is_on_its_way_and_not_counted_again() -> None:
    books, _ = lent_out()
    running(books, "guest", 150)
    waits(books, "guest", 100)
    assert len(end_the_victims(books)) == 1
    for now in (0.1, 0.2, 0.3):
        books.observe(sample(used=950), now)
        assert books.turn(now).endings == ()


def test_evict_how_much__with_nothing_missing_it_only_waits() -> None:
    books, tickets = lent_out()
    running(books, "guest", 150)
    books.observe(sample(used=950), 0.0)
    books.release(tickets[0], Cause.FINISHED, 0.0)
    waiter = waits(books, "guest", 100)
    assert end_the_victims(books) == []
    books.observe(sample(used=850), 0.1)
    assert [each.ticket for each in books.turn(0.1).admitted] == [waiter]


def test_evict_how_much__what_may_be_of_a_request_that_shows_nothing_yet_is_not_counted_twice() -> None:
    """The engine has begun 150 blocks and others wait in it, so nobody can say whose they are."""
    books, tickets = lent_out()
    admit(books, "guest", 150)
    books.observe(sample(used=950, waiting=1), 0.0)
    assert pool(books).unattributed == 150
    waits(books, "guest", 100)
    assert end_the_victims(books) == [tickets[-1]]


def test_evict_how_much__judged_again_while_it_waits() -> None:
    books, tickets = lent_out()
    running(books, "guest", 150)
    books.observe(sample(used=950), 0.0)
    waits(books, "guest", 100)
    assert end_the_victims(books) == [tickets[7]]
    books.observe(sample(used=850 + 60), 1.5)
    assert end_the_victims(books, 1.5) == [tickets[6]], "60 that are nobody's have come"


def test_evict_how_much__all_that_is_over_soft_where_that_is_not_enough() -> None:
    books = open_books(share("borrower"), share("guest", soft_blocks=400, priority=10))
    mine = running(books, "borrower", 100)
    books.observe(sample(used=800), 0.0)
    assert (pool(books).unattributed, free(books)) == (700, 200)
    running(books, "guest", 150)
    waits(books, "guest", 240)
    assert end_the_victims(books) == [mine]


@pytest.mark.parametrize(
    ("ladder", "other", "most"),
    [
        pytest.param({}, 100, 849, id="others can claim little: shed keeps more free"),
        pytest.param({}, 400, 800, id="others can claim much: the reserve keeps 20 percent free"),
        pytest.param({"guarantee_reserve_percent": 100}, 400, 600, id="a reserve of all lends nothing that is claimed"),
    ],
)
def test_over_soft(ladder: dict[str, Any], other: int, most: int) -> None:
    books = open_books(share(), share("batch", soft_blocks=other), ladder=Ladder(**ladder))
    admit(books, "search", most - 10)
    assert outcome(books, "search", 11) == Code.KV_POOL_CONTENDED
    assert outcome(books, "search", 10) is None
    assert not books.someone_waits


def test_evict_dwell() -> None:
    books, tickets = lent_out()
    running(books, "guest", 150)
    waits(books, "guest", 100)
    end_the_victims(books)
    for ticket in tickets[:7]:
        books.release(ticket, Cause.FINISHED, 0.5)
    books.observe(sample(used=150), 1.0)
    books.turn(1.0)
    told = refused(books, ask("borrower", 1), 1.0)
    assert (told.code, told.retry_after is not None) == (Code.KV_POOL_CONTENDED, True)
    books.observe(sample(used=150), 9.9)
    assert outcome(books, "borrower", 1, 9.9) == Code.KV_POOL_CONTENDED
    assert outcome(books, "guest", 1, 9.9) is None, "what is guaranteed is not held up"
    books.observe(sample(used=150), 10.1)
    assert outcome(books, "borrower", 1, 10.1) is None


@pytest.mark.parametrize(("priority", "most"), [(0, 849), (50, 884), (100, 919)])
def test_shed_threshold(priority: int, most: int) -> None:
    others = (share("low", priority=0), share("high", priority=100))
    books = open_books(share(priority=priority), *others)
    assert outcome(books, "search", most - 400) is None
    assert outcome(books, "search", 401) == Code.KV_POOL_CONTENDED
    assert outcome(books, "search", 400) is None


def test_rung() -> None:
    ladder = Ladder(min_dwell_seconds=10, shed=Threshold(enter_percent=85, exit_percent=80))
    seen: list[Rung] = ["Normal"]
    for lasted, pressure in [(0, 84.9), (0, 85.0), (10, 84.0), (9.9, 10.0), (10, 79.9)]:
        seen.append(next_rung(seen[-1], lasted, pressure, ladder))
    assert seen[1:] == ["Normal", "Shed", "Shed", "Shed", "Normal"]
    books = open_books(share())
    running(books, "search", 800)
    books.observe(sample(used=860), 0.0)
    assert pool(books).rung == "Shed"
    books.observe(sample(used=800), 1.0)
    assert pool(books, 1.0).rung == "Shed"
    assert outcome(books, "search", 49, 1.0) is None, "admission follows the threshold, not the rung"


def test_softs_scaled() -> None:
    lines = draw(config(share(soft_blocks=1000), share("batch", soft_blocks=700), usable=1000), None)
    assert dict(lines.softs) == {"inference/search": 500, "inference/batch": 350}
    asked: Any = {"search": 1000, "batch": 700}
    assert given_softs(asked, {}, guarantee_limit(lines.usable, 85)) == {"search": 500, "batch": 350}
