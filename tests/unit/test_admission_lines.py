"""What config and pool draw together: U, R, softs in force, shed thresholds, context, and the rung."""

from __future__ import annotations

import pytest

from bookkeeping import config, share
from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.pod_config import Ladder, Threshold
from kvquota_api.usage import Rung
from kvquota_sidecar.admission.rung import next_rung
from kvquota_sidecar.admission.thresholds import Lines, context_limit, draw


def test_the_lines_of_the_example() -> None:
    example = config(
        share("search", priority=100, soft_blocks=7372), share("batch", priority=10, soft_blocks=1250), usable=18_431
    )
    assert draw(example, Blocks(18_432)) == Lines(
        usable=Blocks(18_431),
        reserve=Blocks(3686),
        softs={"inference/search": Blocks(7372), "inference/batch": Blocks(1250)},
        soft_sum=Blocks(8622),
        sheds={"inference/search": 92.0, "inference/batch": 85.0},
    )


@pytest.mark.parametrize(
    ("softs", "expected"),
    [
        pytest.param((800, 50), (800, 50), id="a sum at shed.enterPercent of the pool is left alone"),
        pytest.param((800, 51), (799, 50), id="one block more is scaled, and rounded down"),
        pytest.param((1000, 0), (850, 0), id="one tenant is cut to the line"),
        pytest.param((0, 0), (0, 0), id="nothing is nothing"),
    ],
)
def test_softs_in_force(softs: tuple[int, int], expected: tuple[int, int]) -> None:
    lines = draw(config(share("search", soft_blocks=softs[0]), share("batch", soft_blocks=softs[1])), None)
    assert tuple(lines.softs.values()) == expected
    assert lines.soft_sum == sum(expected) <= 850


def test_a_soft_in_shadow_is_none_and_scales_nobody_down() -> None:
    lines = draw(config(share("search", soft_blocks=850), share("dark", soft_blocks=900, enforcement="Shadow")), None)
    assert dict(lines.softs) == {"inference/search": 850, "inference/dark": 0}


@pytest.mark.parametrize(
    ("priorities", "expected"),
    [
        pytest.param((5, 5), (85.0, 85.0), id="all equal: shed.enterPercent"),
        pytest.param((0, 1000), (85.0, 92.0), id="the two ends"),
        pytest.param((0, 500, 1000), (85.0, 88.5, 92.0), id="linear between"),
        pytest.param((10,), (85.0,), id="one tenant alone: shed.enterPercent"),
        pytest.param((), (), id="nobody"),
    ],
)
def test_shed_thresholds(priorities: tuple[int, ...], expected: tuple[float, ...]) -> None:
    shares = [share(f"t-{place}", priority=each) for place, each in enumerate(priorities)]
    assert tuple(draw(config(*shares), None).sheds.values()) == expected


def test_a_reserve_of_all_lends_nothing_that_is_claimed() -> None:
    lines = draw(config(share(), ladder=Ladder(guarantee_reserve_percent=100)), None)
    assert lines.reserve == lines.usable == 1000


@pytest.mark.parametrize(
    ("own", "enforcement", "expected"),
    [
        pytest.param(None, "Enforce", 1000, id="no limit of its own: the model's"),
        pytest.param(600, "Enforce", 600, id="its own where it is shorter"),
        pytest.param(2000, "Enforce", 1000, id="the model's where that is shorter"),
        pytest.param(600, "Shadow", 1000, id="its own is not enforced in Shadow"),
    ],
)
def test_context_limit(own: int | None, enforcement: str, expected: int) -> None:
    assert context_limit(share(max_context_tokens=own, enforcement=enforcement), Tokens(1000)) == expected


LADDER = Ladder(
    min_dwell_seconds=10,
    shed=Threshold(enter_percent=85, exit_percent=80),
    evict=Threshold(enter_percent=92, exit_percent=86),
)


@pytest.mark.parametrize(
    ("rung", "lasted", "pressure", "expected"),
    [
        pytest.param("Normal", 0, 84.9, "Normal", id="below every entry"),
        pytest.param("Normal", 0, 85, "Shed", id="shed is entered at its entry, at once"),
        pytest.param("Normal", 0, 92, "Evict", id="evict is entered from below in one step"),
        pytest.param("Shed", 0, 92, "Evict", id="and from shed at once"),
        pytest.param("Shed", 9.9, 10, "Shed", id="no rung is left before the dwell time"),
        pytest.param("Shed", 10, 80, "Shed", id="nor at its exit"),
        pytest.param("Shed", 10, 79.9, "Normal", id="but below it"),
        pytest.param("Evict", 9.9, 10, "Evict", id="evict is not left before the dwell time"),
        pytest.param("Evict", 10, 86, "Evict", id="nor at its exit"),
        pytest.param("Evict", 10, 85.9, "Shed", id="below it shed follows while its own exit is not passed"),
        pytest.param("Evict", 10, 79.9, "Normal", id="else nothing"),
    ],
)
def test_next_rung(rung: Rung, lasted: float, pressure: float, expected: Rung) -> None:
    assert next_rung(rung, lasted, pressure, LADDER) == expected
