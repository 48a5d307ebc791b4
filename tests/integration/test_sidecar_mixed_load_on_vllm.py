"""The sidecar before the real vLLM under the load of three tenants: nothing of it stays, whoever leaves when."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from raw_client import RawClient
from sidecar_on_vllm import asked, before
from sidecar_rig import BATCH, OTHER, SEARCH, eventually, post, share
from testengine.client import EngineClient
from testengine.mixed_load import Load
from testengine.port import EngineUnderTest

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("vllm_client")]  # each begins on an idle engine

REQUESTS = 2000
CLIENTS = 24  # at a time
LEAVING = 0.15
TENANTS = (SEARCH, BATCH, OTHER)


async def test_two_thousand_mixed_requests_leave_nothing_behind_and_are_estimated_well(
    vllm: EngineUnderTest, vllm_client: EngineClient
) -> None:
    shares = [share(each, soft=100, hard=400, concurrent=64) for each in TENANTS]
    async with before(vllm, *shares) as running:
        load = Load(connect=running.connect, tenants=TENANTS, requests=REQUESTS, leaving=LEAVING)
        await load.run(CLIENTS)
        await running.idle()
        desk = running.sidecar._desk
        await eventually("nothing is at work", lambda: desk.at_work == 0)
        await vllm_client.until_idle()
        await eventually("the engine is seen idle", lambda: running.report().engine.used_blocks == 0)
        report, error = running.report(), desk.ratios.error()
        running.sidecar.books.check_integrity()
    admitted = sum(each.total.admitted for each in report.tenants)
    assert load.sent == REQUESTS
    assert set(load.statuses) <= {200, 429}
    assert load.statuses[200] > 0.7 * REQUESTS
    assert load.left > 20
    assert admitted >= load.statuses[200]
    assert (report.engine.running, report.engine.waiting) == (0, 0)
    assert report.pool is not None
    assert (report.pool.reserved, report.pool.used, report.pool.waiting) == (0, 0, 0)
    assert error is not None
    assert error.p50 <= 0.1


async def read_on(client: RawClient, into: bytearray) -> None:
    while data := await client.reader.read(1 << 16):
        into += data


async def test_a_guaranteed_newcomer_gets_in_while_what_was_lent_is_ended(
    vllm: EngineUnderTest, vllm_client: EngineClient
) -> None:
    """Six streams that were lent 378 of 511 blocks, and a newcomer whose guarantee of 200 is not free."""
    long = {"model": "tiny", "prompt": [300] * 1000, "max_tokens": 1000, "ignore_eos": True, "stream": True}
    wide = {"prompt": [[301 + at] * 1800 for at in range(3)], "max_tokens": 100}
    shares = (share(SEARCH, soft=200, hard=400), share(BATCH, soft=0, hard=500))
    shown = [bytearray() for _ in range(6)]
    async with AsyncExitStack() as everything, before(vllm, *shares) as running:
        readers = []
        for each in shown:
            client = await everything.enter_async_context(await running.connect())
            client.send(post(json.dumps(long).encode(), "/v1/completions", BATCH))
            readers.append(asyncio.create_task(read_on(client, each)))
        await eventually("all of them stream", lambda: all(b"data: " in each for each in shown))
        got = asyncio.create_task(asked(running, "/v1/completions", wide, tenant=SEARCH))
        await eventually("it asks", lambda: running.in_flight(SEARCH) == 3)
        await eventually("it is in", lambda: not running.sidecar._desk.waiting)
        assert (await got).status == 200
        ended = [bytes(each) for each in shown if b"kv_evicted" in each]
        counts = {each.id: (each.total.evicted, each.total.guarantee_missed) for each in running.report().tenants}
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await everything.aclose()
        await running.idle()
    await vllm_client.until_idle()
    assert len(ended) == 1
    assert b"[DONE]" not in ended[0]
    assert counts == {SEARCH: (0, 0), BATCH: (1, 0)}
