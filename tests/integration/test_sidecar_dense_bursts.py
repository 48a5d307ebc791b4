"""Bursts of one tenant before an engine that holds blocks: dense texts do not pass hard, honest ones all get in."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from kvquota_fakeengine.server import FakeEngineServer
from kvquota_fakeengine.settings import EngineSettings
from kvquota_sidecar.proxy import doubting
from raw_client import RawClient
from raw_engine import EngineConnection
from raw_timers import let_the_tokenizer_take_its_time
from sidecar_rig import (
    BATCH,
    SEARCH,
    Running,
    both_ends,
    chat,
    config,
    eventually,
    on_both_loops,
    post,
    running_sidecar,
    share,
)

HARD = 200  # blocks of 16 tokens
BURST = 20
OUTPUT = 32
WORDS = "the cat sat on the mat and saw the dog "  # about three bytes for each token of the fake engine


def dense(at: int, size: int) -> bytes:
    """A request whose every byte is a token."""
    return post(chat(text="".join(random.Random(at).choices("!#$%&()*+,-.:;<=>?@[]^_{|}~", k=size)), max_tokens=OUTPUT))


def honest(at: int, size: int) -> bytes:
    return post(chat(text=f"{at:03} {WORDS * (size // len(WORDS))}", max_tokens=OUTPUT))


@dataclass
class Watched:
    """`most`: blocks that the engine ever held at once."""

    running: Running
    engine: FakeEngineServer
    most: int = 0
    statuses: list[int] = field(default_factory=list)

    async def watch(self) -> None:
        while True:
            self.most = max(self.most, self.engine.engine.scheduler.pool.held)
            await asyncio.sleep(0.002)

    async def burst(self, requests: list[bytes]) -> None:
        """All at once, each on a connection of its own."""
        watching = asyncio.create_task(self.watch())
        async with AsyncExitStack() as all_:
            clients = [await all_.enter_async_context(await self.running.connect()) for _ in requests]
            for client, request in zip(clients, requests, strict=True):
                client.send(request)
            self.statuses += [(await client.answer()).status for client in clients]
        watching.cancel()
        await self.running.idle()


@asynccontextmanager
async def watched(hard: int = HARD) -> AsyncIterator[Watched]:
    let_the_tokenizer_take_its_time()
    wanted = config(share(SEARCH, soft=0, hard=hard), share(BATCH, soft=0, hard=1000))
    async with FakeEngineServer(EngineSettings(model="tiny", decode_rate=100.0)) as engine:
        address = "127.0.0.1", int(engine.base_url.rpartition(":")[2])
        async with running_sidecar(address, wanted=wanted) as running:
            yield Watched(running, engine)


@on_both_loops
async def test_a_burst_of_dense_prompts_never_holds_more_than_hard() -> None:
    async with watched() as scene:
        await scene.burst([dense(at, 100 + 40 * (at % 15)) for at in range(2 * BURST)])
        tally = scene.running.sidecar.tally
    assert set(scene.statuses) == {200, 429}
    assert HARD // 2 < scene.most <= HARD
    assert tally.tokenizer_asked > 0


@on_both_loops
async def test_small_dense_prompts_and_then_large_ones_never_hold_more_than_hard() -> None:
    """The first ones are admitted by their estimates; beside these those that are counted have what is left."""
    async with watched() as scene:
        await scene.burst([dense(at, 150) for at in range(BURST)] + [dense(100 + at, 700) for at in range(BURST)])
    assert HARD // 2 < scene.most <= HARD


@on_both_loops
async def test_an_honest_burst_that_fits_gets_in_whole() -> None:
    """By their bytes they would need more than twice what they need."""
    async with watched() as scene:
        await scene.burst([honest(at, 330) for at in range(BURST)])
    assert scene.statuses == [200] * BURST
    assert HARD * 3 // 4 < scene.most <= HARD


SMALL = config(share(SEARCH, soft=0, hard=60), share(BATCH, soft=0, hard=1000))
FIRST, SECOND = dense(1, 250), dense(2, 400)  # 9 and 12 blocks by their estimates, 26 and 35 at most


@asynccontextmanager
async def one_in_the_way() -> AsyncIterator[tuple[Running, RawClient, EngineConnection, EngineConnection]]:
    """A request waits whose tokens are known, since nobody knows those of the one that runs: its client, the one that
    runs, and the question how many tokens that has."""
    let_the_tokenizer_take_its_time()
    async with both_ends(wanted=SMALL, tokenizes=True) as (running, engine), await running.connect() as first:
        first.send(FIRST)
        held = await engine.next()
        async with await running.connect() as second:
            second.send(SECOND)
            (await engine.next()).answer_count(520)
            asked = await engine.next()
            assert asked.head.startswith(b"POST /tokenize ")
            yield running, second, held, asked
            if held.answered.is_set():
                assert (await first.answer()).status == 200
        await running.idle()
        assert (len(running.sidecar._desk.doubts), running.sidecar._desk.doubts.kept_bytes) == (0, 0)


@pytest.mark.parametrize(("tokens", "status"), [(150, 200), (374, 429)], ids=["there is room", "there is none"])
@on_both_loops
async def test_what_waits_for_others_is_decided_when_these_are_counted(tokens: int, status: int) -> None:
    async with one_in_the_way() as (running, second, held, asked):
        asked.answer_count(tokens)
        if status == 200:
            await eventually("it runs", lambda: len(running.sidecar._desk.running) == 2)
            second.reset()
        else:
            got = await second.answer()
            assert (got.status, got.code) == (429, "tenant_kv_quota_exceeded")
        held.answer(b"{}")


@on_both_loops
async def test_what_waits_for_one_that_ends_is_decided_then_and_the_count_is_given_up() -> None:
    async with one_in_the_way() as (running, _, held, asked):
        held.answer(b"{}")
        await asked.gone()
        await eventually("the other one runs", lambda: running.report().tenants[0].total.admitted == 2)


@on_both_loops
async def test_a_client_that_leaves_while_others_are_counted_holds_nothing() -> None:
    async with one_in_the_way() as (running, second, held, asked):
        second.reset()
        await eventually("it has gone", lambda: not running.sidecar._desk.counting)
        asked.answer_count(80)
        await eventually("the count is known", lambda: len(running.sidecar._desk.doubts) == 0)
        assert running.report().tenants[0].reserved == 7
        held.answer(b"{}")


@on_both_loops
async def test_a_pod_that_leaves_does_not_wait_for_the_count_of_others() -> None:
    async with one_in_the_way() as (running, second, _, _):
        stopping = asyncio.create_task(running.sidecar.stop())
        assert (await second.answer()).code == "draining"
        await stopping


@pytest.mark.interpreted  # a bound that is lowered: compiled, it is part of the code
@on_both_loops
async def test_bodies_are_kept_up_to_a_bound_and_counted_at_once_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubting, "MAX_KEPT_BYTES", 500)
    let_the_tokenizer_take_its_time()
    async with both_ends(tokenizes=True) as (running, engine), AsyncExitStack() as all_:
        for at in range(2):
            client = await all_.enter_async_context(await running.connect())
            client.send(dense(at, 300))
        asked = [await engine.next() for _ in range(3)]
        next(each for each in asked if each.head.startswith(b"POST /tokenize ")).answer_count(310)
        await eventually("it is counted", lambda: len(running.sidecar._desk.doubts) == 1)
        assert running.sidecar._desk.doubts.kept_bytes <= 500


@pytest.mark.interpreted  # a bound that is lowered: compiled, it is part of the code
@on_both_loops
async def test_beyond_the_bound_and_with_all_places_taken_it_is_taken_at_the_worst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doubting, "MAX_KEPT_BYTES", 500)
    monkeypatch.setattr(doubting, "MAX_COUNTED_OF_ONE", 0)
    let_the_tokenizer_take_its_time()
    async with both_ends(tokenizes=True) as (running, engine), AsyncExitStack() as all_:
        for at in range(2):
            client = await all_.enter_async_context(await running.connect())
            client.send(dense(at, 300))
            await engine.next()
        await eventually("one is known", lambda: len(running.sidecar._desk.doubts) == 1)
        assert running.report().tenants[0].reserved == 10 + 16, "one by its estimate, one at half a token for each byte"
