"""A guaranteed request that finds no room: who is ended for it, and what its own client sees while it waits."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kvquota_api.amounts import Blocks
from kvquota_sidecar.ledger.asking import EngineSample
from raw_client import Got, RawClient
from raw_engine import EngineConnection, RawEngine
from sidecar_rig import (
    BATCH,
    SEARCH,
    ManualClock,
    Running,
    both_ends,
    completion,
    config,
    eventually,
    get,
    on_both_loops,
    post,
    share,
)

PATH = "/v1/completions"
WAIT_SECONDS = 2.0  # of the default ladder
SHARED = config(share(SEARCH, soft=32, hard=64), share(BATCH, soft=0, hard=64), blocks=65)


def asked(blocks: int, tenant: str, *, stream: bool = False, prompt: int = 0) -> bytes:
    return post(completion(blocks, stream=stream, prompt=prompt), PATH, tenant)


@dataclass(frozen=True, slots=True)
class Scene:
    """A tenant without a guarantee holds 40 of 64 blocks."""

    running: Running
    engine: RawEngine
    borrower: RawClient
    upstream: EngineConnection

    async def newcomer(self, blocks: int = 30) -> RawClient:
        """The client of a request within its tenant's guarantee, for which there is no room."""
        client = await self.running.connect()
        client.send(asked(blocks, SEARCH))
        return client

    def says(self, used: int) -> None:
        """The engine is read, and has that many blocks in use."""
        sample = EngineSample(blocks=Blocks(65), used_blocks=Blocks(used), running=1, waiting=0, started_at=1.0)
        self.running.sidecar._observe(sample)

    @property
    def waiting(self) -> int:
        return len(self.running.sidecar._desk.waiting)


@asynccontextmanager
async def scene(*, begun: bool = True, clock: ManualClock | None = None) -> AsyncIterator[Scene]:
    async with (
        both_ends(wanted=SHARED, clock=clock) as (running, engine),
        await running.connect() as borrower,
    ):
        borrower.send(asked(40, BATCH, stream=True, prompt=1))
        upstream = await engine.next()
        if begun:
            upstream.begin_stream()
            upstream.frame()
            await borrower.line(b"\n\n\r\n")
        it = Scene(running, engine, borrower, upstream)
        it.says(used=40)  # what is ended makes room when the engine says so
        yield it
        await running.idle()
        assert running.sidecar._desk.at_work == 0
        await eventually("its bytes are let go of", lambda: running.sidecar._traffic_hub.buffers.total_bytes == 0)


@on_both_loops
async def test_what_was_only_lent_is_ended_with_a_final_event_and_the_newcomer_is_served() -> None:
    async with scene() as it, await it.newcomer() as newcomer:
        rest = await it.borrower.line(b"0\r\n\r\n")
        await it.upstream.gone()
        assert it.engine.requests.empty()
        it.says(used=0)
        (await it.engine.next()).answer(b'{"served":1}')
        assert (await newcomer.answer()).json() == {"served": 1}
        assert len(it.running.events("evicted")) == 1
        report = it.running.report()
    last = json.loads(rest.rsplit(b"data: ", 1)[1].partition(b"\n")[0])["error"]
    assert (last["code"], last["retryable"], last["retry_after_ms"] >= 1000) == ("kv_evicted", True, True)
    assert b"[DONE]" not in rest
    assert [(each.total.evicted, each.total.guarantee_missed) for each in report.tenants] == [(0, 0), (1, 0)]


@on_both_loops
async def test_what_has_not_sent_a_byte_is_refused_so_that_its_client_tries_again() -> None:
    async with scene(begun=False) as it, await it.newcomer() as newcomer:
        refused = await it.borrower.answer()
        it.says(used=0)
        (await it.engine.next()).answer(b"{}")
        assert (await newcomer.answer()).status == 200
    assert (refused.status, refused.code) == (503, "kv_evicted")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.headers["x-should-retry"] == "true"


