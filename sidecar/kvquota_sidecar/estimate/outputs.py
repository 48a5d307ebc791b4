"""How long the answers of one tenant become: the 90th percentile of its finished requests.

Decides what is promised to a request for its output. Pure.

Invariants:

1. A request that was ended early says "at least": its share of the whole moves to the longer ones (the product-limit
   estimate), so a tenant whose requests are all ended early is never taken for one with short answers.
2. None where fewer than FEWEST finished, or where these do not reach the 90th percentile: the caller takes the limit.
3. The memory is bounded: the last WINDOW outputs. When there are that many it is taken anew with every RENEWED one.

It does not know the limit of a request.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from typing import Final

from kvquota_api.amounts import Tokens

FEWEST: Final = 20  # finished outputs: two are beyond the 90th percentile, so that one short answer promises nothing
WINDOW: Final = 128  # outputs: enough for a 90th percentile, 1 KiB for each of up to 10,000 tenants
RENEWED: Final = 16  # outputs: to find the percentile takes 15 us; so it is an eighth of the window late, at most
TAIL: Final = 0.1  # what may lie beyond the promise: the 90th percentile of docs/accounting.md


class Outputs:
    """The last outputs of one tenant, in tokens of one sequence."""

    __slots__ = ("_finished", "_next", "_p90", "_unheeded", "_window")

    def __init__(self) -> None:
        self._window = array("q")  # tokens × 2, and 1 more where the output was ended early
        self._next = 0
        self._p90: Tokens | None = None
        self._finished = 0  # of the window
        self._unheeded = 0  # outputs that _p90 does not know of

    def finished(self, produced: Tokens) -> None:
        """An answer that came to its own end after `produced` tokens."""
        self._keep(produced * 2)

    def ended(self, produced: Tokens) -> None:
        """An answer that was ended after `produced` tokens: it would have had at least that many."""
        self._keep(produced * 2 + 1)

    def p90(self) -> Tokens | None:
        """The length in tokens that nine of ten answers do not pass; None: nobody can say."""
        if self._unheeded and (len(self._window) < WINDOW or self._unheeded >= RENEWED):
            self._p90 = _percentile(self._window) if self._finished >= FEWEST else None
            self._unheeded = 0
        return self._p90

    def _keep(self, coded: int) -> None:
        if len(self._window) < WINDOW:
            self._window.append(coded)
        else:
            self._finished -= self._window[self._next] & 1 ^ 1
            self._window[self._next] = coded
            self._next = (self._next + 1) % WINDOW
        self._finished += coded & 1 ^ 1
        self._unheeded += 1


def _percentile(coded: Collection[int]) -> Tokens | None:
    """Kaplan and Meier's estimate of who is still going, walked until no more than TAIL is."""
    ordered = sorted(coded)  # at equal lengths a finished one (even) comes before an ended one (odd)
    going, at_risk = 1.0, len(ordered)
    for each in ordered:
        if each & 1 == 0:
            going *= (at_risk - 1) / at_risk
            if going <= TAIL + 1e-9:  # 1e-9: what a product of 128 fractions may be off
                return Tokens(each // 2)
        at_risk -= 1
    return None
