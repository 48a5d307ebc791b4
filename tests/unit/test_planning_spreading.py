"""A limit over all pods together, spread over them."""

import pytest

from kvquota_operator.planning.spreading import filled, pods_served


@pytest.mark.parametrize(
    ("total", "rooms", "parts"),
    [
        pytest.param(12, (100, 100, 100), (4, 4, 4), id="equal parts"),
        pytest.param(14, (100, 100, 100), (5, 5, 4), id="the remainder goes to the first"),
        pytest.param(2, (100, 100, 100), (1, 1, 0), id="less than one each"),
        pytest.param(0, (100, 100), (0, 0), id="nothing to give"),
        pytest.param(30, (5, 100, 100), (5, 13, 12), id="what a small pod has no room for goes to the others"),
        pytest.param(30, (5, 11, 100), (5, 11, 14), id="a second pod that is full then hands on as well"),
        pytest.param(500, (5, 11, 100), (5, 11, 100), id="never more than the pods have room for"),
        pytest.param(7, (), (), id="no pods, no parts"),
    ],
)
def test_parts_of_a_total(total, rooms, parts):
    assert filled(total, (rooms,)) == parts


@pytest.mark.parametrize(
    ("total", "least", "pods", "served"),
    [
        pytest.param(100, 10, 4, 4, id="all where each gets enough"),
        pytest.param(39, 10, 4, 3, id="fewer where the parts would be too small"),
        pytest.param(9, 10, 4, 1, id="one even where the total is less than enough"),
        pytest.param(0, 10, 4, 1, id="one where there is nothing"),
    ],
)
def test_pods_that_get_a_part(total, least, pods, served):
    assert pods_served(total, least, pods) == served


def test_a_total_beyond_any_card_is_spread_too() -> None:
    most = 2**63 - 1
    assert filled(3 * most, [[most] * 2, [2 * most] * 2]) == (most + most // 2 + 1, most + most // 2)
