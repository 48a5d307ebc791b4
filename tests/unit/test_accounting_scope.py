"""The rules of docs/accounting.md on concurrency, scope and Shadow, one test for each."""

from __future__ import annotations

from typing import Any

import pytest

import reconcile_builders as make
from bookkeeping import admit, answered, ask, config, ended, open_books, sample, share, streamed
from distribution_world import World
from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.pod_config import TenantShare
from kvquota_api.quota import Share
from kvquota_operator.planning.demand import Demand
from kvquota_operator.planning.effective import EffectiveQuota
from kvquota_operator.planning.granting import PodRoom, grant_shares
from kvquota_operator.planning.holding import Holding, Holdings
from kvquota_sidecar.ledger.books import Admitted, Cause
from kvquota_sidecar.refusals import Code
from ledger_figures import charged, end_the_victims, lent_out, outcome, pool, refused, running, tenant, waits


def test_concurrency() -> None:
    books = open_books(share(max_concurrent_requests=6))
    first = books.ask(streamed("inference/search", (16, 16), 2, 16), 0.0)
    assert isinstance(first, Admitted)
    assert refused(books, ask("search", 1, copies=3)).code == Code.TENANT_CONCURRENCY_EXCEEDED
    assert isinstance(books.ask(ask("search", 1, copies=2), 0.0), Admitted)
    assert outcome(books, "search", 1) == Code.TENANT_CONCURRENCY_EXCEEDED
    books.release(first.ticket, Cause.FINISHED, 0.0)
    assert outcome(books, "search", 1) is None


def test_concurrency__what_waits_counts() -> None:
    books, _ = lent_out()
    books.configure(config(share("borrower"), share("guest", soft_blocks=400, max_concurrent_requests=2)), 0.0)
    running(books, "guest", 150)
    waits(books, "guest", 100)
    assert outcome(books, "guest", 1) == Code.TENANT_CONCURRENCY_EXCEEDED


def quota(scope: str, **limits: Any) -> EffectiveQuota:
    usual: dict[str, Any] = {
        "tenant": "inference/search", "quota": "search", "priority": 0, "soft": None, "hard": None,
        "max_concurrent_requests": None, "max_context_tokens": None, "enforcement": "Enforce",
    }  # fmt: skip
    return EffectiveQuota(scope=scope, **(usual | limits))  # type: ignore[arg-type]  # the name of a scope


def shares_of(scope: str, pods: int, **limits: Any) -> list[TenantShare]:
    """On each pod of 1000 blocks."""
    wanted = quota(scope, **limits)
    divided = grant_shares([wanted], [PodRoom(Blocks(1000), config(max_model_len=1600).kv)] * pods, 85)
    return [each.grants[wanted.tenant].share for each in divided]


def parts(scope: str, pods: int, **limits: Any) -> list[tuple[int, int, int | None]]:
    """Soft, hard and sequences on each pod."""
    shares = shares_of(scope, pods, **limits)
    return [(each.soft_blocks, each.hard_blocks, each.max_concurrent_requests) for each in shares]


def test_scope() -> None:
    limits = {"soft": Share(percent=10), "hard": Share(percent=40), "max_concurrent_requests": 6}
    assert parts("PerReplica", 2, **limits) == [(100, 400, 6)] * 2
    assert parts("Pool", 2, **limits) == [(100, 400, 3)] * 2, "40 percent of 2000 blocks together"


@pytest.mark.parametrize(
    ("hard", "expected"),
    [
        pytest.param(4800, [(0, 100, None)] * 3, id="equal shares, each of at least one longest request"),
        pytest.param(4799 - 15, [(0, 150, None), (0, 149, None), (0, 0, None)], id="else fewer pods get one"),
        pytest.param(160, [(0, 10, None), (0, 0, None), (0, 0, None)], id="one pod where all is less than one request"),
    ],
)
def test_scope_shares(hard: int, expected: list[tuple[int, int, int | None]]) -> None:
    assert parts("Pool", 3, hard=Share(tokens=hard)) == expected


