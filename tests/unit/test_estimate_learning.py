"""What is learnt from finished requests: the length of outputs."""

from __future__ import annotations

import pytest

from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.outputs import WINDOW, Outputs


def outputs(*, finished: tuple[int, ...] = (), ended: tuple[int, ...] = ()) -> Outputs:
    made = Outputs()
    for each in finished:
        made.finished(Tokens(each))
    for each in ended:
        made.ended(Tokens(each))
    return made


@pytest.mark.parametrize(
    ("finished", "ended", "expected"),
    [
        pytest.param((), (), None, id="nobody can say before one finished"),
        pytest.param((), (100,) * 30, None, id="nor when all were ended"),
        pytest.param((4,) * 19, (), None, id="nor before twenty finished"),
        pytest.param((4,) * 19, (4,) * 100, None, id="those that were ended do not stand in for them"),
        pytest.param((7,) * 20, (), 7, id="twenty finished outputs are enough"),
        pytest.param(tuple(range(1, 21)), (), 18, id="eighteen of twenty are at most the eighteenth"),
        pytest.param(tuple(range(1, 101)), (), 90, id="ninety of a hundred"),
        pytest.param((10,) * 18 + (50,) * 2, (), 10, id="two long ones of twenty are beyond"),
        pytest.param((10,) * 20, (10,) * 20, None, id="half of them might have gone on for ever"),
        pytest.param((10,) * 20 + (90,), (20,) * 20, 90, id="what was ended early leans on the longer finished ones"),
        pytest.param(tuple(range(1, 21)), (0,) * 50, 18, id="ended before any output: the finished ones decide"),
        pytest.param((10,) * 95, (5,) * 5, 10, id="a few that ended early change nothing"),
    ],
)
def test_the_90th_percentile(finished: tuple[int, ...], ended: tuple[int, ...], expected: int | None) -> None:
    assert outputs(finished=finished, ended=ended).p90() == expected


def test_only_the_last_outputs_count_and_are_kept() -> None:
    made = outputs(finished=(1000,) * WINDOW)
    assert made.p90() == 1000
    for _ in range(WINDOW):
        made.finished(Tokens(5))
    assert made.p90() == 5
    assert len(made._window) == WINDOW
