"""Which layers share block tables: equal pages, groups of a pattern, packed pages, local layers kept like full ones."""

from dataclasses import replace

import pytest

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.vllm.building import PlacedSpec
from kvquota_api.memory.vllm.grouping import Group, groups_of, layout_of, without_locality
from kvquota_api.memory.vllm.specs import LayerSpec

FULL = LayerSpec("Full", 16, 1024, (8, 64))
NARROW = LayerSpec("Full", 16, 512, (4, 64))
ODD = LayerSpec("Full", 16, 768, (6, 64))
SLIDING = LayerSpec("Sliding", 16, 1024, (8, 64), window=512)
WIDE_SLIDING = LayerSpec("Sliding", 16, 2048, (16, 64), window=512)
CHUNKED = LayerSpec("Chunked", 16, 1024, (8, 64), chunk=512)
WIDE_CHUNKED = LayerSpec("Chunked", 16, 2048, (16, 64), chunk=512)
STATE = LayerSpec("State", 16, 10000, ("state",), fixed_blocks=2, padded=16384, sharded=False)
LARGE_STATE = LayerSpec("State", 16, 20000, ("state",), fixed_blocks=2, sharded=False)
LATENT = LayerSpec("Latent", 16, 1152, ("latent",))
INDEXER = LayerSpec("Latent", 16, 132, ("indexer",))
SLIDING_LATENT = LayerSpec("SlidingLatent", 16, 1152, ("latent",), window=512)
RECORD = LayerSpec("Latent", 256, 584, ("record",), tokens_per_row=4, row_align=576)
WINDOW_RECORD = LayerSpec("SlidingLatent", 64, 584, ("record",), window=128, row_align=576)
RING = LayerSpec("Ring", 16, 512, ("tail",), fixed_blocks=1, sharded=False)


def placed(*specs: LayerSpec) -> tuple[PlacedSpec, ...]:
    return tuple(PlacedSpec(0, spec) for spec in specs)


def sizes(groups: tuple[Group, ...]) -> list[tuple[str, int, int, int]]:
    """Kind, layers, tokens of a block and bytes of a page of each group."""
    return [
        (group.leader.kind, len(group.members), group.leader.block_tokens, group.leader.page_bytes) for group in groups
    ]


@pytest.mark.parametrize(
    ("specs", "groups"),
    [
        pytest.param([FULL] * 4, [("Full", 4, 16, 16384)], id="layers of one kind are one group"),
        pytest.param([LATENT, INDEXER] * 2, [("Latent", 4, 16, 18432)], id="one kind of different widths too"),
        pytest.param([FULL, LATENT], [("Full", 2, 16, 16384)], id="latents beside full attention too"),
        pytest.param([SLIDING] * 3, [("Sliding", 3, 16, 16384)], id="sliding layers only are one"),
        pytest.param([CHUNKED] * 2, [("Chunked", 2, 16, 16384)], id="chunked layers only are one"),
        pytest.param(
            [SLIDING, SLIDING_LATENT], [("Sliding", 2, 16, 16384)], id="sliding latents of the same window join them"
        ),
        pytest.param(
            [SLIDING_LATENT, replace(SLIDING_LATENT, row_bytes=64, identity=("narrow",))],
            [("SlidingLatent", 2, 16, 18432)],
            id="sliding latents of two widths are one",
        ),
        pytest.param(
            [SLIDING, SLIDING, SLIDING, FULL],
            [("Sliding", 1, 16, 16384)] * 3 + [("Full", 1, 16, 16384)],
            id="groups are as large as the smallest kind",
        ),
        pytest.param(
            [SLIDING] * 12 + [FULL] * 13,
            [("Sliding", 12, 16, 16384), ("Full", 13, 16, 16384)],
            id="or as the largest where counts are close",
        ),
        pytest.param(
            [NARROW, SLIDING], [("Full", 1, 32, 16384), ("Sliding", 1, 16, 16384)], id="narrow pages get larger blocks"
        ),
        pytest.param(
            [ODD, SLIDING],
            [("Full", 1, 16, 16384), ("Sliding", 1, 16, 16384)],
            id="pages that do not divide are padded",
        ),
        pytest.param(
            [STATE, FULL, replace(FULL, block_tokens=32, identity=("wide",))],
            [("State", 1, 16, 32768), ("Full", 1, 32, 32768), ("Full", 1, 32, 32768)],
            id="states are padded",
        ),
        pytest.param(
            [STATE, replace(STATE, row_bytes=9000, identity=("other",))],
            [("State", 2, 16, 16384)],
            id="states of equal pages are one group",
        ),
        pytest.param(
            [LATENT, SLIDING], [("Latent", 1, 16, 18432), ("Sliding", 1, 16, 18432)], id="windows are padded to latents"
        ),
        pytest.param(
            [LATENT, WIDE_SLIDING], [("Latent", 2, 16, 18432)], id="latents cannot be padded: windows are given up"
        ),
        pytest.param([RING, RING], [("Ring", 2, 16, 8192)], id="rings only are one group"),
    ],
)
def test_groups(specs: list[LayerSpec], groups: list[tuple[str, int, int, int]]) -> None:
    assert sizes(groups_of(placed(*specs), "layer-outermost")) == groups


