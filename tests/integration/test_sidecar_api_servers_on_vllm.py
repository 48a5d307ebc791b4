"""The sidecar before the real vLLM with two API servers, which share one port and one engine."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from kvquota_sidecar.engines.vllm import read_vllm
from sidecar_on_vllm import asked, before, straight_to
from sidecar_rig import BATCH, SEARCH, eventually, post, share
from testengine.client import client_of
from testengine.port import EngineUnderTest
from testengine.vllm import VllmArguments, VllmEngine

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

LONG = {"prompt": [300] * 300, "max_tokens": 1500, "ignore_eos": True, "stream": True}
REQUESTS = 6


@pytest.fixture(scope="module")
def two_servers() -> Iterator[EngineUnderTest]:
    """Both of them take connections, the kernel says which one."""
    with VllmEngine(VllmArguments(api_servers=2)) as engine:
        yield engine.under_test


async def test_what_either_server_was_given_is_read_as_that_of_one_engine_and_tokens_are_counted(
    two_servers: EngineUnderTest,
) -> None:
    shares = (share(SEARCH, soft=100, hard=400), share(BATCH, soft=100, hard=400))
    async with client_of(two_servers) as client:  # before its first request it does not say what it runs
        assert (await client.post("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 1})).status == 200
    async with before(two_servers, *shares) as running, client_of(two_servers) as client:
        clients = [await running.connect() for _ in range(REQUESTS)]
        for each in clients:
            each.send(post(json.dumps({"model": "tiny", **LONG}).encode(), "/v1/completions"))
        await eventually("all run", lambda: running.report().engine.running == REQUESTS)
        for _ in range(6):  # a new connection each, so that both servers are asked
            async with await straight_to(two_servers) as direct:
                got = await direct.ask(b"GET /metrics HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n")
            reading = read_vllm(got.body.decode())
            assert reading is not None
            sample, marks = reading.sample, reading.marks
            assert (sample.blocks, sample.block_tokens, sample.ranks) == (
                two_servers.blocks,
                two_servers.block_tokens,
                (),
            )
            assert (sample.running, sample.waiting) == (REQUESTS, 0)
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
