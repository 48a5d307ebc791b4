"""Recorded plans, asked of the real vLLM again: what the planner is held against is what this vLLM computes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testengine.oracle.asking import Oracle

pytestmark = pytest.mark.engine

DATA = Path(__file__).parents[1] / "data" / "memory"

# Of each platform's rows; all of them take ten minutes: `python -m testengine.oracle.recording`.
SAMPLE = 8

Row = dict[str, Any]


def sample(platform: str) -> list[tuple[Row, Row]]:
    """Some rows of a platform, spread over the file, each with its config."""
    document = json.loads((DATA / "live_more.json").read_text())
    rows = [row for row in document["rows"] if row["args"]["platform"] == platform]
    return [(document["configs"][row["config"]], row) for row in rows[:: max(1, len(rows) // SAMPLE)]]


@pytest.fixture(scope="module", params=["cpu", "cuda-sm90", "cuda-sm80"])
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Oracle]]:
    with Oracle(request.param, tmp_path_factory.mktemp("oracle") / "oracle.log") as oracle:
        yield request.param, oracle


def test_vllm_computes_the_recorded_plans_again(asked: tuple[str, Oracle]) -> None:
    platform, oracle = asked
    answers = {row["id"]: oracle.ask(config, row["args"]) for config, row in sample(platform)}
    assert answers == {row["id"]: {part: row[part] for part in ("resolved", "result")} for _, row in sample(platform)}


def test_vllm_says_why_it_refuses(asked: tuple[str, Oracle]) -> None:
    """A pool of one byte holds no block, on any platform."""
    platform, oracle = asked
    config, row = sample(platform)[0]
    answer = oracle.ask(config, row["args"] | {"kv_cache_memory_bytes": 1})
    assert answer["error"]["class"] == "ValueError"
    assert "No available memory for the cache blocks" in answer["error"]["message"]
