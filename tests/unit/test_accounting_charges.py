"""The rules of docs/accounting.md on what a tenant is charged, one test for each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bookkeeping import admit, answered, ask, asking, open_books, sample, share, streamed
from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.chain import CHUNK_BYTES, chain
from kvquota_sidecar.estimate.ratio import Ratios
from kvquota_sidecar.estimate.shape import Shape, read_shape
from kvquota_sidecar.ledger.books import Admitted, Ask, AskedPrompt, Books, Cause, Close, Waiting
from kvquota_sidecar.records import replace
from kvquota_sidecar.refusals import Code
from ledger_figures import charged, estimated, free, outcome, plan, pool, running

TENANT = "inference/search"
CHUNK_BLOCKS = 8  # of 128 tokens: four bytes a token


def sharing(**changes: Any) -> Books:
    return open_books(share(), share("batch"), kv=plan(shares_prefixes=True), **changes)


def reserved(books: Books, wanted: Ask) -> int:
    answer = books.ask(wanted, 0.0)
    assert isinstance(answer, Admitted), answer
    return answer.reserved


def text(name: str, chunks: int) -> bytes:
    return (name.encode() * CHUNK_BYTES)[:CHUNK_BYTES] * chunks


def prompt(body: bytes) -> AskedPrompt:
    tokens = Tokens(len(body) * CHUNK_BLOCKS * 16 // CHUNK_BYTES)
    return AskedPrompt(tokens, tokens, chain(b"seed", body), len(body))


def worded(name: str, *bodies: bytes) -> Ask:
    """A request whose prompts are these texts, and one block of output."""
    return Ask(f"inference/{name}", tuple(prompt(each) for each in bodies), 1, Tokens(16), "Seen")


def ticket(books: Books, wanted: Ask) -> int:
    answer = books.ask(wanted, 0.0)
    assert isinstance(answer, Admitted), answer
    return answer.ticket


def test_charge_distinct() -> None:
    books = sharing()
    system = text("system", 6)
    assert reserved(books, worded("search", system + text("a", 2))) == 8 * CHUNK_BLOCKS + 1
    assert reserved(books, worded("search", system + text("b", 2))) == 2 * CHUNK_BLOCKS + 1
    assert reserved(books, worded("search", text("c", 1) + system)) == 7 * CHUNK_BLOCKS + 1, "from the first byte on"
    assert charged(books, "search") == 17 * CHUNK_BLOCKS + 3
    books.check_integrity()


def test_charge_distinct__when_the_oldest_goes_the_next_one_pays() -> None:
    books = sharing()
    system = text("system", 6)
    first = ticket(books, worded("search", system))
    second = ticket(books, worded("search", system + text("b", 1)))
    books.release(first, Cause.FINISHED, 0.0)
    assert charged(books, "search") == 7 * CHUNK_BLOCKS + 1
    books.check_integrity()
    books.release(second, Cause.FINISHED, 0.0)
    assert charged(books, "search") == 0


def test_charge_distinct__prompts_of_one_list_share_too() -> None:
    books = sharing()
    system = text("system", 6)
    both = worded("search", system + text("a", 1), system + text("b", 1))
    assert reserved(books, both) == (7 + 1) * CHUNK_BLOCKS + 2
    books.check_integrity()


def test_charge_live_only() -> None:
    books = sharing()
    first = ticket(books, worded("search", text("a", 4)))
    books.grow(first, Tokens(1), 0.0)
    books.release(first, Cause.FINISHED, 0.0)
    assert charged(books, "search") == 0, "not freed yet, or cached: charged to nobody"
    assert reserved(books, worded("search", text("a", 4))) == 4 * CHUNK_BLOCKS + 1, "what is only cached is not shared"


@pytest.mark.parametrize("isolation", ["Tenant", "Shared"])
def test_charge_one_owner(isolation: str) -> None:
    books = sharing(cache_isolation=isolation)
    same = text("system", 4)
    assert reserved(books, worded("search", same)) == reserved(books, worded("batch", same)) == 4 * CHUNK_BLOCKS + 1


def test_charge_one_owner__where_the_engine_does_not_share_each_request_pays() -> None:
    books = open_books(share())
    assert reserved(books, worded("search", text("a", 4))) == reserved(books, worded("search", text("a", 4)))


def test_charge_estimated() -> None:
    """What is shared is rounded down to whole blocks, what is held up."""
    books = sharing()
    body = text("a", 2) + b"tail"
    for_less = Ask(
        TENANT, (AskedPrompt(Tokens(250), Tokens(250), chain(b"seed", body), len(body)),), 1, Tokens(6), "Seen"
    )
    assert reserved(books, for_less) == 16
    assert reserved(books, for_less) == 16 - 249 // 16
    assert pool(books).accounting == "Estimated"


def test_unattributed() -> None:
    books = open_books(share(), share("batch"))
    books.observe(sample(used=300), 0.0)
    running(books, "search", 100)
    books.observe(sample(used=400), 0.0)
    assert (pool(books).unattributed, charged(books, "search"), charged(books, "batch"), free(books)) == (
        300,
        100,
        0,
        600,
    )


@pytest.mark.parametrize(
    ("finished", "limit", "expected"),
    [
        pytest.param([16] * 19, 800, 10 + 50, id="fewer than 20 finished: the limit"),
        pytest.param([160] * 18 + [480] * 2, 800, 10 + 10, id="the 90th percentile of the finished ones"),
        pytest.param([480] * 20, 160, 10 + 10, id="never more than its own limit"),
    ],
)
def test_reserve_expected(finished: list[int], limit: int, expected: int) -> None:
    books = open_books(share())
    for produced in finished:
        answered(books, produced, times=1)
    assert reserved(books, streamed(TENANT, (160,), 1, limit)) == expected


def test_reserve_expected__one_short_answer_promises_nothing() -> None:
    """One answer of 4 tokens, and a request of up to 30,000."""
    books = open_books(share(), usable=10_000)
    answered(books, 4, times=1)
    assert reserved(books, streamed(TENANT, (160,), 1, 30_000)) == 10 + 1875


def test_reserve_expected__one_that_came_to_its_own_limit_counts_as_at_least() -> None:
    """Twenty with a limit of 1, and the next may have 30,000."""
    books = open_books(share(), usable=10_000)
    for _ in range(20):
        short = ticket(books, streamed(TENANT, (160,), 1, 1))
        books.grow(short, Tokens(1), 0.0)
        books.release(short, Cause.FINISHED, 0.0)
    assert reserved(books, streamed(TENANT, (160,), 1, 30_000)) == 10 + 1875


def test_reserve_expected__one_that_was_ended_counts_as_at_least() -> None:
    books = open_books(share())
    answered(books, 16)
    answered(books, 160, Cause.CLIENT_GONE)
    assert reserved(books, streamed(TENANT, (160,), 1, 800)) == 10 + 50


def test_reserve_unseen() -> None:
    """32 of up to 15,000 tokens from a tenant of short answers: not all admitted."""
    books = open_books(share(hard_blocks=11_058), usable=18_431)
    answered(books, 4)
    answers = [books.ask(asking(TENANT, (3,), 1, 15_000), 0.0) for _ in range(32)]
    assert [each.reserved for each in answers if isinstance(each, Admitted)] == [938] * 11


def test_reserve_unseen__its_output_counts_when_it_has_finished() -> None:
    books = open_books(share(), usable=20_000)
    for _ in range(20):
        unseen = ticket(books, asking(TENANT, (16,), 1, 800))
        books.settle(unseen, Tokens(16), Tokens(160), 0.0)
        books.release(unseen, Cause.FINISHED, 0.0)
    assert reserved(books, streamed(TENANT, (160,), 1, 800)) == 10 + 10


def test_reserve_unseen__from_when_nobody_sees_it_any_more() -> None:
    books = open_books(share())
    answered(books, 16)
    left = ticket(books, streamed(TENANT, (160,), 1, 800))
    assert charged(books, "search") == 11
    books.unseen(left, 0.0)
    assert charged(books, "search") == 60


def test_growth_seen() -> None:
    books = open_books(share())
    answered(books, 16)
    long = ticket(books, streamed(TENANT, (160,), 1, 800))
    assert charged(books, "search") == 11
    books.grow(long, Tokens(16), 0.0)
    assert charged(books, "search") == 11
    books.grow(long, Tokens(17), 0.0)
    assert charged(books, "search") == 12
    books.settle(long, Tokens(32), Tokens(17), 0.0)
    assert charged(books, "search") == 4, "the engine's own count replaces the estimate"
    books.settle(long, Tokens(32), Tokens(1), 0.0)
    assert charged(books, "search") == 3, "also of the output"


def test_cost_copies() -> None:
    books = open_books(share())
    assert reserved(books, streamed(TENANT, (168,), 3, 32)) == 10 + 3 * 3


def test_cost_list() -> None:
    books = open_books(share(max_concurrent_requests=5))
    assert reserved(books, streamed(TENANT, (16, 32), 2, 16)) == (1 + 2 * 1) + (2 + 2 * 1)
    assert outcome(books, "search", 1) is None
    assert outcome(books, "search", 1) == Code.TENANT_CONCURRENCY_EXCEEDED, "two prompts, two copies each"


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        pytest.param((16, 16, 32), 4, id="a short list costs its sum"),
        pytest.param((160,) * 100, 64 + 7 + 10, id="a long list costs one batch of the engine and the largest prompt"),
        pytest.param((8,) * 256, 64 + 129 + 1, id="of short prompts each has a block that it does not fill"),
    ],
)
def test_cost_pooling(prompts: tuple[int, ...], expected: int) -> None:
    books = open_books(share(), kv=plan(batch_tokens=1024))
    assert reserved(books, asking(TENANT, prompts, 1, None, kind="Pool")) == expected


def test_cost_pooling__too_big_a_list_is_told_to_split() -> None:
    books = open_books(share(hard_blocks=50), kv=plan(batch_tokens=1024))
    answer = books.ask(asking(TENANT, (160,) * 100, 1, None, kind="Pool"), 0.0)
    assert getattr(answer, "code", None) == Code.REQUEST_EXCEEDS_KV_QUOTA
    assert "plit" in getattr(answer, "message", "")


def shape(content: str, **fields: object) -> Shape:
    body = {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
    read = read_shape("/v1/chat/completions", json.dumps(body).encode())
    assert isinstance(read, Shape)
    return read


def test_prompt_estimate() -> None:
    """After 60 requests with 40 KB that the engine ignored, a dense prompt is not estimated at next to nothing."""
    ratios = Ratios()
    ignored = shape("hello " * 200, documents=[{"text": "x" * 40_000}])
    for _ in range(60):
        ratios.learn(TENANT, ignored.prompts, Tokens(300))
    (plain,) = shape("hello " * 200).prompts
    assert 290 <= ratios.estimate(TENANT, plain) <= 320
    assert ratios.estimate(TENANT, plain) <= ratios.most(plain)
    (with_documents,) = ignored.prompts
    assert ratios.estimate(TENANT, with_documents) > 9000, "it might be rendered"
    assert ratios.estimate("inference/batch", plain) != ratios.estimate(TENANT, plain), "nobody learns from another"


def test_prompt_bound() -> None:
    books = open_books(share(hard_blocks=100))
    assert reserved(books, estimated("search", 144, 464)) == 10, "its bound is 30 blocks"
    assert reserved(books, estimated("search", 144, 464)) == 10
    assert reserved(books, estimated("search", 144, 464)) == 10
    assert books.ask(estimated("search", 144, 464), 0.0) == Close(), "90 by their bounds, and 30 more"
    assert (charged(books, "search"), books.tenant_usage(0.0, 0.0)[0].total.rejected) == (30, {})
    assert reserved(books, estimated("search", 144, 144)) == 10, "known exactly it fits beside what they may hold"


def final(wanted: Ask) -> Ask:
    return replace(wanted, final=True)


def test_prompt_doubt() -> None:
    """Without that a tenant holds hard by its bounds, and as much as hard leaves of its estimates beside it."""
    books = open_books(share(hard_blocks=100))
    tickets = [ticket(books, estimated("search", 144, 464)) for _ in range(3)]
    known = estimated("search", 464, 464)
    assert books.ask(known, 0.0) == Close(), "90 by their bounds, and 30 more"
    answer = books.ask(final(known), 0.0)
    assert getattr(answer, "code", None) == Code.TENANT_KV_QUOTA_EXCEEDED, "nobody has counted them in time"
    assert "holds 1,440 tokens of KV cache until its prompts are counted" in getattr(answer, "message", "")
    books.count(tickets[0], (Tokens(144),), 0.0)
    assert reserved(books, known) == 30
    assert books.ask(known, 0.0) == Close(), "70 by their bounds, of what is known 40, and 30 more"
    books.count(tickets[1], (Tokens(464),), 0.0)
    assert charged(books, "search") == 80
    assert getattr(books.ask(known, 0.0), "code", None) == Code.TENANT_KV_QUOTA_EXCEEDED
    books.check_integrity()


def test_prompt_doubt_early() -> None:
    books = open_books(share(hard_blocks=100))
    answers = [books.ask(estimated("search", 144, 464), 0.0) for _ in range(2)]
    assert [(each.is_doubtful, each.count) for each in answers if isinstance(each, Admitted)] == [
        (True, False),
        (True, True),
    ]
    exactly = books.ask(estimated("search", 144, 144), 0.0)
    assert isinstance(exactly, Admitted)
    assert (exactly.is_doubtful, exactly.count) == (False, False)


def test_prompt_doubt_early__of_what_waits_for_room() -> None:
    books = open_books(share(soft_blocks=300, hard_blocks=300))
    books.observe(sample(used=1000), 0.0)
    waiting = books.ask(estimated("search", 1584, 3184), 0.0)
    assert isinstance(waiting, Waiting)
    assert (waiting.is_doubtful, waiting.count) == (True, True)
    books.count(waiting.ticket, (Tokens(1264),), 0.0)
    assert charged(books, "search") == 80
    books.count(waiting.ticket, (Tokens(3000),), 0.0)
    assert charged(books, "search") == 80, "it was counted before"
    books.check_integrity()


def test_prompt_doubt_early__a_count_leaves_the_output_what_the_context_leaves() -> None:
    books = open_books(share(), max_model_len=1600)
    unlimited = Ask(TENANT, (AskedPrompt(Tokens(160), Tokens(800)),), 1, None, "Unseen")
    it = ticket(books, unlimited)
    assert charged(books, "search") == 100
    books.count(it, (Tokens(800),), 0.0)
    assert charged(books, "search") == 100


def partly_shared(tokens: int, most: int, chunks: int, *, size: int) -> Ask:
    """A prompt of `size` bytes, the first `chunks` chunks of which all of these have in common."""
    chain = tuple(range(1, chunks + 1))
    return Ask(TENANT, (AskedPrompt(Tokens(tokens), Tokens(most), chain, size),), 1, Tokens(16), "Seen")


@pytest.mark.parametrize("counted", [False, True], ids=["by its estimate", "counted"])
def test_prompt_doubt_shared(counted: bool) -> None:
    """Of 10,240 bytes 9,728 are blanks that the tenant's other requests hold, and the last 512 are a token each. By its
    part of the bytes it is charged a twentieth, and hard would be passed twelvefold."""
    books = open_books(share(hard_blocks=700), kv=plan(shares_prefixes=True))
    first = ticket(books, partly_shared(640, 640, 19, size=10_240))
    assert charged(books, "search") == 41
    tokens, most = (640, 640) if counted else (2560, 10_240)
    held, answers = 41, []
    while isinstance(answer := books.ask(final(partly_shared(tokens, most, 19, size=10_240)), 0.0), Admitted):
        answers.append(answer)
        held += 33  # 512 tokens and 16 of output
    assert 100 < held <= 700
    assert len(answers) > 1
    books.release(first, Cause.FINISHED, 0.0)
    books.check_integrity()


def test_prompt_bound__dense_prompts_that_each_fit_by_their_bound_do_not_pass_hard_together() -> None:
    """Without the doubt eight of them are admitted, which hold 240 blocks."""
    books = open_books(share(hard_blocks=100))
    held = 0
    while isinstance(books.ask(estimated("search", 144, 464), 0.0), Admitted):
        held += 30
    assert held == 90


def test_prompt_bound__the_doubt_goes_with_the_engines_own_count() -> None:
    books = open_books(share(hard_blocks=100))
    tickets = [ticket(books, estimated("search", 144, 464)) for _ in range(3)]
    for each in tickets:
        books.settle(each, Tokens(144), Tokens(1), 0.0)
    assert reserved(books, estimated("search", 144, 464)) == 10


def test_prompt_bound__what_is_refused_whatever_it_holds_is_refused_at_once() -> None:
    books = open_books(share(hard_blocks=100))
    admit(books, "search", 100)
    answer = books.ask(estimated("search", 144, 464), 0.0)
    assert getattr(answer, "code", None) == Code.TENANT_KV_QUOTA_EXCEEDED


def test_prompt_bound__of_the_pools_room() -> None:
    books = open_books(share(soft_blocks=850))
    books.observe(sample(used=700), 0.0)
    assert books.ask(estimated("search", 784, 6384), 0.0) == Close(), "400 by its bound, and 300 are free"
    assert reserved(books, estimated("search", 784, 4784)) == 50
    assert reserved(books, ask("search", 50)) == 50
