"""Who may take more: the order of the checks, hard, guaranteed, over-soft, and what can never be."""

from __future__ import annotations

from typing import Any

import pytest

from bookkeeping import admit, ask, asking, config, open_books, sample, share
from kvquota_api.amounts import Tokens
from kvquota_api.pod_config import Ladder, Threshold
from kvquota_sidecar.ledger.books import Admitted, Ask, Books, Cause, Refusal, Waiting
from kvquota_sidecar.refusals import Code


def outcome(books: Books, name: str, blocks: int, **how: Any) -> Code | None:
    """The code of the refusal; None: admitted."""
    answer = books.ask(ask(name, blocks, **how), 0.0)
    return answer.code if isinstance(answer, Refusal) else None


def refusal(books: Books, wanted: Ask) -> Refusal:
    answer = books.ask(wanted, 0.0)
    assert isinstance(answer, Refusal), answer
    return answer


def test_hard_admits_up_to_itself_and_refuses_one_block_more() -> None:
    books = open_books(share(soft_blocks=100, hard_blocks=100))
    admit(books, "search", 60)
    assert outcome(books, "search", 41) == Code.TENANT_KV_QUOTA_EXCEEDED
    assert outcome(books, "search", 40) is None
    assert outcome(books, "search", 1) == Code.TENANT_KV_QUOTA_EXCEEDED


def test_the_refusal_by_hard_names_quota_use_and_demand_in_tokens() -> None:
    books = open_books(share(soft_blocks=100, hard_blocks=100))
    admit(books, "search", 60)
    told = refusal(books, ask("search", 41)).message
    assert told == (
        "Tenant inference/search holds 960 tokens of KV cache, its hard quota is 1,600, and this request asks for "
        "656. Shorten the input by about 16 tokens, or wait for your running request to end."
    )


def test_a_guaranteed_request_is_admitted_up_to_the_last_free_block() -> None:
    """Pressure plays no part in it."""
    books = open_books(share(soft_blocks=100), share("batch"), usable=1000)
    books.observe(sample(used=950), 0.0)
    waiting = books.ask(ask("search", 51), 0.0)
    assert isinstance(waiting, Waiting)
    books.release(waiting.ticket, Cause.CLIENT_GONE, 0.0)
    admit(books, "search", 50)


def test_a_request_is_guaranteed_when_charge_and_reservation_fit_soft_together() -> None:
    books = open_books(share(soft_blocks=100, priority=5), share("batch", soft_blocks=500), usable=1000)
    admit(books, "search", 90)
    books.observe(sample(used=880), 0.0)
    assert outcome(books, "search", 11) == Code.KV_POOL_CONTENDED
    assert outcome(books, "search", 10) is None


@pytest.mark.parametrize(
    ("other_soft", "other_holds", "fits"),
    [
        pytest.param(100, 0, 100, id="what others may still claim stays free, where that is less than the reserve"),
        pytest.param(100, 60, 100, id="what they hold of it already need not stay free"),
        pytest.param(100, 160, 100, id="a tenant beyond its soft claims nothing more"),
        pytest.param(500, 0, 200, id="never more than guaranteeReservePercent stays free"),
    ],
)
def test_over_soft_work_leaves_the_smaller_of_claims_and_reserve(other_soft: int, other_holds: int, fits: int) -> None:
    ladder = Ladder(
        shed=Threshold(enter_percent=100, exit_percent=80), evict=Threshold(enter_percent=100, exit_percent=86)
    )
    books = open_books(share(), share("batch", soft_blocks=other_soft), usable=1000, ladder=ladder)
    if other_holds:
        admit(books, "batch", other_holds)
    claimed = min(200, max(0, other_soft - other_holds))
    room = 1000 - other_holds - claimed
    admit(books, "search", room - 10)
    assert outcome(books, "search", 11) == Code.KV_POOL_CONTENDED
    at_all = 10 if claimed else 9  # without a claim the threshold of 100 % still keeps the last block
    assert outcome(books, "search", at_all) is None


def test_over_soft_work_stays_below_its_shed_threshold() -> None:
    books = open_books(share(), usable=1000)
    admit(books, "search", 800)
    assert outcome(books, "search", 50) == Code.KV_POOL_CONTENDED
    assert outcome(books, "search", 49) is None


