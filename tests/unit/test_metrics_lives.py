"""Which life of the engine a reading is of."""

import pytest

from kvquota_sidecar.engines.lives import Lives
from kvquota_sidecar.engines.reading import Marks

NOW = 5000.0  # when the first reading is taken; every next one is a second later


def starts(*when: float, work: float | None = None) -> Marks:
    return Marks(starts=frozenset(when), work=work)


def built(*constants: float, work: float | None = None) -> Marks:
    return Marks(constants=constants, work=work)


def did(work: float) -> Marks:
    return Marks(work=work)


SILENT = Marks()
CASES: dict[str, tuple[list[Marks], list[float | None]]] = {
    "one process that goes on": ([starts(100), starts(100)], [100, 100]),
    "one process that starts again": ([starts(100), starts(200), starts(200)], [100, 200, 200]),
    "one process that starts again, and had done less before": (
        [starts(100, work=1), starts(200, work=9)],
        [100, 200],
    ),
    "a start that goes on is believed though a counter has fallen": (
        [starts(100, work=9), starts(100, work=1)],
        [100, 100],
    ),
    "several processes: the engine is as old as the oldest": ([starts(100, 101), starts(101, 100)], [100, 100]),
    "several processes: one of them starts again": ([starts(100, 101), starts(100, 200)], [100, 100]),
    "several processes: the oldest one starts again": ([starts(100, 101), starts(200, 101)], [100, 100]),
    "several processes: one after the other, never all of them": (
        [starts(100, 101), starts(100, 200), starts(200, 300), starts(400, 401)],
        [100, 100, 100, 400],
    ),
    "several processes: now one answers, now the other": ([starts(101), starts(100), starts(101)], [101, 101, 101]),
    "several processes: all of them start again": ([starts(100, 101), starts(200, 201)], [100, 200]),
    "a start that vanishes, and comes back": ([starts(100), SILENT, starts(100)], [100, 100, 100]),
    "a start that vanishes, with work that goes on": ([starts(100, work=5), did(6)], [100, 100]),
    "a start that vanishes, with work that is undone": ([starts(100, work=5), did(1), did(2)], [100, NOW + 1, NOW + 1]),
    "a start that is told at last": ([did(5), starts(100, work=6), starts(100, work=7)], [NOW, NOW, NOW]),
    "a start that is told at last, and then another": (
        [did(5), starts(100, work=6), starts(200, work=7)],
        [NOW, NOW, 200],
    ),
    "a start that is told again in another life": (
        [starts(100, work=5), did(1), starts(200, work=2)],
        [100, NOW + 1, NOW + 1],
    ),
    "work that grows": ([did(5), did(5), did(6)], [NOW, NOW, NOW]),
    "work that is undone": ([did(5), did(4), did(5)], [NOW, NOW + 1, NOW + 1]),
    "work that is not told for a while": ([did(5), SILENT, did(6)], [NOW, NOW, NOW]),
    "work that is not told for a while, and undone then": ([did(5), SILENT, did(4)], [NOW, NOW, NOW + 2]),
    "an engine built otherwise": ([built(21.5, work=1), built(22.5, work=2)], [NOW, NOW + 1]),
    "an engine built otherwise, which it said before a silence": (
        [built(21.5), did(2), built(22.5)],
        [NOW, NOW, NOW + 2],
    ),
    "an engine built alike": ([built(21.5, work=1), built(21.5, work=2)], [NOW, NOW]),
    "an engine that does not say how it was built any more": ([built(21.5), did(2), built(21.5)], [NOW, NOW, NOW]),
    "an engine that says nothing": ([SILENT, SILENT], [None, None]),
    "an engine that says something late": ([SILENT, did(1)], [None, NOW + 1]),
}


@pytest.mark.parametrize(("marks", "names"), CASES.values(), ids=CASES)
def test_a_life_has_one_name_and_the_next_one_another(marks: list[Marks], names: list[float | None]) -> None:
    now = NOW
    lives = Lives(lambda: now)
    told = []
    for each in marks:
        told.append(lives.name(each))
        now += 1
    assert told == names
