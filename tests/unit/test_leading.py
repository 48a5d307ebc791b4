"""What one replica makes of the Lease: the next step, and whether it may write."""

import pytest

from kvquota_operator.leading import (
    ABSENT,
    LONGEST_LEASE_SECONDS,
    NOBODY,
    Belief,
    Look,
    Make,
    Record,
    Rest,
    Step,
    Timing,
    Write,
    failed,
    looked,
    next_step,
    resigned,
    wrote,
)

TIMING = Timing(lease_seconds=10, deadline_seconds=7, renew_seconds=2, look_seconds=1, retry_seconds=0.5)
ME, OTHER = "me", "other"
HELD = Record("5", OTHER, 10, 3)
MINE = Record("6", ME, 10, 4)


def seen(record: Record, *, at: float, by: Belief | None = None) -> Belief:
    return looked(by or Belief(ME), record, at, TIMING)


def leading(*, since: float, answered: float | None = None) -> Belief:
    return wrote(Belief(ME), MINE, since, since if answered is None else answered, TIMING)


@pytest.mark.parametrize(
    ("belief", "now", "step"),
    [
        pytest.param(Belief(ME), 100.0, Look(), id="who knows nothing looks"),
        pytest.param(seen(Record(ABSENT), at=100), 100.0, Make(), id="a Lease that is not there is made"),
        pytest.param(
            seen(Record("1", NOBODY, 10, 0), at=100), 109.9, Look(), id="a new Lease is not free: its leader may live"
        ),
        pytest.param(
            seen(Record("1", NOBODY, 10, 0), at=100),
            110.0,
            Write(Record("1", NOBODY, 10, 0)),
            id="a new Lease is free after as long as one that was held",
        ),
        pytest.param(
            seen(Record("9", NOBODY, 10, 4), at=100),
            100.0,
            Write(Record("9", NOBODY, 10, 4)),
            id="a Lease that was given back is free at once",
        ),
        pytest.param(seen(HELD, at=100), 100.0, Rest(101.0), id="who stands by rests between two looks"),
        pytest.param(seen(HELD, at=100), 101.0, Look(), id="and looks again"),
        pytest.param(seen(HELD, at=100), 110.0, Write(HELD), id="a record that stays the same is taken over"),
        pytest.param(
            seen(HELD, at=109.5, by=seen(HELD, at=100)), 109.6, Rest(110.0), id="it is taken over as soon as it is free"
        ),
        pytest.param(
            seen(Record("7", OTHER, 10, 3), at=109, by=seen(HELD, at=100)),
            110.0,
            Look(),
            id="a record that was renewed is waited for anew",
        ),
        pytest.param(
            seen(Record("5", OTHER, 30, 3), at=100), 129.9, Look(), id="a record may ask to be kept for longer"
        ),
        pytest.param(
            seen(Record("5", OTHER, 9e9, 3), at=100),
            100 + LONGEST_LEASE_SECONDS,
            Write(Record("5", OTHER, 9e9, 3)),
            id="but not for ever",
        ),
        pytest.param(seen(MINE, at=100), 100.0, Write(MINE), id="who finds itself after a lost answer renews at once"),
        pytest.param(leading(since=100), 100.5, Rest(102.0), id="a leader rests between two renewals"),
        pytest.param(leading(since=100), 102.0, Write(MINE), id="and renews without a look"),
        pytest.param(
            failed(leading(since=100), 106.8, TIMING), 106.9, Rest(107.0), id="its rest ends with its right to write"
        ),
        pytest.param(
            failed(leading(since=100), 106.8, TIMING), 107.1, Rest(107.3), id="after which it rests like any other"
        ),
        pytest.param(failed(leading(since=100), 102, TIMING), 102.5, Look(), id="after a failure it looks again"),
    ],
)
def test_the_next_step(belief: Belief, now: float, step: Step) -> None:
    assert next_step(belief, now, TIMING) == step


@pytest.mark.parametrize(
    ("belief", "now", "may"),
    [
        pytest.param(Belief(ME), 100.0, False, id="not before it is elected"),
        pytest.param(seen(MINE, at=100), 100.0, False, id="not by finding itself in the Lease: when did it write?"),
        pytest.param(leading(since=100), 106.9, True, id="until the deadline after it sent its last renewal"),
        pytest.param(leading(since=100), 107.0, False, id="not at the deadline"),
        pytest.param(leading(since=100, answered=106), 106.5, True, id="a late answer is worth less"),
        pytest.param(leading(since=100, answered=108), 108.0, False, id="one after the deadline is worth nothing"),
        pytest.param(failed(leading(since=100), 103, TIMING), 104.0, True, id="a failed renewal takes nothing away"),
        pytest.param(seen(HELD, at=103, by=leading(since=100)), 103.0, False, id="not where another one holds it"),
        pytest.param(seen(Record(), at=103, by=leading(since=100)), 103.0, False, id="not where it was deleted"),
        pytest.param(seen(MINE, at=103, by=leading(since=100)), 103.0, True, id="still, where a look finds itself"),
        pytest.param(resigned(leading(since=100)), 101.0, False, id="not after it stopped by itself"),
    ],
)
def test_whether_it_may_write(belief: Belief, now: float, may: bool) -> None:
    assert belief.may_write(now) is may
