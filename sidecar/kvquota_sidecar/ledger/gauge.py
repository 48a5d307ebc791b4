"""What the gauge of one pool says, beside what the books say: its free room, and what nobody in the books holds.

Decides F, without those that wait, and `unattributed`. Pure.

Invariants:

1. Fresh: F = U − max(E + P, ΣC + unattributed). E is the gauge; P is what was promised and not filled at that reading,
   and everything admitted or grown past its promise since; of what finished since, what it filled. So what ended gives
   room at the next reading.
2. Stale or missing: F = U − ΣC − unattributed − what ended within the last measured freeing delay.
3. Filled is what was seen to be. A request that has started and shows nothing (unstreamed, or still before its first
   token) fills what else the gauge shows, up to its charge: it is in E, and in P it would count twice.
4. `unattributed` is what the gauge shows beyond what is filled, without what ended too shortly ago to be freed. It
   follows the gauge down, and is charged to nobody. FORGET_AFTER the last reading it is 0: only the ledger counts.
5. `surplus` is what not even those explain that may not have started: of what is in use, the least that is not ours.
   Nobody is ended for more than that [a queue in the engine, and all that had shown nothing was ended for itself].
6. The memory is bounded: what ended is kept for MAX_DELAY, in steps of STEP.

It does not know tenants or requests, nor when the engine restarted (`ranks`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from kvquota_api.amounts import Blocks

PERIODS: Final = 2  # sampling periods after which a gauge is stale: one reading may be lost
FIRST_DELAY: Final = 1.0  # seconds from an abort to the freed blocks, until it was measured; a busy engine's step
MAX_DELAY: Final = 5.0  # seconds: an abort frees in one step of the engine; what is held longer is somebody else's
# Seconds without a reading after which nobody knows of foreign blocks any more: the requests that held them are over.
FORGET_AFTER: Final = 30.0
STEP: Final = 0.01  # seconds: endings that follow within it are one, and take the time of the first


@dataclass(frozen=True, slots=True)
class Holding:
    """Blocks of all requests that run. `seen`: filled, by the output that was seen. `unseen`: charged to those that
    have started and show nothing; `silent`: to all that show nothing."""

    charged: int
    seen: int
    unseen: int
    silent: int


class Gauge:
    """The last reading, and what has happened since. Times are monotonic seconds."""

    __slots__ = (
        "_delay", "_foreign", "_freeing", "_held", "_held_at", "_promised", "_stale_after", "_surplus",
        "_unattributed", "_used", "read_at",
    )  # fmt: skip

    def __init__(self, period: float) -> None:
        """`period`: seconds between two readings."""
        self.read_at = float("-inf")  # the last reading that said what is in use
        self._stale_after = PERIODS * period
        self._unattributed = Blocks(0)  # at the last reading
        self._surplus = Blocks(0)  # at the last reading
        self._foreign = Blocks(0)  # unattributed when nothing was about to be freed
        self._used = Blocks(0)
        self._promised = 0
        self._freeing: deque[tuple[float, int]] = deque()
        self._delay = FIRST_DELAY
        self._held = 0  # blocks that ended and were not freed yet, at _held_at, and all that ended since
        self._held_at = self.read_at

    @property
    def used(self) -> Blocks:
        """Blocks in use at the last reading."""
        return self._used

    def restart(self) -> None:
        """Another engine begins: nothing of the old one is still to be freed."""
        self._freeing.clear()
        self._forget_sum()

    def read(self, used: Blocks, holding: Holding, now: float) -> None:
        """`used` blocks are in use, and `holding` is what the books hold at the same moment."""
        self._drop_old(now)
        self._measure_delay(used - holding.seen - holding.unseen, now)
        explained = holding.seen + self._still_freeing(now)
        unseen = min(holding.unseen, max(0, used - explained))
        self._used, self._promised, self.read_at = used, holding.charged - holding.seen - unseen, now
        self._unattributed = Blocks(max(0, used - explained - unseen))
        self._surplus = Blocks(max(0, used - explained - holding.silent))
        self._foreign = min(self._foreign, self._unattributed) if self._freeing else self._unattributed

    def promised(self, blocks: int) -> None:
        """`blocks` were admitted, or grown past their promise; below 0: so many of those never will be filled."""
        self._promised += blocks

    def ended(self, blocks: int, now: float) -> None:
        """`blocks` that were in the engine belong to nobody any more, and are about to be freed."""
        self._held += blocks
        if self._freeing and now - self._freeing[-1][0] < STEP:
            now, before = self._freeing.pop()
            blocks += before
        self._freeing.append((now, blocks))
        self._drop_old(now)

    def fresh(self, now: float) -> bool:
        """Whether there is a reading of at most two sampling periods ago."""
        return now - self.read_at <= self._stale_after

    def unattributed(self, now: float) -> Blocks:
        """Blocks in use that nobody in the books holds."""
        return self._unattributed if now - self.read_at <= FORGET_AFTER else Blocks(0)

    def surplus(self, now: float) -> Blocks:
        """Blocks in use that nobody in the books can hold."""
        return self._surplus if now - self.read_at <= FORGET_AFTER else Blocks(0)

    def free(self, usable: Blocks, charged: int, now: float) -> int:
        """F in blocks, when `charged` blocks are charged to what runs; negative where more is held than there is."""
        if now - self.read_at <= self._stale_after:
            by_gauge, by_books = self._used + self._promised, charged + self._unattributed
            return usable - (by_gauge if by_gauge > by_books else by_books)
        return usable - charged - self.unattributed(now) - self._still_freeing(now)

    def _still_freeing(self, now: float) -> int:
        if now - self._held_at >= STEP:
            self._held = sum([blocks for ended_at, blocks in self._freeing if now - ended_at < self._delay])
            self._held_at = now
        return self._held

    def _forget_sum(self) -> None:
        self._held_at = float("-inf")

    def _measure_delay(self, beyond: int, now: float) -> None:
        """`beyond`: blocks in use that no live request explains. As before something ended: all of that is freed."""
        if self._freeing and beyond <= self._foreign:
            self._delay = now - self._freeing[0][0]
            self._freeing.clear()
            self._forget_sum()

    def _drop_old(self, now: float) -> None:
        while self._freeing and now - self._freeing[0][0] > MAX_DELAY:
            self._freeing.popleft()
