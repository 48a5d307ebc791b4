"""What the engine's gauge says, beside what the books say: the free room F, and what nobody in the books holds.

Decides F and `unattributed`. Pure.

Invariants:

1. Fresh: F = U − max(E + P, ΣC + unattributed). E is the gauge; P is what was promised and not filled at that reading,
   and everything admitted or grown past its promise since; of what finished since, what it filled. So what ended gives
   room at the next reading.
2. Stale or missing: F = U − ΣC − unattributed − what ended within the last measured freeing delay.
3. Filled is what was seen to be. A request that has started and shows nothing (unstreamed, or still before its first
   token) fills what else the gauge shows, up to its charge: it is in E, and in P it would count twice.
4. `unattributed` is what the gauge shows beyond what is filled, without what ended too shortly ago to be freed. It
   follows the gauge down, and is charged to nobody. FORGET_AFTER the last reading it is 0: only the ledger counts.
5. The memory is bounded: what ended is kept for MAX_DELAY, in steps of STEP.

It does not know tenants or requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from kvquota_api.amounts import Blocks
from kvquota_sidecar.ledger.asking import EngineSample

PERIODS: Final = 2  # sampling periods after which a gauge is stale: one reading may be lost
FIRST_DELAY: Final = 1.0  # seconds from an abort to the freed blocks, until it was measured; a busy engine's step
MAX_DELAY: Final = 5.0  # seconds: an abort frees in one step of the engine; what is held longer is somebody else's
# Seconds without a reading after which nobody knows of foreign blocks any more: the requests that held them are over.
FORGET_AFTER: Final = 30.0
STEP: Final = 0.01  # seconds: endings that follow within it are one, and take the time of the first


@dataclass(frozen=True, slots=True)
class Holding:
    """Blocks of all live requests. `seen`: filled, by the output that was seen. `unseen`: charged to those that have
    started and show nothing."""

    charged: int
    seen: int
    unseen: int


class Gauge:
    """The last reading, and what has happened since. Times are monotonic seconds."""

    def __init__(self, period: float) -> None:
        """`period`: seconds between two readings."""
        self._unattributed = Blocks(0)  # at the last reading
        self.measured: Blocks | None = None  # the engine's pool with its null block
        self.read_at: float | None = None  # the last reading that said what is in use
        self.heard_at = float("-inf")  # the last reading that said anything
        self._stale_after = PERIODS * period
        self._foreign = Blocks(0)  # unattributed when nothing was about to be freed
        self._used = Blocks(0)
        self._promised = 0
        self._started_at: float | None = None
        self._freeing: deque[tuple[float, int]] = deque()
        self._delay = FIRST_DELAY

    def restarted(self, sample: EngineSample) -> bool:
        """Whether the sample is of another start of the engine than the readings before."""
        known = self._started_at is not None and sample.started_at is not None
        return known and sample.started_at != self._started_at

    def read(self, sample: EngineSample, holding: Holding, now: float) -> None:
        """Take a reading, and what the books hold at the same moment."""
        if self.restarted(sample):
            self._freeing.clear()
        self.measured = sample.blocks if sample.blocks is not None else self.measured
        self.heard_at = now
        self._started_at = sample.started_at if sample.started_at is not None else self._started_at
        if sample.used_blocks is None:
            return
        self._drop_old(now)
        self._measure_delay(sample.used_blocks - holding.seen - holding.unseen, now)
        explained = holding.seen + self._still_freeing(now)
        unseen = min(holding.unseen, max(0, sample.used_blocks - explained))
        self._used, self._promised, self.read_at = sample.used_blocks, holding.charged - holding.seen - unseen, now
        self._unattributed = Blocks(max(0, self._used - explained - unseen))
        self._foreign = min(self._foreign, self._unattributed) if self._freeing else self._unattributed

    def promised(self, blocks: int) -> None:
        """`blocks` were admitted, or grown past their promise; below 0: so many of those never will be filled."""
        self._promised += blocks

    def ended(self, blocks: int, now: float) -> None:
        """`blocks` that were in the engine belong to nobody any more, and are about to be freed."""
        if self._freeing and now - self._freeing[-1][0] < STEP:
            now, before = self._freeing.pop()
            blocks += before
        self._freeing.append((now, blocks))
        self._drop_old(now)

    def fresh(self, now: float) -> bool:
        """Whether there is a reading of at most two sampling periods ago."""
        return self.read_at is not None and now - self.read_at <= self._stale_after

    def unattributed(self, now: float) -> Blocks:
        """Blocks in use that nobody in the books holds."""
        known = self.read_at is not None and now - self.read_at <= FORGET_AFTER
        return self._unattributed if known else Blocks(0)

    def free(self, usable: Blocks, charged: int, now: float) -> int:
        """F in blocks, when `charged` blocks are charged in all; negative where more is held than there is."""
        by_ledger = charged + self.unattributed(now)
        if self.fresh(now):
            return usable - max(self._used + self._promised, by_ledger)
        return usable - by_ledger - self._still_freeing(now)

    def _still_freeing(self, now: float) -> int:
        return sum(blocks for ended_at, blocks in self._freeing if now - ended_at < self._delay)

    def _measure_delay(self, beyond: int, now: float) -> None:
        """`beyond`: blocks in use that no live request explains. As before something ended: all of that is freed."""
        if self._freeing and beyond <= self._foreign:
            self._delay = now - self._freeing[0][0]
            self._freeing.clear()

    def _drop_old(self, now: float) -> None:
        while self._freeing and now - self._freeing[0][0] > MAX_DELAY:
            self._freeing.popleft()
