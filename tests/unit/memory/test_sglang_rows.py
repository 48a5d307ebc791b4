"""What SGLang's own configurator makes of given bytes, beside the planner's tokens."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvquota_api.memory.cache_plan import CachePlan
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.layers import Attention, Latent, ModelShape
from kvquota_api.memory.sglang import plan_cache
from model_shapes import SPARSE, shape

DATA = Path(__file__).parents[2] / "data" / "memory" / "sglang_rows.json"
MODELS: dict[str, ModelShape] = {
    "dense": shape(*[Attention(8, 128, 128)] * 36, heads=64),
    "uneven": shape(*[Attention(4, 192, 128)] * 9),
    "latent": shape(*[Latent(512, 64)] * 61),
    "sparse": shape(*[SPARSE] * 61),
    "sparse-shared": shape(*[Latent(512, 64, sparse=True)] * 57, *[SPARSE] * 21),
    "mimo": shape(
        *[Attention(4, 192, 128)] * 9,
        *[Attention(8, 192, 128, window=128)] * 39,
        architecture="MiMoV2FlashForCausalLM",
    ),
    "gemma4": shape(
        *[Attention(2, 512, 512)] * 5,
        *[Attention(8, 256, 256, window=1024)] * 25,
        architecture="Gemma4ForConditionalGeneration",
    ),
}
ROWS = json.loads(DATA.read_text())["rows"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_tokens_of_the_engines_own_configurator(row: dict[str, Any]) -> None:
    """The configurator is given the bytes without the spare page of each pool, which the planner's bytes count."""
    inputs = EngineInputs("SGLang", max_model_len=1024, block_tokens=row["page"], **row["inputs"])
    model = MODELS[row["model"]]
    spare = sum(pages(plan_cache(model, inputs, row["bytes"])).values())

    plan = plan_cache(model, inputs, row["bytes"] + spare)

    assert plan.logged_tokens == row["tokens"]
    sliding = pages(plan).get("Sliding", 0) * ((row["sliding_tokens"] or 0) // row["page"])
    assert plan.kv_bytes == plan.blocks * plan.bytes_per_block + sliding + spare


def pages(plan: CachePlan) -> dict[str, int]:
    """Bytes of one page of each pool."""
    return {group.kind: group.page_bytes for group in plan.groups}
