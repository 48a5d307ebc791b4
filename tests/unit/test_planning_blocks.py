"""How many blocks a share is, and how many an engine can hand out."""

import pytest

from kvquota_api.amounts import Blocks
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import KvPlan
from kvquota_api.quota import Share
from kvquota_operator.planning.blocks import blocks_of, usable_blocks

KV = KvPlan(
    cap_blocks=18_432,
    null_blocks=1,
    block_tokens=16,
    bytes_per_block=2 * 2**20,
    max_model_len=32_768,
    groups=(LayerGroup(kind="Full", block_tokens=16),),
)


@pytest.mark.parametrize(
    ("share", "blocks"),
    [
        pytest.param(Share(percent=40), 7_372, id="40 percent of 18,431 is 7,372.4, rounded down"),
        pytest.param(Share(percent=60), 11_058, id="60 percent of 18,431 is 11,058.6, rounded down"),
        pytest.param(Share(percent="2.5"), 460, id="a percent may have decimals"),
        pytest.param(Share(percent=0), 0, id="0 percent is nothing"),
        pytest.param(Share(percent=100), 18_431, id="100 percent is the whole"),
        pytest.param(Share(bytes="8Gi"), 4_096, id="8 GiB are 4,096 blocks of 2 MiB"),
        pytest.param(Share(bytes=2 * 2**20 * 5 - 1), 4, id="bytes are rounded down to whole blocks"),
        pytest.param(Share(tokens=20_000), 1_250, id="20,000 tokens are 1,250 blocks of 16"),
        pytest.param(Share(tokens=20_001), 1_251, id="tokens are rounded up to whole blocks"),
        pytest.param(Share(tokens=0), 0, id="no tokens are no blocks"),
    ],
)
def test_a_share_is_worth(share, blocks):
    assert blocks_of(share, Blocks(18_431), KV) == blocks


@pytest.mark.parametrize(
    ("measured", "usable"),
    [
        pytest.param(None, 18_431, id="as planned while the engine has not said"),
        pytest.param(18_432, 18_431, id="as planned where the engine came up as planned"),
        pytest.param(9_000, 8_999, id="what the engine has where that is less"),
        pytest.param(20_000, 18_431, id="the cap where the engine has more"),
        pytest.param(0, 0, id="nothing, never less, where the engine says that it has nothing"),
    ],
)
def test_an_engine_can_hand_out(measured, usable):
    assert usable_blocks(KV, measured) == usable
