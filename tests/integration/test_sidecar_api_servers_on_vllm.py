"""The sidecar before the real vLLM with two API servers, which share one port and one engine."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from kvquota_sidecar.engines.vllm import read_vllm
from raw_client import Got
from sidecar_on_vllm import asked, before, straight_to
from sidecar_rig import BATCH, SEARCH, eventually, post, share
from testengine.client import client_of
from testengine.port import EngineUnderTest
from testengine.vllm import VllmArguments, VllmEngine

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

# An idle machine makes 300 tokens of each in a second, and a server whose cores are busy answers after three seconds:
# none may be over before it was looked at.
LONG = {"prompt": [300] * 300, "max_tokens": 7800, "ignore_eos": True}
REQUESTS = 6
POOL_BYTES = 64 * 1024 * 1024  # 2,048 blocks: room for all of them to their ends


@pytest.fixture(scope="module")
def two_servers() -> Iterator[EngineUnderTest]:
    """Both of them take connections, the kernel says which one."""
    with VllmEngine(VllmArguments(api_servers=2, kv_cache_bytes=POOL_BYTES, max_model_len=8192)) as engine:
        yield engine.under_test


async def _metrics(engine: EngineUnderTest) -> Got:
    """By a new connection, so that of several calls each server has some."""
    async with await straight_to(engine) as direct:
        return await direct.ask(b"GET /metrics HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n")


async def test_what_either_server_was_given_is_read_as_that_of_one_engine_and_tokens_are_counted(
    two_servers: EngineUnderTest,
) -> None:
    shares = (share(SEARCH, soft=100, hard=2000), share(BATCH, soft=100, hard=400))
    async with client_of(two_servers) as client:  # before its first request it does not say what it runs
        assert (await client.post("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 1})).status == 200
    async with before(two_servers, *shares) as running, client_of(two_servers) as client:
        clients = [await running.connect() for _ in range(REQUESTS)]
        for at, each in enumerate(clients):  # one streams: a server that has six streams answers others after seconds
            body = {"model": "tiny", **LONG, "stream": at == 0}
            each.send(post(json.dumps(body).encode(), "/v1/completions"))
        await eventually("all run", lambda: running.report().engine.running == REQUESTS)
        for got in await asyncio.gather(*[_metrics(two_servers) for _ in range(6)]):
            reading = read_vllm(got.body.decode())
            assert reading is not None
            sample, marks = reading.sample, reading.marks
            assert (sample.blocks, sample.block_tokens, sample.ranks) == (
                two_servers.blocks,
                two_servers.block_tokens,
                (),
            )
            assert (sample.running, sample.waiting, sample.finished) == (REQUESTS, 0, 1)
            assert sample.used_blocks is not None
            assert sample.used_blocks > 300 // two_servers.block_tokens
            assert (marks.starts, marks.work is not None) == (frozenset(), True)
        counted = await asyncio.gather(
            *[client.post("/tokenize", {"model": "tiny", "prompt": "a b"}) for _ in range(4)]
        )
        assert len({each.document["count"] for each in counted}) == 1
        for each in clients:
            each.reset()
        await running.idle()
        await eventually("it is idle", lambda: running.report().engine.running == 0)
        done = await asked(running, "/v1/completions", {"prompt": "a", "max_tokens": 2}, tenant=SEARCH)
        assert done.status == 200
        assert running.report().engine.state == "Ready"
