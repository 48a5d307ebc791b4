"""Clients whose request is here and not with the engine yet: it waits for room, or until tokens were counted, its own
or those of others.

Invariants:

1. Nothing is sent to them while they wait, and their bodies count as held.
2. One that leaves gives up its place, or the count, at once.
3. Each leaves by exactly one door: to the engine, with a refusal, or gone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Protocol

from kvquota_api.amounts import Tokens
from kvquota_sidecar.ledger.asking import Admitted, AskedPrompt, Cause
from kvquota_sidecar.proxy.counting import Counting
from kvquota_sidecar.proxy.desk import Desk
from kvquota_sidecar.proxy.doubting import Awaited
from kvquota_sidecar.proxy.wishing import Wish, have_counted
from kvquota_sidecar.refusals import Refusal
from kvquota_sidecar.telemetry.tally import Outcome


class Clerk(Protocol):
    """Who goes on with a request that has waited."""

    def ask(self, wish: Wish, prompts: tuple[AskedPrompt, ...], until: float = math.inf) -> None:
        """Ask the books for it, now that its prompts are exact; it waits for others until then, at most."""

    def forward(self, wish: Wish, prompts: tuple[AskedPrompt, ...], admitted: Admitted) -> None:
        """Send it to the engine."""

    def exact(self, wish: Wish, counts: tuple[Tokens, ...] | None) -> tuple[AskedPrompt, ...]:
        """Its prompts by what the engine counted; None: it did not say in time."""

    def turn_away(self, wish: Wish, refusal: Refusal) -> None:
        """Answer it with a refusal that the books have counted."""


class _Unsent:
    """Of an `Exchange`: how full the way to the client is does not matter while nothing is sent."""

    __slots__ = ()

    def client_full(self) -> None:
        """Nothing is sent to it."""

    def client_ready(self) -> None:
        """Nothing is sent to it."""


class Held(_Unsent, ABC):
    """An `Exchange` to its client: nothing is sent to it, and it has a place that it can give up."""

    __slots__ = ("_clerk", "_desk", "_wish")

    def __init__(self, wish: Wish, clerk: Clerk, desk: Desk) -> None:
        self._wish = wish
        self._clerk = clerk
        self._desk = desk

    # What the client's side calls.

    def client_gone(self) -> None:
        if self._leave():
            self._desk.tally.requests[self._wish.route.path, Outcome.CLIENT_GONE] += 1
            self._let_go(Cause.CLIENT_GONE)
            self._desk.turn()

    # What the desk calls.

    def end(self, refusal: Refusal) -> None:
        if self._leave():
            self._let_go(Cause.DRAINED)
            self._desk.books.count_refusal(self._wish.tenant, refusal, self._desk.clock())
            self._clerk.turn_away(self._wish, refusal)

    # The inside.

    @abstractmethod
    def _leave(self) -> bool:
        """Give up its place; whether it had one still."""

    @abstractmethod
    def _let_go(self, cause: Cause) -> None:
        """Let go of what it has or waits for, since nobody wants it any more."""


class Waiter(Held):
    """An `Applicant` to the desk: it waits for room. `ticket` is in the books until it is admitted."""

    __slots__ = ("_prompts", "_ticket")

    def __init__(self, wish: Wish, prompts: tuple[AskedPrompt, ...], ticket: int, clerk: Clerk, desk: Desk) -> None:
        super().__init__(wish, clerk, desk)
        self._prompts = prompts
        self._ticket = ticket
        desk.waiting[ticket] = self
        try:
            wish.client.attach(self)
        except BaseException:
            self.client_gone()
            raise

    # What the desk calls.

    def admitted(self, admitted: Admitted) -> None:
        if self._leave():
            self._clerk.forward(self._wish, self._prompts, admitted)

    def missed(self, refusal: Refusal) -> None:
        if self._leave():
            self._desk.doubts.close(self._ticket)
            self._desk.tally.guarantees_missed += 1
            self._clerk.turn_away(self._wish, refusal)

    # The inside.

    def _leave(self) -> bool:
        return self._desk.waiting.pop(self._ticket, None) is not None

    def _let_go(self, cause: Cause) -> None:
        self._desk.doubts.close(self._ticket)
        self._desk.books.release(self._ticket, cause, self._desk.clock())


class _Counting(Held):
    """It waits while something is counted, and holds nothing."""

    __slots__ = ()

    def __init__(self, wish: Wish, clerk: Clerk, desk: Desk) -> None:
        super().__init__(wish, clerk, desk)
        wish.client.attach(self)
        desk.counting.add(self)

    @property
    def tenant(self) -> str:
        return self._wish.tenant

    def _leave(self) -> bool:
        if self not in self._desk.counting:
            return False
        self._desk.counting.remove(self)
        return True

    def _ask(self, prompts: tuple[AskedPrompt, ...], until: float = math.inf) -> None:
        try:
            self._clerk.ask(self._wish, prompts, until)
        except BaseException:
            self._wish.client.break_off()
            raise
        self._desk.turn()


class Counted(_Counting):
    """Its own tokens are counted."""

    __slots__ = ("_counting",)

    def __init__(self, wish: Wish, clerk: Clerk, desk: Desk) -> None:
        super().__init__(wish, clerk, desk)
        self._counting: Counting | None = None

    def start(self) -> None:
        """Have it counted; the rest follows by itself."""
        self._counting = have_counted(self._desk.tokenizer, self._wish, self._done)

    def _done(self, counts: tuple[Tokens, ...] | None) -> None:
        if self._leave():
            self._desk.tally.tokenizer_late += counts is None
            self._ask(self._clerk.exact(self._wish, counts))

    def _let_go(self, cause: Cause) -> None:  # noqa: ARG002 - it holds nothing that has a cause
        if self._counting is not None:
            self._counting.cancel()


class Doubtful(_Counting):
    """Its tokens are known; those of others of its tenant are counted. It waits for them until `until`."""

    __slots__ = ("_awaited", "_prompts", "_until")

    def __init__(self, wish: Wish, prompts: tuple[AskedPrompt, ...], until: float, clerk: Clerk, desk: Desk) -> None:
        super().__init__(wish, clerk, desk)
        self._prompts = prompts
        self._until = until
        self._awaited: Awaited | None = None

    def start(self, awaited: set[int]) -> None:
        """Wait until these, at least one, were counted; the rest follows by itself."""
        self._awaited = self._desk.doubts.when_gone(awaited, self._done)

    def _done(self) -> None:
        if self._leave():
            self._ask(self._prompts, self._until)

    def _let_go(self, cause: Cause) -> None:  # noqa: ARG002 - it holds nothing that has a cause
        if self._awaited is not None:
            self._desk.doubts.forget(self._awaited)
