"""A client that goes, however it goes and wherever its request is: nothing of it stays, here or in the engine."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from kvquota_api.amounts import Blocks
from kvquota_api.pod_config import Ladder
from kvquota_fakeengine.server import FakeEngineServer
from kvquota_fakeengine.settings import EngineSettings
from kvquota_sidecar.ledger.asking import EngineSample
from raw_client import LEAVING, RawClient
from sidecar_rig import (
    BATCH,
    SEARCH,
    Running,
    begun_stream,
    both_ends,
    completion,
    config,
    eventually,
    on_both_loops,
    post,
    running_sidecar,
    share,
)
from sidecar_sdks import RETRIES, SDKS, Call, Sdk, seen_by

PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the requests of SEARCH get to: whether one is there, and whether nothing of it is left."""

    running: Running
    is_there: Callable[[], bool]
    is_clear: Callable[[], bool]


@asynccontextmanager
async def in_the_engines_queue() -> AsyncIterator[Place]:
    """The engine runs one request at a time, and that is another tenant's."""
    settings = EngineSettings(model="tiny", blocks=1024, max_sequences=1, decode_rate=5.0)
    async with FakeEngineServer(settings, control_port=0) as engine:
        scheduler = engine.engine.scheduler
        port = int(engine.base_url.rpartition(":")[2])
        async with running_sidecar(("127.0.0.1", port)) as running:
            async with await running.connect() as first:
                first.send(post(completion(20, prompt=1, ignore_eos=True, max_tokens=500), PATH, BATCH))
                await eventually("the first one runs", lambda: len(scheduler.running) == 1)
                yield Place(
                    running,
                    lambda: len(scheduler.waiting) == 1,
                    lambda: not scheduler.waiting and len(scheduler.running) == 1,
                )
            await eventually("nothing runs", lambda: not scheduler.running)
            await running.idle()
        scheduler.check_integrity()


@asynccontextmanager
async def with_an_engine_that_says_nothing() -> AsyncIterator[Place]:
    async with both_ends() as (running, engine):

        async def follow() -> None:
            await (await engine.next()).gone()

        following = asyncio.create_task(follow())
        yield Place(
            running,
            lambda: running.in_flight() == 1,
            lambda: following.done() and following.exception() is None,
        )
        await running.idle()


@asynccontextmanager
async def waiting_for_room() -> AsyncIterator[Place]:
    """Another tenant holds what the request is guaranteed, and the engine frees none of it when that one is ended."""
    ladder = Ladder(eviction_wait_seconds=60.0)
    shared = config(share(SEARCH, soft=32, hard=64), share(BATCH, soft=0, hard=64), blocks=65, ladder=ladder)
    held = post(completion(40, stream=True, prompt=1), PATH, BATCH)
    async with both_ends(wanted=shared) as (running, engine), begun_stream(running, engine, request=held):
        sample = EngineSample(blocks=Blocks(65), used_blocks=Blocks(40), running=1, waiting=0, started_at=1.0)
        running.sidecar._observe(sample)
        waiting = running.sidecar._desk.waiting
        yield Place(running, lambda: len(waiting) == 1, lambda: not waiting)
        await running.idle()
        assert engine.requests.empty()


PLACES = {
    "in the engine's queue": in_the_engines_queue,
    "with an engine that says nothing": with_an_engine_that_says_nothing,
    "waiting for room": waiting_for_room,
}


@pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@on_both_loops
async def test_a_client_that_goes_leaves_nothing_behind(
    place: Callable[[], AbstractAsyncContextManager[Place]], stream: bool, leave: Callable[[RawClient], None]
) -> None:
    async with place() as it, await it.running.connect() as client:
        client.send(post(completion(30, stream=stream), PATH))
        await eventually("it is there", it.is_there)
        leave(client)
        await eventually("it has gone", it.is_clear)
        assert it.running.in_flight() == 0
        assert it.running.sidecar.tally.requests[PATH, "client_gone"] >= 1
        it.running.sidecar.books.check_integrity()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("sdk", SDKS.values(), ids=SDKS)
@on_both_loops
async def test_a_call_that_its_program_gives_up_ends_in_the_engine_too(sdk: Sdk, stream: bool) -> None:
    async with both_ends() as (running, engine), seen_by() as (http, _):
        task = asyncio.ensure_future(sdk.ask(running.url, Call(stream=stream), RETRIES, http))
        upstream = await engine.next()
        task.cancel()
        await upstream.gone()
        await running.idle()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [line["event"] for line in running.events("client_gone")] == ["client_gone"]