@pytest.mark.parametrize(
    ("priority", "most"),
    [
        pytest.param(0, 849, id="the lowest priority is shed at shed.enterPercent"),
        pytest.param(50, 884, id="one half way between is shed half way between"),
        pytest.param(100, 919, id="the highest priority is shed at evict.enterPercent"),
    ],
)
def test_the_shed_threshold_is_linear_in_priority(priority: int, most: int) -> None:
    books = open_books(share(priority=priority), share("low", priority=0), share("high", priority=100), usable=1000)
    admit(books, "search", 800)
    assert outcome(books, "search", most - 800 + 1) == Code.KV_POOL_CONTENDED
    assert outcome(books, "search", most - 800) is None


def test_softs_beyond_shed_are_scaled_down_in_proportion() -> None:
    books = open_books(share(soft_blocks=1000), share("batch", soft_blocks=700), usable=1000)
    softs = {name: books.room(f"inference/{name}", 0.0) for name in ("search", "batch")}
    assert {name: room and room.soft for name, room in softs.items()} == {"search": 500, "batch": 350}


def test_concurrency_counts_sequences() -> None:
    books = open_books(share(max_concurrent_requests=6))
    assert outcome(books, "search", 1, copies=4) is None
    assert outcome(books, "search", 1, copies=3) == Code.TENANT_CONCURRENCY_EXCEEDED
    assert outcome(books, "search", 1, copies=2) is None
    assert outcome(books, "search", 1) == Code.TENANT_CONCURRENCY_EXCEEDED


def test_concurrency_is_asked_before_hard() -> None:
    books = open_books(share(max_concurrent_requests=1, hard_blocks=10))
    admit(books, "search", 10)
    assert outcome(books, "search", 10) == Code.TENANT_CONCURRENCY_EXCEEDED


NEVER = [
    pytest.param(
        {"max_context_tokens": 640},
        asking("inference/search", (Tokens(600),), 1, Tokens(41)),
        Code.CONTEXT_LENGTH_EXCEEDED,
        ["641 tokens", "600 of input and 41 of output", "TenantQuota search (spec.maxContextTokens) allows 640"],
        id="longer than the tenant's context",
    ),
    pytest.param(
        {"max_context_tokens": 640},
        asking("inference/search", (Tokens(640),), 1, None),
        Code.CONTEXT_LENGTH_EXCEEDED,
        ["641 tokens", "spec.maxContextTokens"],
        id="a prompt that leaves no room for an answer",
    ),
    pytest.param(
        {},
        asking("inference/search", (Tokens(5), Tokens(2000)), 1, Tokens(49)),
        Code.CONTEXT_LENGTH_EXCEEDED,
        ["2,049 tokens", "ModelPool llama-8b (spec.model.maxModelLen) allows 2,048"],
        id="any of several prompts is longer than the model's context",
    ),
    pytest.param(
        {"hard_blocks": 100},
        asking("inference/search", (Tokens(800),), 1, Tokens(801)),
        Code.REQUEST_EXCEEDS_KV_QUOTA,
        ["needs 1,616 tokens", "TenantQuota search (spec.kv.hard) allows 1,600", "lower max_tokens by about 16 tokens"],
        id="larger than the tenant's whole hard at its limit",
    ),
    pytest.param(
        {"hard_blocks": 100},
        asking("inference/search", (Tokens(800),), 1, None),
        Code.REQUEST_EXCEEDS_KV_QUOTA,
        ["needs 2,048 tokens", "It sets no max_tokens"],
        id="larger than the tenant's whole hard because it sets no limit",
    ),
    pytest.param(
        {"soft_blocks": 200},
        asking("inference/search", (Tokens(2000), Tokens(2000)), 1, Tokens(16)),
        Code.REQUEST_EXCEEDS_KV_QUOTA,
        ["needs 4,032 tokens", "ModelPool llama-8b (spec.memory.kvPool) has 3,200", "Split it"],
        id="larger than the pool",
    ),
    pytest.param(
        {},
        asking("inference/search", (Tokens(2000), Tokens(704)), 1, Tokens(16)),
        Code.REQUEST_EXCEEDS_KV_QUOTA,
        ["needs 2,736 tokens", "guaranteed share of TenantQuota search (spec.kv.soft) is 0", "shed.enterPercent"],
        id="beyond soft, and past the shed threshold of an idle pool",
    ),
    pytest.param(
        {"max_concurrent_requests": 3},
        asking("inference/search", (Tokens(16), Tokens(16)), 2, Tokens(16)),
        Code.REQUEST_EXCEEDS_KV_QUOTA,
        ["has 4 sequences", "TenantQuota search (spec.maxConcurrentRequests) allows 3"],
        id="more sequences than may ever run",
    ),
]