@pytest.mark.parametrize(
    ("scope", "pods", "expected"),
    [
        pytest.param("Pool", 3, [(300, 4), (300, 4), (300, 4)], id="parts of a whole"),
        pytest.param("Pool", 1, [(300, 4)], id="one pod has the whole"),
        pytest.param("PerReplica", 2, [(None, None)] * 2, id="each pod has a whole of its own"),
    ],
)
def test_scope_shares__each_pod_knows_the_whole(
    scope: str, pods: int, expected: list[tuple[int | None, int | None]]
) -> None:
    shares = shares_of(scope, pods, hard=Share(tokens=4800), max_concurrent_requests=4)
    assert [(each.whole_hard_blocks, each.whole_concurrent_requests) for each in shares] == expected


@pytest.mark.parametrize("hard", [pytest.param(0, id="no part at all"), pytest.param(20, id="a small part")])
def test_scope_shares__too_small_is_retried(hard: int) -> None:
    books = open_books(share(hard_blocks=hard, whole_hard_blocks=100))
    said = refused(books, ask("search", 50))
    assert (said.code, said.status, said.retryable) == (Code.TENANT_KV_QUOTA_EXCEEDED, 429, True)
    assert f"this one has a part of {16 * hard}. Retry, another replica may have more" in said.message
    assert refused(books, ask("search", 101)).code == Code.REQUEST_EXCEEDS_KV_QUOTA


def test_scope_shares__sequences_too_many_for_a_part_are_retried() -> None:
    books = open_books(share(max_concurrent_requests=3, whole_concurrent_requests=6))
    said = refused(books, ask("search", 1, copies=5))
    assert (said.code, said.retryable) == (Code.TENANT_CONCURRENCY_EXCEEDED, True)
    assert "asks for 5 sequences (prompts times n)" in said.message
    assert "part of 3." in said.message
    assert refused(books, ask("search", 1, copies=7)).code == Code.REQUEST_EXCEEDS_KV_QUOTA


def force_deleted(*, may_run: bool) -> tuple[World, list[int]]:
    """A limit of 400 blocks over two pods, of which one has lost its object; and what the other one gets of it."""
    world = World()
    world.quotas["search"] = make.quota("search", scope="Pool", kv={"hard": {"tokens": 6400}}, maxContextTokens=160)
    stays, goes = (world.join(size=1000, mounts=False) for _ in range(2))
    for _ in range(3):
        world.whole_pass()
    world.vanish(goes, may_run=may_run)
    found = []
    for _ in range(2):
        for _ in range(3):
            world.whole_pass()
        share = stays.share("inference/search")
        found.append(0 if share is None else share.hard_blocks)
        world.grace_periods_end()
    return world, found


def test_scope_gone() -> None:
    world, found = force_deleted(may_run=True)
    assert found == [200, 400], "what it may hold for its grace period is given to nobody"
    assert list(world.pods) == ["uid-p1"]


def test_scope_gone__whose_containers_have_ended_is_gone_at_once() -> None:
    assert force_deleted(may_run=False)[1] == [400, 400]


