"""Blocks that several requests of a tenant hold: who pays for them, and what the engine says of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from bookkeeping import config, ended, open_books, sample, share
from kvquota_api.amounts import Tokens
from kvquota_api.memory.blocks import LayerGroup
from kvquota_sidecar.estimate.chain import CHUNK_BYTES
from kvquota_sidecar.ledger.books import Admitted, Ask, AskedPrompt, Books, Cause, LedgerError, Waiting

PER_CHUNK = 8  # blocks of 16 tokens, at a token for 4 bytes
TOKENS = CHUNK_BYTES // 4


def shared_plan(**changes: Any) -> Any:
    return msgspec.structs.replace(config().kv, **{"shares_prefixes": True, **changes})


def open_shared(*shares: Any, **changes: Any) -> Books:
    """Books of an engine that keeps beginnings that requests have in common once."""
    return open_books(*shares, kv=shared_plan(**changes))


def prompt(*chain: int, chunks: int = 0, most: int | None = None) -> AskedPrompt:
    """A prompt of `chunks` chunks, of which the hashes are given; those of `chain` alone where nothing else is said."""
    size = (chunks or len(chain)) * CHUNK_BYTES
    tokens = Tokens(size // 4)
    return AskedPrompt(tokens, tokens if most is None else Tokens(most), chain, size)


def admit(books: Books, *prompts: AskedPrompt, name: str = "search", now: float = 0.0, **more: Any) -> Admitted:
    answer = books.ask(Ask(f"inference/{name}", prompts, 1, Tokens(16), "Seen", **more), now)
    assert isinstance(answer, Admitted), answer
    books.check_integrity()
    return answer


def charged(books: Books, place: int = 0) -> int:
    return books.tenant_usage(0.0, 0.0)[place].reserved


def test_a_block_is_paid_by_the_oldest_and_inherited_by_the_next() -> None:
    books = open_shared(share())
    first, second, third = (admit(books, prompt(1, 2, 3 + each)) for each in range(3))
    assert [each.reserved for each in (first, second, third)] == [25, 9, 9]
    books.release(first.ticket, Cause.FINISHED, 0.0)
    assert charged(books) == 25 + 9
    books.check_integrity()
    books.release(second.ticket, Cause.FINISHED, 0.0)
    assert charged(books) == 25
    books.release(third.ticket, Cause.FINISHED, 0.0)
    assert charged(books) == 0
    books.check_integrity()


def test_a_request_that_was_refused_leaves_nothing_to_compare_with() -> None:
    books = open_shared(share(hard_blocks=30))
    admit(books, prompt(1, 2))
    refused = books.ask(Ask("inference/search", (prompt(1, 2, 3, 4),), 1, Tokens(16), "Seen"), 0.0)
    assert not isinstance(refused, Admitted)
    assert admit(books, prompt(9)).reserved == 9
    assert charged(books) == 17 + 9


def test_shared_blocks_let_more_in_under_hard() -> None:
    books = open_shared(share(hard_blocks=26))
    admit(books, prompt(1, 2, 3))
    assert admit(books, prompt(1, 2, 3)).reserved == 1


def test_what_fits_only_by_sharing_may_still_be_larger_than_hard_on_its_own_and_is_never_admitted() -> None:
    books = open_shared(share(hard_blocks=20))
    admit(books, prompt(1, 2))
    answer = books.ask(Ask("inference/search", (prompt(1, 2, 3),), 1, Tokens(16), "Seen"), 0.0)
    assert not isinstance(answer, Admitted)


def test_prompts_of_one_request_share_with_each_other() -> None:
    books = open_shared(share())
    answer = admit(books, prompt(1, 2), prompt(1, 3), prompt(7))
    assert answer.reserved == 17 + 9 + 9
    books.release(answer.ticket, Cause.FINISHED, 0.0)
    assert charged(books) == 0


def test_an_estimate_shares_its_part_of_its_estimate() -> None:
    books = open_shared(share())
    admit(books, prompt(1, 2, 3, 4))
    assert admit(books, prompt(1, 2, chunks=4, most=4 * CHUNK_BYTES)).reserved == 4 * 8 + 1 - 2 * 8


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        pytest.param({"shares_prefixes": False}, "Generate", id="the engine keeps every beginning for itself"),
        pytest.param({"groups": (LayerGroup("Full", 16), LayerGroup("State", 16, 0, 1))}, "Generate", id="hybrid"),
        pytest.param({}, "Pool", id="a list that only goes through the model"),
    ],
)
def test_where_beginnings_are_not_kept_together_everybody_pays(changes: dict[str, Any], kind: str) -> None:
    books = open_books(share(), kv=shared_plan(**changes))
    first, second = (admit(books, prompt(1, 2, 3), kind=kind) for _ in range(2))
    assert first.reserved == second.reserved >= 24


def test_prompts_of_groups_that_all_keep_everything_share_whole_blocks_of_each() -> None:
    books = open_shared(share(), groups=(LayerGroup("Full", 16), LayerGroup("Full", 32)))
    first, second = admit(books, prompt(1, 2)), admit(books, prompt(1, 3))
    assert (first.reserved, second.reserved) == (17 + 9, (17 - 8) + (9 - 4))


def test_a_tenant_shares_with_itself_alone() -> None:
    books = open_shared(share(), share("batch"))
    admit(books, prompt(1, 2, 3))
    assert admit(books, prompt(1, 2, 3), name="batch").reserved == 25


@pytest.mark.parametrize(
    ("cached", "expected"),
    [
        pytest.param(None, 9, id="an engine that does not say is believed to share"),
        pytest.param(16 * TOKENS, 9, id="it found more than was believed"),
        pytest.param(2 * TOKENS, 9, id="it found just that"),
        pytest.param(TOKENS, 17, id="it found half of it: the rest is held once more"),
        pytest.param(0, 25, id="it found nothing"),
    ],
)
def test_what_the_engine_did_not_find_is_held_once_more(cached: int | None, expected: int) -> None:
    books = open_shared(share())
    admit(books, prompt(1, 2, 3))
    second = admit(books, prompt(1, 2, 4))
    found = None if cached is None else Tokens(cached)
    books.settle(second.ticket, Tokens(3 * TOKENS), Tokens(1), 0.0, found)
    assert charged(books) == 25 + expected
    books.check_integrity()


@pytest.mark.parametrize(
    ("said", "counted"),
    [
        pytest.param([None], (0, 0), id="an engine that does not say counts for nothing"),
        pytest.param([30], (100, 30), id="what it found"),
        pytest.param([0], (100, 0), id="that it found nothing"),
        pytest.param([10, 30], (100, 30), id="once, by its last word"),
        pytest.param([999], (100, 100), id="no more than there was"),
    ],
)
def test_what_the_engine_found_is_counted_when_the_request_is_over(
    said: list[int | None], counted: tuple[int, int]
) -> None:
    books = open_shared(share())
    ticket = admit(books, prompt(1, 2)).ticket
    for cached in said:
        books.settle(ticket, Tokens(100), Tokens(1), 0.0, None if cached is None else Tokens(cached))
    (running,) = books.tenant_usage(0.0, 0.0)
    books.release(ticket, Cause.FINISHED, 1.0)
    (over,) = books.tenant_usage(1.0, 1.0)
    assert (running.recent.prompt_tokens, running.recent.cached_tokens) == (0, 0)
    assert (over.recent.prompt_tokens, over.recent.cached_tokens) == counted
    assert (over.total.prompt_tokens, over.total.cached_tokens) == counted


def test_what_the_engine_found_is_taken_for_the_prompts_in_their_order() -> None:
    books = open_shared(share())
    admit(books, prompt(1, 2))
    second = admit(books, prompt(9), prompt(1, 3), prompt(1, 4))
    assert second.reserved == 9 + 9 + 9
    books.settle(second.ticket, Tokens(5 * TOKENS), Tokens(3), 0.0, Tokens(TOKENS))
    assert charged(books) == 17 + 9 + 9 + 17


def test_one_that_waits_pays_for_what_it_will_hold_until_it_goes() -> None:
    books = open_shared(share(soft_blocks=800))
    books.observe(sample(used=975), 0.0)
    waiting = books.ask(Ask("inference/search", (prompt(1, 2, 3, 4),), 1, Tokens(16), "Seen"), 0.0)
    assert isinstance(waiting, Waiting)
    books.observe(sample(used=950), 0.1)
    assert admit(books, prompt(1, 2, 5), now=0.1).reserved == 9
    books.release(waiting.ticket, Cause.CLIENT_GONE, 0.2)
    assert charged(books) == 25
    books.check_integrity()
    pool = books.pool_usage(0.2)
    assert pool is not None
    assert pool.free == 1000 - 950 - 25


def test_what_is_inherited_was_filled_already_and_does_not_come_free() -> None:
    books = open_shared(share())
    first, second = admit(books, prompt(1, 2, 3)), admit(books, prompt(1, 2, 4))
    for each in (first, second):
        books.grow(each.ticket, Tokens(16), 0.0)
    books.observe(sample(used=34), 1.0)
    books.release(first.ticket, Cause.CLIENT_GONE, 1.1)
    books.observe(sample(used=25), 3.0)
    pool = books.pool_usage(3.0)
    assert pool is not None
    assert (pool.free, pool.reserved, pool.used, pool.unattributed) == (975, 25, 25, 0)


def test_ending_one_of_two_that_share_frees_only_what_is_its_own() -> None:
    """Sixteen blocks are missing, and the beginning stays: so two have to go, not one."""
    books = open_shared(share(soft_blocks=800, priority=9), share("batch"))
    tickets = [admit(books, prompt(1, 2, each), name="batch").ticket for each in (3, 4, 5)]
    for ticket in tickets:
        books.grow(ticket, Tokens(16), 0.0)
    books.observe(sample(used=800 + 43), 0.0)
    waiting = books.ask(Ask("inference/search", (prompt(*range(10, 31)),), 1, Tokens(80), "Seen"), 0.0)
    assert isinstance(waiting, Waiting)
    assert ended(books) == [tickets[2], tickets[1]]
    assert charged(books, 1) == 25
    books.check_integrity()


def test_ending_all_that_share_frees_the_beginning_too() -> None:
    books = open_shared(share(soft_blocks=800, priority=9), share("batch"))
    tickets = [admit(books, prompt(1, 2, each), prompt(1, 2, 3), name="batch").ticket for each in (3, 4)]
    books.observe(sample(used=950), 0.0)
    books.ask(Ask("inference/search", (prompt(*range(10, 31)),), 1, Tokens(80), "Seen"), 0.0)
    assert sorted(ended(books)) == tickets
    assert charged(books, 1) == 0
    books.check_integrity()


def test_an_older_one_that_goes_leaves_what_it_shares_to_the_younger() -> None:
    """The younger ones have sent something, so the oldest goes first; it frees but a part, and another has to go."""
    books = open_shared(share(soft_blocks=800, priority=9), share("batch"))
    tickets = [admit(books, prompt(1, 2, each), name="batch").ticket for each in (3, 4, 5)]
    for ticket in tickets[1:]:
        books.sent(ticket)
    books.observe(sample(used=800 + 43), 0.0)
    waiting = books.ask(Ask("inference/search", (prompt(*range(10, 31)),), 1, Tokens(80), "Seen"), 0.0)
    assert isinstance(waiting, Waiting)
    assert ended(books) == [tickets[0], tickets[2]]
    assert charged(books, 1) == 25
    books.check_integrity()


def test_prompts_too_short_for_a_chunk_share_nothing() -> None:
    books = open_shared(share())
    books.check_integrity()
    assert [admit(books, prompt(chunks=1)).reserved for _ in range(2)] == [9, 9]


def pretend_sharing(books: Books) -> None:
    """One chunk of the first request is said to be held by others, at no change of its charge."""
    first = books._roll.entries[1].prompts[0]
    first.leading, first.found = 1, 0


SPOILED = [
    pytest.param(lambda books: setattr(books._roll.entries[2].prompts[0], "leading", 1), "ticket 2 is", id="chunks"),
    pytest.param(pretend_sharing, "what 1 shares", id="a beginning"),
    pytest.param(
        lambda books: setattr(books._roll.accounts["inference/search"], "doubt", 3), "the doubt of", id="doubt"
    ),
    pytest.param(lambda books: setattr(books._roll.ranks.each[0], "charged", 3), "what rank 0 runs", id="a rank"),
    pytest.param(lambda books: setattr(books._roll.ranks.each[0], "waiting", 3), "what waits for rank 0", id="waiters"),
    pytest.param(lambda books: books._roll.queue.update({1: books._roll.entries[1]}), "the queue", id="the queue"),
]


@pytest.mark.parametrize(("spoil", "named"), SPOILED)
def test_sums_that_do_not_add_up_are_named(spoil: Callable[[Books], object], named: str) -> None:
    books = open_shared(share())
    admit(books, prompt(1, 2, 3))
    admit(books, prompt(1, 2, 4))
    spoil(books)
    with pytest.raises(LedgerError, match=named):
        books.check_integrity()
