"""A pool that `kvquota plan -o yaml` prints: `kvquota check` takes it, and it is planned as it was."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvquota_api.amounts import Bytes
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.plan import plan_pool
from kvquota_api.memory.planning import Card, KvBudget, PlanRequest, plan_card
from kvquota_api.memory.presets import load_preset
from kvquota_api.validation import parse_model_pool
from kvquota_cli.__main__ import main
from kvquota_cli.errors import CliError
from kvquota_cli.planning.pool_yaml import pool_yaml
from kvquota_cli.planning.sources import ModelSource

CARD = ("--gpu-memory", "191.18GiB")
SLOTS = [("--slots", str(slots), *unified) for slots in (1, 2, 3, 4, 7) for unified in ((), ("--kv-unified",))]
LENGTHS = [(), ("--max-model-len", "8192"), ("--max-model-len", "auto"), ("--max-model-len", "10000")]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def assert_the_same_plan(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> None:
    asked: dict[str, Any] = json.loads(printed(capsys, *words, "-o", "json"))
    text = printed(capsys, *words, "-o", "yaml")
    file = folder / "pool.yaml"
    file.write_text(text)
    plan = plan_pool(parse_model_pool(yaml.safe_load(text)))

    assert (plan.cap_blocks, plan.bytes_per_block, plan.max_model_len, plan.partition.kv_pool) == (
        asked["blocks"],
        asked["bytesPerBlock"],
        asked["maxModelLen"],
        asked["kvBytes"],
    )
    assert main(["check", str(file)]) == 0, capsys.readouterr()


@pytest.mark.parametrize("length", LENGTHS, ids=lambda words: " ".join(words) or "no length")
@pytest.mark.parametrize("slots", SLOTS, ids=" ".join)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-4b", "qwen3-next-80b-a3b"])
def test_a_pool_of_llama_cpp(
    model: str, slots: tuple[str, ...], length: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert_the_same_plan(capsys, tmp_path, "--model", model, "--engine", "llama.cpp", *CARD, *slots, *length)


@pytest.mark.parametrize("length", LENGTHS, ids=lambda words: " ".join(words) or "no length")
@pytest.mark.parametrize("tensor", ["1", "2"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_a_pool_of_the_other_engines(
    engine: str, tensor: str, length: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("--model", "llama-3.1-8b", "--engine", engine, "--tp", tensor, *CARD, *length)
    assert_the_same_plan(capsys, tmp_path, *words)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((), id="as it is"),
        pytest.param(("--no-kv-unified",), id="each slot with a part of its own"),
        pytest.param(("--slots", "2"), id="other slots"),
    ],
)
def test_a_pool_of_slots_that_share_one_cache_and_is_changed(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "unified.yaml"
    shared = ("--slots", "4", "--kv-unified", "--max-model-len", "8192")
    file.write_text(printed(capsys, "--model", "llama-3.1-8b", "--engine", "llama.cpp", *CARD, *shared, "-o", "yaml"))

    assert_the_same_plan(capsys, tmp_path, "--model", str(file), *words)


def test_a_pool_cannot_say_that_a_file_has_no_latent_attention() -> None:
    config = load_preset("deepseek-v2-lite")
    inputs = EngineInputs("LlamaCpp", max_model_len=4096, latent=False)
    plan = plan_card(PlanRequest(config, inputs, KvBudget(), Card(Bytes(80 * 2**30))))

    with pytest.raises(CliError, match="a ModelPool cannot say --no-mla"):
        pool_yaml(Namespace(gpu_count=None, context=None), ModelSource("m", config), plan)