def room(part: int, demand: Demand | None, held: int | None = None) -> PodRoom:
    """A pod of 1000 blocks that has a part, and may hold more than that."""
    held = part if held is None else held
    holding = Holding(Blocks(held), held // 100, Blocks(part), part // 100)
    demands = None if demand is None else {"inference/search": demand}
    return PodRoom(
        Blocks(1000), config(max_model_len=1600).kv, holdings=Holdings({"inference/search": holding}), demands=demands
    )


IDLE, BUSY, REFUSES = Demand(), Demand(Blocks(200), 2), Demand(Blocks(500), 5, refused_blocks=90, refused_sequences=90)


@pytest.mark.parametrize(
    ("rooms", "expected"),
    [
        pytest.param([(500, BUSY), (500, IDLE)], [500, 500], id="who finds room keeps its part"),
        pytest.param([(500, REFUSES), (500, REFUSES)], [500, 500], id="who all ask for more have equal parts"),
        pytest.param([(500, REFUSES), (500, BUSY)], [500, 400], id="others keep twice what they hold"),
        pytest.param([(500, REFUSES), (500, IDLE)], [500, 125], id="or a fourth of an equal part"),
        pytest.param([(500, REFUSES), (500, None)], [500, 500], id="a silent pod keeps what it has"),
        pytest.param([(500, REFUSES), (400, BUSY)], [600, 400], id="who refused gets what is let go of"),
        pytest.param([(500, REFUSES), (400, BUSY, 500)], [500, 400], id="and not before"),
        pytest.param(
            [(500, Demand(Blocks(300), 3, 9)), (500, IDLE)], [500, 500], id="who has room now asks for nothing"
        ),
        pytest.param([(900, Demand(Blocks(800), 8)), (100, REFUSES)], [500, 100], id="nobody has more for ever"),
    ],
)
def test_scope_demand(rooms: list[Any], expected: list[int]) -> None:
    wanted = quota("Pool", hard=Share(tokens=16_000), max_context_tokens=160)
    divided = grant_shares([wanted], [room(*each) for each in rooms], 85)
    assert [each.grants[wanted.tenant].share.hard_blocks for each in divided] == expected


def test_scope_demand__a_guarantee_is_not_lent() -> None:
    wanted = quota("Pool", soft=Share(tokens=4_800), hard=Share(tokens=16_000), max_context_tokens=160)
    divided = grant_shares([wanted], [room(500, REFUSES), room(500, IDLE)], 85)
    shares = [each.grants[wanted.tenant].share for each in divided]
    assert [(each.soft_blocks, each.hard_blocks) for each in shares] == [(300, 500), (300, 300)]


def test_scope_demand__sequences_follow_too() -> None:
    wanted = quota("Pool", max_concurrent_requests=10)
    divided = grant_shares([wanted], [room(500, REFUSES), room(500, IDLE)], 85)
    sequences = [each.grants[wanted.tenant].share.max_concurrent_requests for each in divided]
    assert sequences == [5, 1]


def test_scope_demand__a_pod_that_was_refused_takes_the_place_of_one_that_nobody_uses() -> None:
    wanted = quota("Pool", hard=Share(tokens=1_600))
    used = Demand(admitted=1)
    for first, expected in ((used, [100, 0]), (IDLE, [0, 0])):
        rooms = [room(100, first), room(0, Demand(refused_blocks=1))]
        divided = grant_shares([wanted], rooms, 85)
        assert [each.grants[wanted.tenant].share.hard_blocks for each in divided] == expected
    after = grant_shares([wanted], [room(0, IDLE), room(0, Demand(refused_blocks=1))], 85)
    assert [each.grants[wanted.tenant].share.hard_blocks for each in after] == [0, 100]


def test_shadow() -> None:
    limits: dict[str, Any] = {
        "soft_blocks": 300,
        "hard_blocks": 50,
        "max_concurrent_requests": 1,
        "max_context_tokens": 160,
    }
    books = open_books(share(enforcement="Shadow", **limits), share("batch", soft_blocks=100))
    admit(books, "search", 1)
    assert outcome(books, "search", 10) is None, "concurrency"
    assert outcome(books, "search", 100) is None, "context and hard"
    counts = tenant(books, "search").total
    assert sum(counts.would_reject.values()) == 2
    assert (counts.rejected, tenant(books, "search").over_soft) == ({}, 111)
    assert outcome(books, "search", 901) == Code.REQUEST_EXCEEDS_KV_QUOTA, "what the pool has still holds"
    books.observe(sample(used=900), 0.0)
    assert outcome(books, "search", 50) == Code.KV_POOL_CONTENDED


def test_shadow__keeps_nothing_free_for_it() -> None:
    books = open_books(share(), share("batch", soft_blocks=400, enforcement="Shadow"))
    assert outcome(books, "search", 849) is None


def test_shadow__may_be_a_victim() -> None:
    books, _ = lent_out()
    shadow = share("borrower", soft_blocks=400, enforcement="Shadow")
    books.configure(config(shadow, share("guest", soft_blocks=400, priority=10)), 0.0)
    running(books, "guest", 150)
    waits(books, "guest", 100)
    assert len(end_the_victims(books)) == 1
    assert charged(books, "borrower") == 700


def test_shadow_pool() -> None:
    limited = share(soft_blocks=100, hard_blocks=50, max_concurrent_requests=1, max_context_tokens=160)
    books = open_books(limited, share("batch"), enforcement="Shadow")
    answered(books, 16)
    running(books, "batch", 900)
    books.observe(sample(used=1000), 0.0)
    long = books.ask(streamed("inference/search", (160,), 1, 16_000), 0.0)
    assert isinstance(long, Admitted)
    assert outcome(books, "search", 60) is None
    books.grow(long.ticket, Tokens(8000), 0.0)
    assert ended(books) == []
    assert (books.someone_waits, pool(books).waiting) == (False, 0)
    assert tenant(books, "search").total.rejected == {}
    assert sum(tenant(books, "search").total.would_reject.values()) >= 2
