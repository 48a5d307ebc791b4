"""What was admitted by an estimate, near its tenant's border: its prompts are counted while it runs.

Invariants:

1. A doubt is open from the admission of its request (or the begin of its wait) until its prompts were counted, or were
   taken at the worst because nobody had counted them in time, or until the request is over. Then nothing is left of it.
2. At most MAX_COUNTED are counted at a time, MAX_COUNTED_OF_ONE of one tenant, each for DEADLINE_SECONDS at most; the
   largest first. What is not under way stays open: it is counted when somebody has to know.
3. Bodies are kept for that, MAX_KEPT_BYTES at most: what is beyond is counted at once, or taken at the worst.
4. Nobody is told anything inside another one's call.

It does not know what a doubt amounts to, nor what follows from its end: those are the books'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from kvquota_api.amounts import Tokens
from kvquota_sidecar.clock import Clock
from kvquota_sidecar.estimate.ratio import Ratios
from kvquota_sidecar.ledger.books import Books
from kvquota_sidecar.proxy.counting import Counting, Tokenizer
from kvquota_sidecar.proxy.wishing import Wish, have_counted
from kvquota_sidecar.telemetry.tally import Tally

MAX_COUNTED: Final = 64  # as many as of those that ask: both together are what an engine tokenizes in 50 ms
MAX_COUNTED_OF_ONE: Final = 16
MAX_KEPT_BYTES: Final = 4 * 2**20  # of bodies: a thousand usual ones


class Awaited:
    """Doubts that somebody waits for."""

    __slots__ = ("done", "handle", "tickets")

    def __init__(self, tickets: set[int], done: Callable[[], None]) -> None:
        self.tickets = tickets
        self.done = done
        self.handle: asyncio.Handle | None = None


class Doubts:
    """All that are open. `turn`: does what the books have to say."""

    __slots__ = (
        "_awaited", "_books", "_clock", "_kept", "_open", "_ratios", "_tally", "_tokenizer", "_turn", "_under_way",
    )  # fmt: skip

    def __init__(
        self,
        books: Books,
        ratios: Ratios,
        tokenizer: Tokenizer,
        *,
        tally: Tally,
        clock: Clock,
        turn: Callable[[], None],
    ) -> None:
        self._books = books
        self._ratios = ratios
        self._tokenizer = tokenizer
        self._tally = tally
        self._clock = clock
        self._turn = turn
        self._open: dict[int, Wish] = {}
        self._under_way: dict[int, Counting | None] = {}  # None while it begins
        self._kept = 0
        self._awaited: dict[Awaited, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def kept_bytes(self) -> int:
        """Of bodies that are kept to be counted."""
        return self._kept

    def open(self, ticket: int, wish: Wish, *, at_once: bool) -> None:
        """A request was admitted by its estimate, or waits. `at_once`: its prompts are to be counted now."""
        self._open[ticket] = wish
        self._kept += len(wish.request.body)
        is_kept = self._kept <= MAX_KEPT_BYTES
        if is_kept and not at_once:
            return
        if self._has_room(wish.tenant):
            self._count(ticket, wish)
        elif not is_kept:
            self._tell(ticket, wish, None)

    def close(self, ticket: int) -> None:
        """The request is over, or waits no longer."""
        if ticket not in self._open:
            return
        counting = self._under_way.get(ticket)
        if counting is not None:
            counting.cancel()
        self._forget(ticket)

    def count(self, tenant: str) -> set[int]:
        """Have what is open of a tenant counted, as far as may be; the tickets of what is under way now."""
        idle = [(t, wish) for t, wish in self._open.items() if wish.tenant == tenant and t not in self._under_way]
        for ticket, wish in sorted(idle, key=_bytes, reverse=True):
            if not self._has_room(tenant):
                break
            self._count(ticket, wish)
        return {ticket for ticket in self._under_way if self._open[ticket].tenant == tenant}

    def when_gone(self, tickets: set[int], done: Callable[[], None]) -> Awaited:
        """Call `done` when none of these, which are under way, is so any longer."""
        awaited = Awaited(tickets, done)
        self._awaited[awaited] = None
        return awaited

    def forget(self, awaited: Awaited) -> None:
        """Nobody waits for them any more."""
        self._awaited.pop(awaited, None)
        if awaited.handle is not None:
            awaited.handle.cancel()

    # The inside.

    def _has_room(self, tenant: str) -> bool:
        of_one = sum([self._open[ticket].tenant == tenant for ticket in self._under_way])
        return len(self._under_way) < MAX_COUNTED and of_one < MAX_COUNTED_OF_ONE

    def _count(self, ticket: int, wish: Wish) -> None:
        self._under_way[ticket] = None
        self._tally.tokenizer_asked += 1
        counting = have_counted(self._tokenizer, wish, partial(self._done, ticket, wish))
        if ticket in self._under_way:
            self._under_way[ticket] = counting

    def _done(self, ticket: int, wish: Wish, counts: tuple[Tokens, ...] | None) -> None:
        self._tally.tokenizer_late += counts is None
        is_inside = self._under_way[ticket] is None  # of the call that has begun it, whose caller takes the turn
        self._tell(ticket, wish, counts)
        if not is_inside:
            self._turn()

    def _tell(self, ticket: int, wish: Wish, counts: tuple[Tokens, ...] | None) -> None:
        self._forget(ticket)
        guessed = counts is None
        if counts is None:
            counts = tuple([self._ratios.worst(each) for each in wish.shape.prompts])
        self._books.count(ticket, counts, self._clock(), guessed=guessed)

    def _forget(self, ticket: int) -> None:
        self._kept -= len(self._open.pop(ticket).request.body)
        if ticket not in self._under_way:
            return  # nobody waits for it
        del self._under_way[ticket]
        for awaited in tuple(self._awaited):
            awaited.tickets.discard(ticket)
            if not awaited.tickets:
                del self._awaited[awaited]
                awaited.handle = asyncio.get_running_loop().call_soon(awaited.done)


def _bytes(kept: tuple[int, Wish]) -> int:
    return len(kept[1].request.body)