def test_members_of_a_group_are_taken_in_turn() -> None:
    members = tuple(PlacedSpec(stage, SLIDING) for stage in (0, 0, 1, 1)) + tuple(PlacedSpec(s, FULL) for s in (0, 1))
    groups = groups_of(members, "layer-outermost")
    assert [[member.stage for member in group.members] for group in groups] == [[0, 1], [0, 1], [0, 1]]


@pytest.mark.parametrize(
    "specs",
    [
        pytest.param([LATENT, WIDE_CHUNKED], id="latents beside chunks"),
        pytest.param([LATENT, LARGE_STATE], id="latents beside larger states"),
        pytest.param([LATENT, WIDE_SLIDING, STATE], id="latents beside a window and states"),
    ],
)
def test_pages_that_cannot_be_made_equal_are_refused(specs: list[LayerSpec]) -> None:
    with pytest.raises(EngineUnknownError, match="cannot be made equal: vLLM does not start"):
        groups_of(placed(*specs), "layer-outermost")


@pytest.mark.parametrize(
    ("specs", "layout"),
    [
        pytest.param([FULL, STATE], "layer-outermost", id="most models"),
        pytest.param([RECORD], "block-outermost", id="DeepSeek-V4"),
        pytest.param([LATENT, RING], "block-outermost", id="GLM-5-next"),
    ],
)
def test_layout(specs: list[LayerSpec], layout: str) -> None:
    assert layout_of(placed(*specs)) == layout


@pytest.mark.parametrize(
    ("specs", "groups"),
    [
        pytest.param(
            [STATE, STATE, LATENT, LATENT, RING],
            [("State", 2, 16, 16384), ("Latent", 2, 16, 18432), ("Ring", 1, 16, 8192)],
            id="kinds with pages of their own are groups of their own",
        ),
        pytest.param(
            [STATE] * 5 + [LATENT, LATENT],
            [("State", 2, 16, 16384), ("State", 2, 16, 16384), ("State", 1, 16, 16384), ("Latent", 2, 16, 18432)],
            id="states are cut to what a block of attention holds",
        ),
        pytest.param(
            [LATENT, INDEXER] * 3 + [replace(WINDOW_RECORD)] * 6,
            [("Latent", 6, 16, 18432), ("SlidingLatent", 3, 64, 37440), ("SlidingLatent", 3, 64, 37440)],
            id="larger kinds are cut to the repeats of a pattern",
        ),
        pytest.param(
            [FULL, SLIDING],
            [("Full", 1, 16, 16384), ("Sliding", 1, 16, 16384)],
            id="equal pages are grouped as elsewhere",
        ),
    ],
)
def test_packed_groups(specs: list[LayerSpec], groups: list[tuple[str, int, int, int]]) -> None:
    assert sizes(groups_of(placed(*specs), "block-outermost")) == groups


def test_sliding_layers_that_no_pattern_cuts_are_refused() -> None:
    wide = replace(SLIDING_LATENT, row_bytes=4096, identity=("wide",))
    with pytest.raises(
        EngineUnknownError, match=r"6 sliding layers with pages of 2 sizes cannot be cut into \d groups"
    ):
        groups_of(placed(*[SLIDING_LATENT] * 5, wide, STATE), "block-outermost")


@pytest.mark.parametrize(
    ("specs", "kinds"),
    [
        pytest.param([FULL, SLIDING], ["Full", "Full"], id="a window is given up"),
        pytest.param([FULL, CHUNKED], ["Full", "Full"], id="a chunk too"),
        pytest.param([NARROW, SLIDING, CHUNKED], ["Full", "Full", "Full"], id="both at once"),
        pytest.param([SLIDING, SLIDING], ["Sliding", "Sliding"], id="sliding layers only stay"),
        pytest.param([RING], ["Ring"], id="rings stay"),
        pytest.param([LATENT, RING], ["Latent", "Ring"], id="rings stay beside others"),
    ],
)
def test_without_the_hybrid_manager(specs: list[LayerSpec], kinds: list[str]) -> None:
    assert [member.spec.kind for member in without_locality(placed(*specs))] == kinds


def test_promoted_layers_take_the_block_of_full_ones_only_if_there_is_one() -> None:
    several = placed(FULL, replace(FULL, block_tokens=32), replace(SLIDING, block_tokens=64))
    with pytest.raises(EngineUnknownError, match="cannot be kept as one kind"):
        without_locality(several)
    blocks = [member.spec.block_tokens for member in without_locality(placed(FULL, replace(SLIDING, block_tokens=64)))]
    assert blocks == [16, 16]


@pytest.mark.parametrize(
    "specs",
    [
        pytest.param([FULL, SLIDING, replace(SLIDING, window=256)], id="windows of two sizes"),
        pytest.param([FULL, STATE], id="recurrent state"),
        pytest.param([SLIDING, CHUNKED], id="local layers of two kinds without full ones"),
        pytest.param([LATENT, SLIDING_LATENT], id="sliding latents"),
    ],
)
def test_models_that_need_the_hybrid_manager_are_refused_without(specs: list[LayerSpec]) -> None:
    with pytest.raises(EngineUnknownError, match="leave the hybrid KV cache manager on"):
        without_locality(placed(*specs))
