"""The KV pools of one pod: one for each data-parallel rank that requests can be sent to, else one for all together.

Decides the free room F of each, the pressure, and which rank a request is for. Pure.

Invariants:

1. A request lives in one pool. Room is judged in the one with the most of it; pressure is that of the one with the
   least.
2. What waits is in `charged` and in `waiting`: F leaves it free, and is judged on what runs.
3. Where the engine does not tell its ranks apart, the gauge of each of several is missing: the ledger decides.

It does not know tenants, nor what a request costs.
"""

from __future__ import annotations

from typing import Final

from kvquota_api.amounts import Blocks
from kvquota_sidecar.ledger.asking import EngineSample, RankSample
from kvquota_sidecar.ledger.gauge import Gauge

NEVER: Final = float("-inf")


class Rank:
    """One pool. `charged`: blocks of what runs in it or waits for it; `waiting`: of those that wait.

    `place`: among the pools. `outgrown`: work in it has grown since its room was looked at last, and there was none.
    """

    __slots__ = ("charged", "gauge", "outgrown", "place", "waiting")

    def __init__(self, place: int, period: float) -> None:
        self.place = place
        self.gauge = Gauge(period)
        self.charged = 0
        self.waiting = 0
        self.outgrown = False

    def free(self, usable: Blocks, now: float) -> int:
        """F of this pool of `usable` blocks."""
        return self.gauge.free(usable, self.charged - self.waiting, now) - self.waiting

    def missing(self, usable: Blocks, now: float) -> int:
        """Blocks that are charged or in use beyond the pool, by the ledger: what has to be given back."""
        return self.charged + self.gauge.surplus(now) - usable


class Ranks:
    """All pools of the pod. `usable`: U of one of them. `measured`: blocks of one rank, with its null block.

    `heard_at`: the last reading that said anything, in monotonic seconds.
    """

    __slots__ = ("_numbers", "_period", "_preemptions", "_started_at", "each", "heard_at", "measured", "usable")

    def __init__(self, period: float) -> None:
        """`period`: seconds between two readings."""
        self.each: tuple[Rank, ...] = (Rank(0, period),)
        self.usable = Blocks(0)
        self.measured: Blocks | None = None
        self.heard_at = NEVER
        self._period = period
        self._started_at: float | None = None
        self._numbers: tuple[int, ...] = ()
        self._preemptions: int | None = None

    def part(self, count: int) -> None:
        """So many pools from now on; to be called before anything is in the books."""
        if count != len(self.each):
            self.each = tuple(Rank(place, self._period) for place in range(count))

    def number(self, place: int) -> int | None:
        """What a request names the rank by; None where there is one."""
        if len(self.each) == 1:
            return None
        return self._numbers[place] if place < len(self._numbers) else place

    def restarted(self, sample: EngineSample) -> bool:
        """Whether the sample is of another start of the engine than the readings before."""
        known = self._started_at is not None and sample.started_at is not None
        return known and sample.started_at != self._started_at

    def restart(self) -> None:
        """Another engine begins: it has freed everything, and counts from 0."""
        self._preemptions = 0
        for rank in self.each:
            rank.gauge.restart()

    def preempted(self, sample: EngineSample) -> int:
        """How often running requests have lost their blocks since the sample before; 0 where the engine does not say.

        To be called once for each sample.
        """
        before, self._preemptions = self._preemptions, sample.preemptions
        return 0 if before is None or sample.preemptions is None else max(0, sample.preemptions - before)

    def note(self, sample: EngineSample, now: float) -> None:
        """Take what the sample says of the engine as a whole."""
        self.heard_at = now
        self.measured = sample.blocks if sample.blocks is not None else self.measured
        self._started_at = sample.started_at if sample.started_at is not None else self._started_at
        self._numbers = tuple(each.rank for each in sample.ranks)

    def split(self, sample: EngineSample) -> tuple[RankSample, ...]:
        """What the sample says of each pool."""
        if len(self.each) == 1:
            return (RankSample(0, sample.used_blocks, sample.running, sample.waiting),)
        if len(sample.ranks) == len(self.each):
            return sample.ranks
        return tuple(RankSample(rank.place) for rank in self.each)

    def roomiest(self, now: float) -> tuple[Rank, int]:
        """The pool with the most room, and its F."""
        if len(self.each) == 1:
            return self.each[0], self.each[0].free(self.usable, now)
        rooms = [(rank.free(self.usable, now), -rank.place) for rank in self.each]
        free, place = max(rooms)
        return self.each[-place], free

    def free(self, now: float) -> int:
        """F of all pools together."""
        return sum([rank.free(self.usable, now) for rank in self.each])

    def pressure_percent(self, now: float) -> float:
        """1 - F/U in percent, of the pool with the least room; a pool of no blocks is full."""
        if len(self.each) == 1:
            least = self.each[0].free(self.usable, now)
        else:
            least = min([rank.free(self.usable, now) for rank in self.each])
        return 100 * (self.usable - least) / self.usable if self.usable else 100.0
