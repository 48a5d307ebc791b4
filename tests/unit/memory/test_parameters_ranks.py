"""What one GPU of a tensor group holds is what vLLM's own model classes hold on one."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvquota_api.memory.parameters import count_parameters, weights_per_gpu

DATA = Path(__file__).resolve().parents[2] / "data" / "memory"
ROWS: list[dict[str, Any]] = json.loads((DATA / "ranks.json").read_text())["rows"]
CONFIGS: dict[str, Any] = json.loads((DATA / "live.json").read_text())["configs"] | {
    name: model["config"] for name, model in json.loads((DATA / "parameters.json").read_text())["models"].items()
}

# vLLM makes parameters of a few numbers that checkpoints keep beside the weights (corrections of scores, tables of
# hashed routing) or leave out (biases of Whisper's keys).
BESIDE = 1e-4


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['name']} over {row['tensor']}" for row in ROWS])
def test_a_gpu_of_a_group_holds_as_much_as_in_vllm(row: dict[str, Any]) -> None:
    config = {**(row.get("config") or CONFIGS[row["name"]]), **row.get("changes", {})}
    held = weights_per_gpu(config, "bf16", tensor=row["tensor"]).size // 2 - _made_later(config, row["tensor"])

    assert held == pytest.approx(row["parameters"], rel=BESIDE)


def _made_later(config: dict[str, Any], tensor: int) -> int:
    """What vLLM makes of the way up from latents once they are loaded."""
    tensors = count_parameters(config).tensors()
    return sum(each.shard(tensor) for each in tensors if each.again and each.module.endswith("kv_b_proj"))
