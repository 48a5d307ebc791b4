"""What the injector appends to the arguments of a pod with llama.cpp: its real server, started by them."""

import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kvquota_api.amounts import Blocks
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import KvPlan
from sidecar_on_vllm import asked
from sidecar_rig import SEARCH, config, eventually, running_sidecar, share
from testcluster.processes import free_port
from testengine.llamacpp import LlamaCpp, started_llamacpp

pytestmark = pytest.mark.engine

INJECTED = Path(__file__).parents[1] / "data" / "manifests" / "injected" / "llmkube-llamacpp.yaml"
ENGINE_PORT = "18000"
OWN_PORT = "8080"  # as the pod's author has it: the sidecar's now
SLOTS, SLOT_TOKENS = 2, 4096


def arguments(ports: dict[str, str]) -> list[str]:
    """Those of the engine in the pod as it comes out, at `ports` of this machine."""
    [engine] = yaml.safe_load(INJECTED.read_text())["spec"]["containers"]
    assert {*ports} < {*engine["args"]}
    return [ports.get(word, word) for word in engine["args"]]


@pytest.fixture(scope="module")
def own_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def engine(own_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCpp]:
    server = LlamaCpp(free_port(), SLOTS, SLOT_TOKENS)
    words = arguments({ENGINE_PORT: str(server.port), OWN_PORT: str(own_port)})
    with started_llamacpp(tmp_path_factory.mktemp("llamacpp"), server, words):
        yield server


def is_open(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=5):
            return True
    except OSError:
        return False


def test_it_listens_where_only_the_sidecar_reaches_it(engine: LlamaCpp, own_port: int) -> None:
    """Though the pod's author wanted all addresses, and another port."""
    places = {(host, port) for host in ("127.0.0.1", "127.0.0.2", "::1") for port in (engine.port, own_port)}
    assert {place for place in places if is_open(*place)} == {("127.0.0.1", engine.port)}


def test_it_has_the_slots_that_the_plan_counts_with(engine: LlamaCpp) -> None:
    with urllib.request.urlopen(f"{engine.base_url}/slots", timeout=60) as answer:
        assert [slot["n_ctx"] for slot in json.load(answer)] == [SLOT_TOKENS] * SLOTS


async def test_it_answers_through_the_sidecar_and_is_read(engine: LlamaCpp) -> None:
    plan = KvPlan(
        cap_blocks=SLOTS * SLOT_TOKENS,
        null_blocks=0,
        block_tokens=1,
        bytes_per_block=256,
        max_model_len=SLOT_TOKENS,
        groups=(LayerGroup("Full", 1),),
    )
    wanted = config(share(SEARCH, soft=1000, hard=4000), kv=plan, engine_type="LlamaCpp")
    async with running_sidecar(("127.0.0.1", engine.port), wanted=wanted, sample_seconds=0.05) as running:
        got = await asked(running, "/v1/completions", {"prompt": "Once", "max_tokens": 4}, tenant=SEARCH)
        assert (got.status, got.complete) == (200, True), got.body
        await running.idle()
        await eventually("its metrics are read", lambda: running.report().engine.running == 0)
        assert running.report().engine.used_blocks == Blocks(0)
