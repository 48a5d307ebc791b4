"""Blocks of a sequence in a group of chunked layers: like a sliding one, but a chunk begins at a block."""

import pytest

from kvquota_api.amounts import Tokens
from kvquota_api.memory.blocks import LayerGroup, blocks_for

CHUNKED = LayerGroup(kind="Chunked", block_tokens=16, window_tokens=100)


@pytest.mark.parametrize(
    ("length", "blocks"),
    [
        pytest.param(0, 0, id="an empty sequence holds nothing"),
        pytest.param(16, 1, id="a full block is one"),
        pytest.param(17, 2, id="one token more begins another"),
        pytest.param(5000, 7, id="beyond the window the window's tokens count, without a block more"),
    ],
)
def test_chunked_group_holds_its_window(length: int, blocks: int) -> None:
    assert blocks_for([CHUNKED], Tokens(length)) == blocks
