"""The buffers that a started llama.cpp allocated, beside the planner's."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.llamacpp import plan_cache
from kvquota_api.memory.models.layers import (
    Attention,
    GatedDeltaState,
    Latent,
    Mamba2State,
    ModelShape,
    ShortConvState,
)
from model_shapes import shape

DATA = Path(__file__).parents[2] / "data" / "memory" / "llamacpp_rows.json"
MIB = 2**20
PRINTED = 0.00501  # MiB: half of the last digit that llama.cpp prints, which is rounded to even


def every(count: int, full: Attention, other: Any) -> list[Any]:
    """Layers of which each `count`th is `full`; two rounds."""
    return [full if (place + 1) % count == 0 else other for place in range(2 * count)]


MODELS: dict[str, ModelShape] = {
    "attention": shape(*[Attention(2, 128, 128)] * 4),
    "sliding": shape(
        *every(6, Attention(1, 256, 256), Attention(1, 256, 256, window=512)), architecture="Gemma3ForCausalLM"
    ),
    "latent": shape(*[Latent(512, 64)] * 3),
    "mamba2": shape(*[Mamba2State(4, 32, 32, 1, 4)] * 3),
    "gated-delta": shape(*every(4, Attention(1, 64, 64), GatedDeltaState(2, 4, 32, 32, 4))),
    "short-convolution": shape(*every(3, Attention(2, 32, 32), ShortConvState(128, 3))),
}
ROWS = json.loads(DATA.read_text())["rows"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_the_buffers_of_a_started_engine(row: dict[str, Any]) -> None:
    inputs = EngineInputs(
        "LlamaCpp",
        max_model_len=row["context"],
        slots=row["slots"],
        unified=row["unified"],
        kv_dtype=row["key"] if row["key"] == row["value"] else f"{row['key']}/{row['value']}",
        max_num_batched_tokens=row["micro_batch"],
    )
    plan = plan_cache(MODELS[row["model"]], inputs, 0)

    printed = sum(buffer["mib"] for buffer in row["buffers"])
    assert plan.kv_bytes / MIB == pytest.approx(printed, abs=PRINTED * len(row["buffers"]))
    first = row["buffers"][0]
    assert plan.blocks == first["cells"] * first["streams"]
