"""An engine whose metrics are gone: for how long its last ones are believed."""

import pytest

from bookkeeping import admit, open_books, sample, share
from kvquota_api.usage import EngineUsage, PoolUsage
from kvquota_sidecar.engines.fetching import EngineUnavailableError
from kvquota_sidecar.engines.watching import EngineWatch
from kvquota_sidecar.ledger.asking import EngineSample
from kvquota_sidecar.ledger.books import Books
from kvquota_sidecar.telemetry.tally import Tally
from sidecar_rig import ManualClock


class Sampler:
    """Says what the test tells it to."""

    rest_seconds = 0.0

    def __init__(self) -> None:
        self.says: EngineSample | EngineUnavailableError | None = sample(used=3, blocks=100)

    async def sample(self) -> EngineSample | None:
        if isinstance(self.says, EngineUnavailableError):
            raise self.says
        return self.says


def whole(age: float) -> EngineUsage:
    return EngineUsage(state="Ready", blocks=100, block_tokens=16, used_blocks=3, running=0, waiting=0, age_seconds=age)


@pytest.mark.parametrize(
    ("period", "last"),
    [pytest.param(1.0, 10.0, id="ten seconds"), pytest.param(3.0, 15.0, id="five periods, where that is longer")],
)
async def test_the_last_numbers_are_told_for_a_while_and_then_are_missing(period: float, last: float) -> None:
    sampler, clock = Sampler(), ManualClock()
    watch = EngineWatch(sampler, lambda _: None, Tally(), clock, period)
    await watch.take()
    sampler.says = None
    await watch.take()
    clock.now += last
    assert watch.usage() == whole(age=last)
    clock.now += 0.1
    assert (watch.usage(), watch.state) == (EngineUsage(state="Unknown"), "Ready")
    sampler.says = EngineUnavailableError("it is gone")
    await watch.take()
    assert watch.usage() == EngineUsage(state="Down")
    sampler.says = sample(used=3, blocks=100)
    await watch.take()
    assert watch.usage() == whole(age=0.0)


async def test_an_engine_that_never_had_metrics_is_ready() -> None:
    sampler = Sampler()
    sampler.says = None
    watch = EngineWatch(sampler, lambda _: None, Tally(), ManualClock(), 1.0)
    await watch.take()
    assert watch.usage() == EngineUsage(state="Ready")


def told(books: Books, now: float) -> tuple[int, int, bool]:
    pool = books.pool_usage(now)
    assert isinstance(pool, PoolUsage)
    return pool.free, pool.unattributed, pool.gauge_is_fresh


def test_what_nobody_holds_is_forgotten_half_a_minute_after_the_last_reading() -> None:
    books = open_books(share())
    books.observe(sample(used=300), 0.0)
    admit(books, "search", 100)
    assert told(books, 2.0) == (600, 300, True)
    assert told(books, 30.0) == (600, 300, False)
    assert told(books, 30.1) == (900, 0, False)
    books.observe(sample(used=300, waiting=1), 40.0)
    assert told(books, 40.0) == (600, 300, True)


def test_without_a_reading_the_report_says_that_the_ledger_counts_alone() -> None:
    assert told(open_books(share()), 0.0) == (1000, 0, True)
    assert told(open_books(share()), 2.1) == (1000, 0, False)
