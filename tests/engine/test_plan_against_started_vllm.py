"""The real vLLM, started with a given size of its KV cache for one model of each kind: it must log what was planned."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.reading import read_model
from kvquota_api.memory.vllm import plan_cache
from testengine.oracle.asking import start_engines

pytestmark = pytest.mark.engine

CONFIGS = Path(__file__).parents[1] / "data" / "memory" / "live.json"

# Starting all of them takes 60 s on two idle cores; other work on them can make it several times as long.
PATIENCE_SECONDS = 600.0

MIB = 1024 * 1024
LOGGED = re.compile(
    r"CPU KV cache size: (?P<tokens>[\d,]+) tokens,"
    r" Maximum concurrency for (?P<length>[\d,]+) tokens per request: (?P<concurrency>[\d.]+)x"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A small model, the bytes of its cache, and what else the engine is started with."""

    config: str
    kv_bytes: int
    max_model_len: int
    flags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def args(self) -> dict[str, Any]:
        given = {"kv_cache_memory_bytes": self.kv_bytes, "max_model_len": self.max_model_len, "enforce_eager": True}
        return {**given, **self.flags}

    @property
    def inputs(self) -> EngineInputs:
        return EngineInputs(
            engine="vLLM",
            version="0.32.0",
            platform="cpu",
            max_model_len=self.max_model_len,
            block_tokens=self.flags.get("block_size"),
            max_num_batched_tokens=self.flags.get("max_num_batched_tokens"),
            max_num_seqs=self.flags.get("max_num_seqs"),
            prefix_caching=self.flags.get("enable_prefix_caching"),
            speculative=self.flags.get("speculative_config"),
        )


SHAPES = {
    "grouped queries": Shape("llama-gqa+", 200 * MIB, 3000),
    "grouped queries with blocks of 32 tokens": Shape("qwen3+", 133 * MIB, 1500, {"block_size": 32}),
    "five sliding layers to one full": Shape("gemma3-12l", 100 * MIB, 4096, {"max_num_batched_tokens": 1024}),
    "latent attention": Shape("deepseek-v2-lite+", 90 * MIB, 2500),
    "Mamba 2 beside attention": Shape("granite4-small8", 150 * MIB, 4096),
    "Mamba 2 beside attention without prefix caching": Shape(
        "granite4-small8", 150 * MIB, 4096, {"enable_prefix_caching": False}
    ),
    "gated delta net beside attention": Shape("qwen3-next+", 180 * MIB, 5000),
    "layers that share the cache of others": Shape("gemma3n-e2b+", 120 * MIB, 2048),
    "sliding and full with attention sinks": Shape("gpt-oss-20b+", 170 * MIB, 3500, {"max_num_batched_tokens": 512}),
    "chunked beside full": Shape("llama4-small", 110 * MIB, 6000, {"max_num_batched_tokens": 2048, "max_num_seqs": 8}),
}


@dataclass(frozen=True, slots=True)
class Logged:
    """What an engine says of its cache once it has started."""

    blocks: int
    tokens: int
    length: int
    concurrency: str


def config_of(shape: Shape) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(CONFIGS.read_text())["configs"][shape.config]
    return config


def file_name(name: str) -> str:
    return name.replace(" ", "-")


def read_logged(folder: Path, name: str) -> Logged:
    log = (folder / f"{file_name(name)}.log").read_text(errors="replace")
    line = LOGGED.search(log)
    assert line is not None, log[-6000:]
    return Logged(
        blocks=int((folder / f"{file_name(name)}.blocks").read_text()),
        tokens=int(line["tokens"].replace(",", "")),
        length=int(line["length"].replace(",", "")),
        concurrency=line["concurrency"],
    )


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the log of every engine, each started and ended."""
    folder = tmp_path_factory.mktemp("started-vllm")
    for name, shape in SHAPES.items():
        question = {"config": config_of(shape), "args": shape.args}
        (folder / f"{file_name(name)}.question.json").write_text(json.dumps(question))
    start_engines(folder, PATIENCE_SECONDS)
    return folder


@pytest.mark.parametrize("name", SHAPES)
def test_a_started_engine_logs_what_was_planned(name: str, started: Path) -> None:
    shape = SHAPES[name]
    plan = plan_cache(read_model(config_of(shape)), shape.inputs, shape.kv_bytes)
    assert read_logged(started, name) == Logged(
        blocks=plan.blocks,
        tokens=plan.logged_tokens or 0,
        length=plan.max_model_len,
        concurrency=f"{float(plan.concurrency):.2f}",
    )
