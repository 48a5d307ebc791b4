"""Where the parts of one total should be, by what is asked for on each pod."""

import pytest

from kvquota_operator.planning.following import Place, targets

TOTAL = 1_000
ENDLESS = 10**9


def idle(has: int, *, held: int | None = None, room: int = TOTAL, least: int = 1) -> Place:
    """A pod on which nothing runs."""
    return busy(has, 0, held=held, room=room, least=least)


def busy(has: int, uses: int, *, asks: int = 0, held: int | None = None, room: int = TOTAL, least: int = 1) -> Place:
    return Place(room, max(has, uses) if held is None else held, has, least, uses, asks)


def wanting(has: int, asks: int = ENDLESS, *, held: int | None = None, room: int = TOTAL) -> Place:
    """A pod that is full and refuses more."""
    return busy(has, has, asks=asks, held=held, room=room)


def silent(has: int, *, held: int | None = None, room: int = TOTAL) -> Place:
    return idle(has, held=held, room=room)._replace(uses=None)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param((idle(0), idle(0), idle(0)), (334, 333, 333), id="at first: equal parts"),
        pytest.param((silent(0), silent(0)), (500, 500), id="where nobody knows anything: equal parts"),
        pytest.param((idle(0), idle(0, room=200)), (800, 200), id="what a small pod has no room for: for the others"),
        pytest.param((idle(500), idle(500), idle(0)), (334, 333, 0), id="for a new pod an equal part is taken"),
        pytest.param((idle(500), silent(500), idle(0)), (167, 500, 0), id="but not what a silent pod has"),
        pytest.param((wanting(500), wanting(500), idle(0)), (334, 333, 0), id="though all are full"),
        pytest.param((idle(700), idle(700)), (500, 500), id="more is given than there is: all alike"),
        pytest.param((idle(900), idle(400)), (600, 400), id="the largest first"),
        pytest.param((silent(900), idle(400)), (875, 125), id="but where nobody knows whether it is used"),
        pytest.param((idle(400), idle(400)), (500, 500), id="less is given than there is: all alike"),
        pytest.param((idle(200), idle(600)), (400, 600), id="the smallest first"),
    ],
)
def test_without_demand(pods: tuple[Place, ...], expected: tuple[int, ...]) -> None:
    assert targets(TOTAL, len(pods), pods) == expected


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param((busy(500, 490), busy(500, 10)), (500, 500), id="what finds room moves nothing"),
        pytest.param((busy(800, 10), busy(200, 190)), (800, 200), id="nor does it where parts are not equal"),
        pytest.param((wanting(500), idle(500)), (500, 125), id="an idle pod keeps a fourth of an equal part"),
        pytest.param((wanting(500), busy(500, 0, least=180)), (500, 180), id="or its longest request"),
        pytest.param((wanting(500), busy(500, 100)), (500, 200), id="a busy one twice what it uses"),
        pytest.param((wanting(500), busy(500, 240)), (500, 500), id="less than a step is not worth it"),
        pytest.param((wanting(500, 580), idle(500)), (500, 420), id="no more is taken than is asked for"),
        pytest.param((wanting(500, 550), idle(500)), (500, 500), id="and nothing where that is less than a step"),
        pytest.param((busy(500, 430, asks=900), idle(500)), (500, 500), id="or where there is room for a step now"),
        pytest.param((busy(500, 100, asks=900), wanting(500)), (500, 500), id="what is asked for is kept meanwhile"),
        pytest.param((wanting(500), wanting(500)), (500, 500), id="all want more: nothing moves"),
        pytest.param((wanting(800), wanting(200)), (500, 200), id="who has more than an equal part gives to who wants"),
        pytest.param((busy(800, 700), wanting(200)), (500, 200), id="although it needs it"),
        pytest.param((wanting(500), silent(500)), (500, 500), id="of a silent pod nothing is taken"),
        pytest.param((wanting(333), silent(334), idle(333)), (333, 334, 83), id="but of the others"),
        pytest.param((wanting(500, room=500), idle(500)), (500, 500), id="a pod that has no room is given nothing"),
        pytest.param((wanting(400, 460), *(idle(120),) * 5), (400, 100, 100, 100, 120, 120), id="few give a step"),
    ],
)
def test_what_is_taken(pods: tuple[Place, ...], expected: tuple[int, ...]) -> None:
    assert targets(TOTAL, len(pods), pods) == expected


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param((wanting(500), idle(125, held=500)), (875, 125), id="what is on its way goes to who wants it"),
        pytest.param((wanting(500), idle(125)), (875, 125), id="and so does what has come"),
        pytest.param((wanting(500, 600), idle(125)), (600, 400), id="what nobody asks for: to the smallest"),
        pytest.param((idle(500), idle(125, held=500)), (875, 125), id="not back to where it was taken from"),
        pytest.param((idle(600, room=600), idle(125, held=500)), (600, 400), id="but where nobody else has room"),
        pytest.param((wanting(500), wanting(125, held=500)), (500, 500), id="or where it is asked for again"),
        pytest.param((wanting(500), busy(125, 300, held=500)), (875, 125), id="also when work has yet to end"),
        pytest.param((wanting(400), idle(300), idle(200, held=300)), (500, 300, 200), id="one move at a time"),
        pytest.param((idle(0), idle(700), idle(100, held=300)), (200, 700, 100), id="a new pod has its floor of that"),
        pytest.param((idle(0), idle(900), idle(50, held=100)), (50, 334, 50), id="or more is taken for it"),
        pytest.param(
            (wanting(400), idle(300), silent(200, held=300)), (400, 83, 200), id="what is stuck is not on its way"
        ),
        pytest.param((wanting(400), busy(300, 500), idle(200)), (500, 300, 200), id="nothing while too much is held"),
    ],
)
def test_what_was_taken_and_is_not_given_yet(pods: tuple[Place, ...], expected: tuple[int, ...]) -> None:
    assert targets(TOTAL, len(pods), pods) == expected
