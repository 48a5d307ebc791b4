"""Blocks that a sequence holds."""

import msgspec
import pytest

from kvquota_api.amounts import Tokens
from kvquota_api.memory.blocks import LayerGroup, blocks_for

FULL = LayerGroup(kind="Full", block_tokens=16)
SLIDING = LayerGroup(kind="Sliding", block_tokens=16, window_tokens=9215)  # window 1024, 8192 tokens in flight
STATE = LayerGroup(kind="State", block_tokens=16, fixed_blocks=2)


@pytest.mark.parametrize(
    ("groups", "length", "blocks"),
    [
        pytest.param((FULL,), 0, 0, id="nothing asked, nothing held"),
        pytest.param((FULL,), -1, 0, id="less than nothing is nothing"),
        pytest.param((FULL,), 1, 1, id="one token takes a block"),
        pytest.param((FULL,), 16, 1, id="a full block"),
        pytest.param((FULL,), 17, 2, id="one token more"),
        pytest.param((SLIDING,), 1, 2, id="a sliding group holds one more"),
        pytest.param((SLIDING,), 9215, 577, id="a sliding group at its window"),
        pytest.param((SLIDING,), 100_000, 577, id="a sliding group holds no more than its window"),
        pytest.param((STATE,), 1, 2, id="a state is there from the first token"),
        pytest.param((STATE,), 100_000, 2, id="a state does not grow"),
        pytest.param((FULL, SLIDING, STATE), 32, 2 + 3 + 2, id="groups add up"),
        pytest.param((), 32, 0, id="no groups hold nothing"),
    ],
)
def test_holds(groups: tuple[LayerGroup, ...], length: int, blocks: int) -> None:
    assert blocks_for(groups, Tokens(length)) == blocks


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(b'{"kind": "Full", "blockTokens": 0}', id="a block of nothing"),
        pytest.param(b'{"kind": "Full", "blockTokens": 16, "windowTokens": -1}', id="a window below nothing"),
        pytest.param(b'{"kind": "Full", "blockTokens": 16, "fixedBlocks": -1}', id="a state below nothing"),
        pytest.param(b'{"kind": "Latent", "blockTokens": 16}', id="a kind that is not known"),
        pytest.param(b'{"kind": "Full"}', id="no block size"),
    ],
)
def test_a_document_cannot_hold_a_group_that_makes_no_sense(document: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(document, type=LayerGroup)
