"""What requests hold in memory while they are received and while the engine has not taken them."""

import asyncio
from contextlib import AsyncExitStack

from kvquota_sidecar.proxy.hub import Patience
from raw_client import RawClient
from sidecar_rig import BATCH, SEARCH, Running, both_ends, chat, config, eventually, on_both_loops, post, share

MIB = 1024 * 1024
PATIENCE = Patience(max_body_bytes=1 * MIB, max_held_bytes=4 * MIB)
BODY = b" " * (MIB - 10)


def held(running: Running) -> int:
    return running.sidecar._traffic_hub.buffers.total_bytes


async def opened(stack: AsyncExitStack, running: Running, count: int) -> list[RawClient]:
    return [await stack.enter_async_context(await running.connect()) for _ in range(count)]


@on_both_loops
async def test_one_tenant_holds_half_of_what_may_be_held_and_leaves_room_for_others() -> None:
    async with both_ends(patience=PATIENCE) as (running, engine), AsyncExitStack() as stack:
        clients = await opened(stack, running, 12)
        answers = [asyncio.create_task(client.answer()) for client in clients]
        for client in clients:
            client.send(post(BODY, tenant=BATCH)[:-10])
        await eventually("most are refused", lambda: sum(each.done() for each in answers) >= 10)
        refused = [each.result() for each in answers if each.done()]
        assert {(got.status, got.code, got.headers["x-should-retry"]) for got in refused} == {
            (503, "receiving_too_much", "true")
        }
        assert held(running) <= 2 * MIB + 12 * 64 * 1024
        async with await running.connect() as other:
            other.send(post(chat(), tenant=SEARCH))
            (await engine.next()).answer(b"{}")
            assert (await other.answer()).status == 200
        for each in answers:
            each.cancel()
        for client in clients:
            client.reset()
        await asyncio.gather(*answers, return_exceptions=True)
        await eventually("all is given back", lambda: held(running) == 0)


@on_both_loops
async def test_a_tenant_that_is_alone_holds_all_that_may_be_held() -> None:
    alone = config(share(BATCH, soft=400, hard=1000))
    async with both_ends(patience=PATIENCE, wanted=alone) as (running, _), AsyncExitStack() as stack:
        clients = await opened(stack, running, 3)
        for client in clients:
            client.send(post(BODY, tenant=BATCH)[:-10])
        await eventually("all of it is held", lambda: held(running) > 3 * (MIB - 30))
        for client in clients:
            client.reset()
        await eventually("all is given back", lambda: held(running) == 0)


@on_both_loops
async def test_a_body_counts_until_the_engine_has_begun_to_answer() -> None:
    body = chat(stream=True, padding="x" * 100_000)
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(body))
        upstream = await engine.next()
        assert held(running) >= 100_000
        upstream.begin_stream()
        upstream.frame()
        await client.line(b"\n\n\r\n")
        assert held(running) == 0
        upstream.end_stream()
        await client.line(b"0\r\n\r\n")
        assert running.sidecar._traffic_hub.buffers.owners == 0


@on_both_loops
async def test_complete_bodies_that_wait_for_the_engine_are_bounded_too() -> None:
    text = chat(padding="x" * (MIB - 1000))
    async with both_ends(patience=PATIENCE) as (running, engine), AsyncExitStack() as stack:
        clients = await opened(stack, running, 6)
        answers = [asyncio.create_task(client.answer()) for client in clients]
        for client in clients:
            client.send(post(text, tenant=BATCH))
        await eventually("the rest is refused", lambda: sum(each.done() for each in answers) >= 4)
        assert {each.result().status for each in answers if each.done()} == {503}
        assert held(running) <= 2 * MIB + 6 * 64 * 1024
        for client in clients:
            client.reset()
        await asyncio.gather(*answers, return_exceptions=True)
        await running.idle()
        await eventually("all is given back", lambda: held(running) == 0)
        assert engine.requests.qsize() <= 2
