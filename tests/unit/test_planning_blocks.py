"""How many blocks a share is, and how many an engine can hand out."""

import msgspec
import pytest

from kvquota_api.amounts import Blocks, Tokens
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


def test_a_pod_of_several_ranks_hands_out_what_each_of_them_does():
    kv = msgspec.structs.replace(KV, ranks=4)
    assert usable_blocks(kv, None) == 4 * 18_431
    assert usable_blocks(kv, 9_000) == 4 * 8_999
    assert blocks_of(Share(percent=40), usable_blocks(kv, None), kv) == 29_489


HYBRID = KvPlan(
    cap_blocks=1_000,
    null_blocks=1,
    block_tokens=16,
    bytes_per_block=2**20,
    max_model_len=1_600,
    groups=(
        LayerGroup(kind="Full", block_tokens=16),
        LayerGroup(kind="Sliding", block_tokens=16, window_tokens=160),
        LayerGroup(kind="State", block_tokens=16, fixed_blocks=2),
    ),
)
"""A request of 1,600 tokens takes 100 + 11 + 2 blocks."""


@pytest.mark.parametrize(
    ("tokens", "blocks"),
    [
        pytest.param(0, 0, id="no tokens are no blocks"),
        pytest.param(16, 1 + 2 + 2, id="one short request, which takes blocks of every group"),
        pytest.param(1_600, 113, id="one longest request"),
        pytest.param(1_601, 113 + 5, id="a longest request and one of a token"),
        pytest.param(4_800, 3 * 113, id="three longest requests"),
    ],
)
def test_tokens_of_a_model_with_several_groups_are_those_of_requests(tokens, blocks):
    assert HYBRID.worth.blocks(Tokens(tokens)) == blocks
    assert blocks_of(Share(tokens=tokens), Blocks(999), HYBRID) == blocks


@pytest.mark.parametrize(
    ("blocks", "tokens"),
    [
        pytest.param(0, 0, id="no blocks hold nothing"),
        pytest.param(112, 1_585, id="a block too few for a longest request"),
        pytest.param(113, 1_600, id="one longest request"),
        pytest.param(1_000, 14_159, id="a part of one beside eight"),
    ],
)
def test_blocks_of_a_model_with_several_groups_are_worth_the_longest_requests_in_them(blocks, tokens):
    assert HYBRID.worth.tokens(blocks) == tokens


def test_blocks_of_a_plain_model_are_worth_their_tokens():
    assert KV.worth.tokens(18_432) == 294_912


def test_a_window_alone_is_no_plain_model():
    windows = msgspec.structs.replace(
        KV, max_model_len=1_600, groups=(LayerGroup(kind="Sliding", block_tokens=16, window_tokens=160),)
    )
    assert (windows.worth.blocks(Tokens(3_200)), windows.worth.tokens(22)) == (22, 3_200)
