"""The rules of docs/accounting.md on who is protected and who has to go, one test for each."""

from __future__ import annotations

from bookkeeping import BLOCK, config, ended, open_books, sample, share, streamed
from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.chain import CHUNK_BYTES, chain
from kvquota_sidecar.ledger.books import Admitted, Ask, AskedPrompt, Books, Cause
from ledger_figures import charged, end_the_victims, lent_out, plan, pool, running, tenant, waits


def over_soft(books: Books, name: str = "search") -> int:
    return tenant(books, name).over_soft


def test_protected() -> None:
    books = open_books(share(soft_blocks=50))
    first, _, _ = (running(books, "search", blocks) for blocks in (30, 30, 5))
    assert over_soft(books) == 35, "each as a whole, and all behind the first that does not fit"
    books.configure(config(share(soft_blocks=65)), 0.0)
    assert over_soft(books) == 0, "recomputed"
    books.configure(config(share(soft_blocks=40)), 0.0)
    books.release(first, Cause.FINISHED, 0.0)
    assert over_soft(books) == 0


def crowd() -> tuple[Books, dict[str, int]]:
    """1000 blocks: a guest with a soft of 400 holds 100, and 900 are borrowed by two of low and one of high priority,
    which runs the youngest."""
    shares = [share("a"), share("b"), share("c", priority=100), share("guest", soft_blocks=400, priority=100)]
    books = open_books(*shares)
    tickets = {
        name: running(books, name[0], blocks)
        for name, blocks in [("a1", 100), ("b1", 200), ("a2", 100), ("b2", 100), ("a3", 100), ("c1", 199)]
    }
    books.observe(sample(used=799), 0.0)
    running(books, "guest", 200)
    return books, tickets


def asked_for(books: Books, blocks: int, tickets: dict[str, int]) -> list[str]:
    """Who has to go for a guest of `blocks`, of which one is free."""
    waits(books, "guest", blocks)
    names = {ticket: name for name, ticket in tickets.items()}
    return [names[ticket] for ticket in end_the_victims(books)]


def test_victims() -> None:
    books, tickets = crowd()
    assert asked_for(books, 100, tickets) == ["a3"], "lowest priority; a and b are equally far over soft; the youngest"


def test_victims__the_tenant_furthest_over_soft() -> None:
    books, tickets = crowd()
    books.release(tickets.pop("a3"), Cause.FINISHED, 0.0)
    books.observe(sample(used=899), 0.0)
    running(books, "guest", 100)
    assert asked_for(books, 50, tickets) == ["b2"]


def test_victims__those_that_have_not_sent_a_byte_first() -> None:
    books, tickets = crowd()
    books.sent(tickets["a3"])
    books.sent(tickets["b2"])
    assert asked_for(books, 100, tickets) == ["a2"]


def test_victims__priority_before_all_else() -> None:
    books, tickets = crowd()
    for name in ("a1", "b1", "a2", "b2", "a3"):
        books.sent(tickets[name])
    assert asked_for(books, 200, tickets) == ["a3", "b2"]


def test_victims__nobody_who_is_admitted_in_the_same_turn() -> None:
    """Two wait whose soft is taken away; room has come for the first, and not all that the second lacks."""
    books, borrowed = lent_out()
    first, _ = waits(books, "guest", 300), waits(books, "guest", 100)
    ended_at_once = end_the_victims(books)
    books.configure(config(share("borrower", priority=20), share("guest")), 0.0)
    books.observe(sample(used=650), 1.5)  # and 50 that nobody holds
    turn = books.turn(1.5)
    assert [(each.ticket, each.protected) for each in turn.admitted] == [(first, False)]
    assert [each.ticket for each in turn.endings] == [borrowed[5]], "of high priority, and yet the only ones that run"
    assert (ended_at_once, ended(books, 1.5), pool(books, 1.5).waiting) == ([borrowed[7], borrowed[6]], [], 1)


def test_victims_again() -> None:
    """With the first over-soft request gone the others of its tenant fit soft: the next victim is somebody else's."""
    shares = [share("a", soft_blocks=150), share("b", priority=50), share("guest", soft_blocks=400, priority=100)]
    books = open_books(*shares)
    big, small = running(books, "a", 160), running(books, "a", 100)
    books.sent(small)
    other = running(books, "b", 400)
    running(books, "guest", 200)
    books.observe(sample(used=860), 0.0)
    waits(books, "guest", 200)
    assert end_the_victims(books) == [big]
    books.observe(sample(used=700 + 160), 1.5)
    assert end_the_victims(books, 1.5) == [other], "60 more are missing, and the second of a has become protected"
    assert tenant(books, "a", 1.5).over_soft == 0


def test_victims_again__shared_blocks_stay() -> None:
    books = open_books(share("a"), share("guest", soft_blocks=400, priority=100), kv=plan(shares_prefixes=True))
    body = b"s" * CHUNK_BYTES * 10
    prompt = AskedPrompt(Tokens(400 * BLOCK), Tokens(400 * BLOCK), chain(b"", body), len(body))
    tickets = []
    for _ in range(2):
        answer = books.ask(Ask("inference/a", (prompt,), 1, Tokens(200 * BLOCK), "Seen"), 0.0)
        assert isinstance(answer, Admitted)
        tickets.append(answer.ticket)
    assert charged(books, "a") == 800
    running(books, "guest", 150)
    waits(books, "guest", 250)
    assert end_the_victims(books) == [tickets[1]], "200 of it came free, where 400 are shared"
    books.check_integrity()


def test_victims_spared() -> None:
    books = open_books(share("a"), share("guest", soft_blocks=400, priority=100))
    big, small = running(books, "a", 500), running(books, "a", 20)
    running(books, "guest", 200)
    running(books, "guest", 100)
    books.observe(sample(used=520 + 300 + 170), 0.0)
    waits(books, "guest", 100)
    assert end_the_victims(books) == [big], "the small one that was picked first is not needed"
    assert charged(books, "a") == 20
    assert small


def test_evict_only_for() -> None:
    """A full pool, work far over soft, a lowered soft and time: nobody is ended without a waiter or growth."""
    books, _ = lent_out()
    running(books, "guest", 200)
    for now in (1.0, 2.0, 60.0):
        books.observe(sample(used=1000), now)
        assert ended(books, now) == []
    books.configure(config(share("borrower", hard_blocks=1), share("guest")), 61.0)
    assert ended(books, 61.0) == []
    books.observe(sample(used=1000), 62.0)
    assert ended(books, 62.0) == []
    refused = books.ask(streamed("inference/borrower", (16,), 1, 16), 62.0)
    assert not isinstance(refused, Admitted)
    assert ended(books, 62.0) == []
