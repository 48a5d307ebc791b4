"""The drain that a hook begins: taken back where no signal follows, closed where there is no hook."""

import asyncio

from raw_client import Got
from sidecar_rig import ManualClock, Running, both_ends, chat, eventually, get, on_both_loops, post


async def admin(running: Running, data: bytes) -> Got:
    async with await running.connect_admin() as client:
        return await client.ask(data)


async def taken_back(running: Running) -> float:
    lines = (await admin(running, get("/metrics"))).body.decode().splitlines()
    return float(next(line for line in lines if line.startswith("kvquota_drains_taken_back_total ")).split(" ")[1])


@on_both_loops
async def test_a_drain_that_no_signal_follows_is_taken_back() -> None:
    clock = ManualClock()
    async with both_ends(clock=clock, lame_duck_seconds=3.0, drain_seconds=50.0) as (running, engine):
        assert await taken_back(running) == 0
        assert (await admin(running, get("/drain"))).status == 200
        clock.now += 79.9
        await asyncio.sleep(0.2)
        async with await running.connect() as client:
            assert (await client.ask(post(chat()))).code == "draining"
        clock.now += 0.1
        await eventually("it is taken back", lambda: running.events("drain_taken_back") != [])
        assert (await admin(running, get("/readyz"))).status == 200
        assert await taken_back(running) == 1
        async with await running.connect() as client:
            client.send(post(chat()))
            (await engine.next()).answer(b"{}")
            got = await client.answer()
            assert (got.status, "connection" in got.headers) == (200, False)
        stopping = asyncio.create_task(running.sidecar.stop())
        await eventually("it leaves in earnest", lambda: len(running.events("draining")) == 2)
        await asyncio.sleep(0.2)
        assert not stopping.done()  # the drain starts anew: nothing of the first one counts
        clock.now += 3.0
        await stopping


@on_both_loops
async def test_a_signal_within_the_time_makes_it_final() -> None:
    clock = ManualClock()
    async with both_ends(clock=clock, lame_duck_seconds=3.0, drain_seconds=50.0) as (running, engine):
        async with await running.connect() as client:
            client.send(post(chat()))
            await engine.next()
            assert (await admin(running, get("/drain"))).status == 200
            clock.now += 3.0
            stopping = asyncio.create_task(running.sidecar.stop())
            await asyncio.sleep(0.2)
            assert not stopping.done()
            clock.now += 77.0
            await stopping
        assert running.events("drain_taken_back") == []


@on_both_loops
async def test_where_there_is_no_hook_nobody_can_begin_the_drain() -> None:
    async with both_ends(drain_hook=False) as (running, _):
        for method in (b"GET", b"POST"):
            for path in ("/drain", "/drain/wait"):
                assert (await admin(running, get(path).replace(b"GET", method))).status == 404
        assert running.events("draining") == []
        assert (await admin(running, get("/readyz"))).status == 200