@on_both_loops
async def test_a_newcomer_for_whom_the_engine_frees_nothing_in_time_is_told_when_to_come_back() -> None:
    clock = ManualClock()
    async with scene(clock=clock) as it, await it.newcomer() as newcomer:
        await eventually("it waits", lambda: it.waiting == 1)
        for _ in range(4):
            assert it.waiting == 1
            clock.now += WAIT_SECONDS / 4
            it.says(used=40)
            await asyncio.sleep(0.1)
        refused = await newcomer.answer()
        assert it.engine.requests.empty()
        missed = [each.total.guarantee_missed for each in it.running.report().tenants]
        assert it.running.sidecar.tally.guarantees_missed == 1
    assert (refused.status, refused.code) == (503, "kv_pool_exhausted")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert missed == [1, 0]


@on_both_loops
async def test_a_newcomer_that_leaves_gives_up_its_place_at_once() -> None:
    async with scene(clock=ManualClock()) as it:
        newcomer = await it.newcomer()
        await eventually("it waits", lambda: it.waiting == 1)
        assert it.running.in_flight(SEARCH) == 1
        newcomer.reset()
        await eventually("it has gone", lambda: it.waiting == 0)
        assert it.running.in_flight(SEARCH) == 0
        assert it.running.sidecar.tally.requests[PATH, "client_gone"] == 1
        await newcomer.close()


@on_both_loops
async def test_a_request_that_waits_counts_in_memory_and_those_behind_it_wait_too() -> None:
    clock = ManualClock()
    async with scene(clock=clock) as it, await it.newcomer() as newcomer:
        await eventually("it waits", lambda: it.waiting == 1)
        held = it.running.sidecar._traffic_hub.buffers.total_bytes
        assert held >= len(completion(30))
        newcomer.send(get("/nowhere"))
        clock.now += 1.0
        it.says(used=0)
        (await it.engine.next()).answer(b'"first"')
        assert [(await newcomer.answer()).status, (await newcomer.answer()).status] == [200, 404]


@on_both_loops
async def test_newcomers_are_served_in_the_order_in_which_they_came() -> None:
    clock = ManualClock()
    async with scene(clock=clock) as it, await it.newcomer(26) as first:
        await eventually("the first waits", lambda: it.waiting == 1)
        async with await it.newcomer(5) as second:
            await eventually("the second waits behind it", lambda: it.waiting == 2)
            clock.now += 1.0
            it.says(used=34)  # of which only the second would have room beside the first
            upstream = await it.engine.next()
            assert len(json.loads(upstream.body)["prompt"]) == 25 * 16
            assert (it.waiting, it.engine.requests.empty()) == (1, True)
            upstream.answer(b"{}")
            it.says(used=0)
            (await it.engine.next()).answer(b"{}")
            assert [(await each.answer()).status for each in (first, second)] == [200, 200]


@on_both_loops
async def test_a_newcomer_that_still_waits_when_the_pod_has_to_leave_is_sent_to_another() -> None:
    async with scene(clock=ManualClock()) as it, await it.newcomer() as newcomer:
        await eventually("it waits", lambda: it.waiting == 1)
        stopping = asyncio.create_task(it.running.sidecar.stop())
        refused: Got = await newcomer.answer()
        await stopping
    assert (refused.status, refused.code, refused.headers["connection"]) == (503, "draining", "close")


@on_both_loops
async def test_of_two_the_one_that_has_sent_nothing_is_ended_though_it_is_older() -> None:
    async with (
        both_ends(wanted=SHARED) as (running, engine),
        await running.connect() as silent,
        await running.connect() as speaking,
        await running.connect() as newcomer,
    ):
        silent.send(asked(20, BATCH, stream=True, prompt=1))
        await engine.next()
        speaking.send(asked(20, BATCH, stream=True, prompt=2))
        upstream = await engine.next()
        upstream.begin_stream()
        upstream.frame()
        await speaking.line(b"\n\n\r\n")
        newcomer.send(asked(30, SEARCH))
        refused = await silent.answer()
        (await engine.next()).answer(b"{}")
        assert (await newcomer.answer()).status == 200
        upstream.end_stream()
        assert b"[DONE]" in await speaking.line(b"0\r\n\r\n")
        await running.idle()
    assert (refused.status, refused.code) == (503, "kv_evicted")
