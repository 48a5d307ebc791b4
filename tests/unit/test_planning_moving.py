"""How far parts move towards their targets while some pods still hold what they had."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvquota_operator.planning.moving import Part, moved


def parts(*amounts: tuple[int, ...]) -> list[Part]:
    """Targets, what is held, and what was given last: as much, where nothing is said of it."""
    return [Part(each[0], each[1], each[-1]) for each in amounts]


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param(((60, 0), (40, 0)), (60, 40), id="nobody holds anything: all at once"),
        pytest.param(((50, 100), (50, 0)), (50, 0), id="what is taken from one is not free yet"),
        pytest.param(((50, 50), (50, 0)), (50, 50), id="it is free once it is let go of"),
        pytest.param(((50, 70), (50, 0)), (50, 30), id="as far as it is let go of"),
        pytest.param(((50, 95), (50, 0)), (50, 0), id="no crumbs"),
        pytest.param(((50, 50), (50, 42), (0, 0)), (50, 50, 0), id="the last piece may be small"),
        pytest.param(((40, 70), (40, 0), (20, 0)), (40, 30, 0), id="the first that lacks comes first"),
        pytest.param(((50, 80, 10), (50, 0)), (50, 20), id="a pod has back at once what it may still hold"),
        pytest.param(((60, 100), (40, 100)), (60, 40), id="more is held than there is: who has more shrinks"),
        pytest.param(((60, 20), (40, 100)), (20, 40), id="more is held than there is: who has less waits"),
        pytest.param(((60, 90, 20), (40, 100)), (20, 40), id="and is given nothing back that it may have let go of"),
        pytest.param((), (), id="no pods"),
    ],
)
def test_parts(pods: tuple[tuple[int, ...], ...], expected: tuple[int, ...]) -> None:
    assert moved(parts(*pods), 100, least=10) == expected


amounts = st.integers(0, 1_000)
pods = st.lists(
    st.tuples(amounts, amounts, amounts).map(lambda each: Part(each[0], max(each[1:]), each[2])), max_size=8
)


@given(pods, st.integers(1, 300), amounts)
def test_together_they_never_hold_more_than_there_is_or_than_they_do(pods: list[Part], least: int, spare: int) -> None:
    total = sum(pod.target for pod in pods) + spare
    found = moved(pods, total, least)
    held = [max(part, pod.held) for part, pod in zip(found, pods, strict=True)]
    assert sum(held) <= max(total, sum(pod.held for pod in pods))
    assert all(part <= pod.target for part, pod in zip(found, pods, strict=True))
    then = [Part(pod.target, most, part) for pod, most, part in zip(pods, held, found, strict=True)]
    assert moved(then, total, least) == found, "decided again it is the same"


@given(pods)
def test_while_more_is_held_than_there_is_nobody_is_given_more(pods: list[Part]) -> None:
    total = sum(pod.target for pod in pods)
    if sum(pod.held for pod in pods) > total:
        assert all(part <= pod.given for part, pod in zip(moved(pods, total, 1), pods, strict=True))


@given(pods, st.integers(1, 300))
def test_when_all_have_let_go_the_parts_are_the_targets(pods: list[Part], least: int) -> None:
    then = [Part(pod.target, min(pod.target, pod.held), min(pod.target, pod.given)) for pod in pods]
    assert moved(then, sum(pod.target for pod in pods), least) == tuple(pod.target for pod in pods)