@pytest.mark.parametrize(("limits", "wanted", "code", "named"), NEVER)
def test_what_can_never_fit_is_refused_for_good_and_names_the_setting(
    limits: dict[str, Any], wanted: Ask, code: Code, named: list[str]
) -> None:
    books = open_books(share(**limits), usable=200, max_model_len=2048)
    told = refusal(books, wanted)
    assert (told.code, told.status, told.retryable, told.retry_after) == (code, 400, False, None)
    assert [part for part in named if part not in told.message] == []


def test_an_idle_pool_lends_nothing_that_would_touch_the_others_reserve() -> None:
    books = open_books(share(), share("batch", soft_blocks=150), usable=200, max_model_len=10_000)
    assert outcome(books, "search", 161) == Code.REQUEST_EXCEEDS_KV_QUOTA
    assert outcome(books, "search", 160) is None


def test_what_an_idle_pool_would_lend_can_be_retried_on_a_busy_one() -> None:
    books = open_books(share(), share("batch", soft_blocks=100), usable=200, max_model_len=10_000)
    books.observe(sample(used=150), 0.0)
    assert outcome(books, "search", 100) == Code.KV_POOL_CONTENDED


def test_never_is_judged_on_the_limit_and_not_on_the_promise() -> None:
    books = open_books(share(hard_blocks=100))
    short = admit(books, "search", 2)
    books.grow(short, Tokens(1), 0.0)
    books.release(short, Cause.FINISHED, 0.0)
    assert outcome(books, "search", 101, output=1600) == Code.REQUEST_EXCEEDS_KV_QUOTA


def test_a_pool_of_no_blocks_admits_nothing() -> None:
    books = open_books(share())
    books.observe(sample(used=0, blocks=1), 0.0)
    assert outcome(books, "search", 1) == Code.REQUEST_EXCEEDS_KV_QUOTA
    pool = books.pool_usage(0.0)
    assert pool is not None
    assert (pool.usable, pool.pressure_percent) == (0, 100.0)


def test_without_a_config_nothing_runs() -> None:
    books = Books(jitter=lambda: 0.0)
    books.observe(sample(used=7), 0.0)
    assert refusal(books, ask("search", 1)).code == Code.NOT_CONFIGURED
    assert (books.pool_usage(0.0), books.room("inference/search", 0.0), books.tenant_usage(0.0, 0.0)) == (
        None,
        None,
        (),
    )


def test_a_tenant_that_no_config_names_is_refused() -> None:
    books = open_books(share())
    told = refusal(books, ask("nobody", 1))
    assert (told.code, told.status) == (Code.UNKNOWN_TENANT, 401)
    assert books.room("inference/nobody", 0.0) is None


def test_another_tenants_charge_does_not_count_against_hard() -> None:
    books = open_books(share(soft_blocks=50, hard_blocks=50), share("batch", soft_blocks=50, hard_blocks=50))
    admit(books, "search", 50)
    assert isinstance(books.ask(ask("batch", 50), 0.0), Admitted)


def test_a_larger_config_takes_force_with_the_next_request() -> None:
    books = open_books(share(soft_blocks=50, hard_blocks=50))
    admit(books, "search", 50)
    assert outcome(books, "search", 10) == Code.TENANT_KV_QUOTA_EXCEEDED
    books.configure(config(share(soft_blocks=50, hard_blocks=60)), 0.0)
    assert outcome(books, "search", 10) is None
