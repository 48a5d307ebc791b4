"""How a status writes a part of a card."""

import pytest

from kvquota_operator.reconcile.amounts import memory_quantity


@pytest.mark.parametrize(
    ("size", "text"),
    [
        pytest.param(36 * 2**30, "36Gi", id="whole GiB"),
        pytest.param(1_234_803_097, "1177Mi", id="any number of bytes, rounded down to MiB"),
        pytest.param(16_060_522_496, "15316Mi", id="the weights of a model of 8 billion parameters"),
        pytest.param(2**30 - 1, "1023Mi", id="a byte less than a GiB"),
        pytest.param(2**20, "1Mi", id="the grain itself"),
        pytest.param(2**20 - 1, "1048575", id="less than the grain, in bytes"),
        pytest.param(512 * 1024, "512Ki", id="less than the grain, in KiB"),
        pytest.param(0, "0", id="nothing"),
    ],
)
def test_a_part_of_a_card_is_whole_mib(size: int, text: str) -> None:
    assert memory_quantity(size) == text
