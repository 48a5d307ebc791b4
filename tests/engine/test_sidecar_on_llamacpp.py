"""The sidecar before llama.cpp's real server: what it generates, what its slots hold, and what a client that leaves
frees."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import KvPlan, TenantShare
from kvquota_api.usage import EngineUsage
from kvquota_sidecar.engines import aborts
from kvquota_sidecar.engines.llamacpp import START_HEADER, read_llamacpp, read_slots
from kvquota_sidecar.engines.reading import Reading
from kvquota_sidecar.ledger.asking import EngineSample
from raw_client import RawClient
from sidecar_on_vllm import asked, settled
from sidecar_rig import BATCH, SEARCH, Running, config, eventually, post, running_sidecar, share
from testengine.llamacpp import LlamaCpp, running_llamacpp

pytestmark = pytest.mark.engine

SLOT_TOKENS = 16_384  # so that it works for seconds: it is looked at every 1.25 s, or later where it is busy
OUTPUT = 12  # tokens
SHARES = (share(SEARCH, soft=1000, hard=16_000), share(BATCH, soft=28_000, hard=30_000))
TEXT = "The quick brown fox jumps over the lazy dog. " * 4
CHAT = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": OUTPUT, "ignore_eos": True}
COMPLETION = {"prompt": TEXT, "max_tokens": OUTPUT, "ignore_eos": True}
LONG = {"prompt": TEXT, "max_tokens": 12_000, "ignore_eos": True}


@pytest.fixture(scope="module")
def llamacpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCpp]:
    """Of two slots."""
    with running_llamacpp(tmp_path_factory.mktemp("llamacpp"), slots=2, slot_tokens=SLOT_TOKENS) as server:
        yield server


@asynccontextmanager
async def before(engine: LlamaCpp, *shares: TenantShare) -> AsyncIterator[Running]:
    """A sidecar that would like to look far more often than this engine can stand."""
    plan = KvPlan(
        cap_blocks=engine.slots * engine.slot_tokens,
        null_blocks=0,
        block_tokens=1,
        bytes_per_block=256,
        max_model_len=engine.slot_tokens,
        groups=(LayerGroup("Full", 1),),
    )
    wanted = config(*(shares or SHARES), kv=plan, engine_type="LlamaCpp")
    async with running_sidecar(("127.0.0.1", engine.port), wanted=wanted, sample_seconds=0.05) as running:
        await eventually("it is idle", lambda: (said(running).running, said(running).used_blocks) == (0, 0))
        yield running


def said(running: Running) -> EngineUsage:
    return running.report().engine


async def until_load(running: Running, load: tuple[int, int]) -> None:
    """Until so many run and wait."""
    await eventually(f"{load} run and wait", lambda: (said(running).running, said(running).waiting) == load)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("outputs", [1, 2], ids=["one output", "two outputs"])
@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)],
    ids=["chat", "completion"],
)
async def test_what_it_generates_passes_and_is_counted_by_its_own_count(
    llamacpp: LlamaCpp, path: str, body: dict[str, Any], outputs: int, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with before(llamacpp) as running:
        counts = settled(running, monkeypatch)
        got = await asked(running, path, {**body, "stream": stream, "n": outputs}, tenant=SEARCH)
        assert (got.status, got.complete) == (200, True), got.body
        assert (b"[DONE]" in got.body) == stream
        await running.idle()
    ((prompt, produced),) = counts
    assert 10 < prompt < 200
    assert produced == outputs * OUTPUT


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_of_several_prompts_it_counts_one_and_is_not_believed(llamacpp: LlamaCpp, stream: bool) -> None:
    async with before(llamacpp) as running:
        body = {**COMPLETION, "prompt": [TEXT, "a"], "stream": stream}
        got = await asked(running, "/v1/completions", body, tenant=SEARCH)
        assert (got.status, got.complete) == (200, True), got.body
        await running.idle()
        assert running.report().tenants[0].total.prompt_tokens == 0


async def test_its_slots_say_what_is_in_use_and_who_waits_but_not_how_large_the_pool_is(llamacpp: LlamaCpp) -> None:
    async with before(llamacpp) as running:
        clients = [await running.connect() for _ in range(3)]
        for client, body, load in zip(clients, (LONG, LONG, COMPLETION), ((1, 0), (2, 0), (2, 1)), strict=True):
            client.send(post(json.dumps({"model": "tiny", **body}).encode(), "/v1/completions", BATCH))
            await until_load(running, load)
        await eventually("they grow", lambda: (said(running).used_blocks or 0) > 2 * 200)
        assert (said(running).blocks, said(running).block_tokens) == (None, 1)
        assert (said(running).used_blocks or 0) <= 2 * SLOT_TOKENS
        for client in clients:
            client.reset()
        await running.idle()
        await eventually("it is idle", lambda: (said(running).running, said(running).waiting) == (0, 0))
        assert said(running).used_blocks == 0


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_client_that_leaves_frees_its_slot(llamacpp: LlamaCpp, stream: bool) -> None:
    async with before(llamacpp) as running:
        async with await running.connect() as client:
            client.send(post(json.dumps({"model": "tiny", **LONG, "stream": stream}).encode(), "/v1/completions"))
            await eventually("it works", lambda: said(running).running == 1)
            assert running.in_flight() == 1
        await running.idle()
        await eventually("it is idle", lambda: said(running).running == 0)


async def test_what_can_never_fit_and_what_it_refuses_itself_hold_nothing(llamacpp: LlamaCpp) -> None:
    async with before(llamacpp, share(SEARCH, soft=0, hard=100), share(BATCH, soft=0, hard=1000)) as running:
        too_large = await asked(running, "/v1/completions", LONG, tenant=SEARCH)
        wrong = await asked(
            running, "/v1/completions", {"prompt": "a", "grammar": "root ::= (", "max_tokens": 5}, tenant=BATCH
        )
        await running.idle()
    assert (too_large.status, too_large.code) == (400, "request_exceeds_kv_quota")
    assert wrong.status >= 400


def read_directly(engine: LlamaCpp) -> Reading:
    with urllib.request.urlopen(f"{engine.base_url}/slots", timeout=60) as answer:
        slots = read_slots(answer.read())
    with urllib.request.urlopen(f"{engine.base_url}/metrics", timeout=60) as answer:
        reading = read_llamacpp(answer.read().decode(), answer.headers[START_HEADER.decode()].encode(), slots)
    assert reading is not None
    return reading


def test_one_slot_is_the_whole_pool_and_another_life_has_another_mark(tmp_path: Path) -> None:
    lives = set()
    for _ in range(2):
        with running_llamacpp(tmp_path, slots=1, slot_tokens=2048) as engine:
            reading = read_directly(engine)
        assert reading.sample == EngineSample(
            blocks=Blocks(2048),
            block_tokens=Tokens(1),
            used_blocks=Blocks(0),
            running=0,
            waiting=0,
            prompt_tokens=0,
            cached_tokens=0,
        )
        lives.add(reading.marks.constants)
    assert len(lives) == 2


async def read_on(client: RawClient) -> None:
    while await client.reader.read(1 << 16):
        pass


async def test_that_it_works_on_for_who_has_left_beside_a_stream_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks for clients of whole answers only after a second in which nobody was answered anything."""
    monkeypatch.setattr(aborts, "PATIENCE_SECONDS", 3.0)
    endless = {"prompt": TEXT, "max_tokens": 30_000, "ignore_eos": True}
    shares = (share(SEARCH, soft=130_000, hard=131_000), share(BATCH, soft=0, hard=1000))
    with running_llamacpp(tmp_path, slots=2, slot_tokens=65_536) as engine:
        async with before(engine, *shares) as running, await running.connect() as streaming:
            for client, stream, load in ((streaming, True, (1, 0)), (await running.connect(), False, (2, 0))):
                body = json.dumps({"model": "tiny", **endless, "stream": stream}).encode()
                client.send(post(body, "/v1/completions"))
                await until_load(running, load)
            reading = asyncio.create_task(read_on(streaming))
            client.reset()
            await eventually("it is found out", lambda: said(running).aborts_lost is True)
            assert (said(running).running, running.in_flight()) == (2, 1)
            reading.cancel()
            streaming.reset()
            await until_load(running, (0, 0))
