"""The sidecar before the real vLLM under the load of three tenants: nothing of it stays, whoever leaves when."""

import asyncio
import json
import random
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from raw_client import RawClient
from sidecar_on_vllm import asked, before
from sidecar_rig import BATCH, OTHER, SEARCH, Running, eventually, post, share
from testengine.client import EngineClient
from testengine.port import EngineUnderTest

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("vllm_client")]  # each begins on an idle engine

REQUESTS = 2000
CLIENTS = 24  # at a time
LEAVING = 0.15  # of all clients: within a fifth of a second
TENANTS = (SEARCH, BATCH, OTHER)
TEXT = "the quick brown fox jumps over a lazy dog while seven boxing wizards pack five dozen jugs and nobody asks why"
WORDS = TEXT.split()
PREFIXES = {tenant: " ".join(random.Random(tenant).choices(WORDS, k=100)) for tenant in TENANTS}
PATIENCE_SECONDS = 60.0  # for an answer that takes a tenth of a second on an idle machine


def some_text(dice: random.Random, tenant: str) -> str:
    """Half of all texts begin as their tenant's others do."""
    own = " ".join(dice.choices(WORDS, k=dice.randint(3, 40)))
    return f"{PREFIXES[tenant]} {own}" if dice.random() < 0.5 else own


def a_chat(dice: random.Random, tenant: str) -> tuple[str, dict[str, Any]]:
    told = [{"role": "system", "content": PREFIXES[tenant]}] if dice.random() < 0.5 else []
    messages = [*told, {"role": "user", "content": some_text(dice, tenant)}]
    return "/v1/chat/completions", {"messages": messages, "n": dice.choice((1, 1, 2))}


def a_completion(dice: random.Random, tenant: str) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": some_text(dice, tenant), "n": dice.choice((1, 1, 3))}


def a_batch(dice: random.Random, tenant: str) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": [some_text(dice, tenant) for _ in range(dice.randint(2, 4))]}


def token_ids(dice: random.Random, tenant: str) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": dice.choices(range(300, 700), k=dice.randint(1, 200))}


def a_message(dice: random.Random, tenant: str) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"messages": [{"role": "user", "content": some_text(dice, tenant)}]}


KINDS = (a_chat, a_chat, a_chat, a_completion, a_batch, token_ids, a_message)


@dataclass(slots=True)
class Load:
    """What became of the requests; `left`: clients that did not wait for their answers."""

    running: Running
    dice: random.Random = field(default_factory=lambda: random.Random(4))
    statuses: Counter[int] = field(default_factory=Counter)
    left: int = 0
    sent: int = 0

    async def client(self) -> None:
        """Sends one request after the other until all are sent."""
        while self.sent < REQUESTS:
            self.sent += 1
            tenant = self.dice.choice(TENANTS)
            path, body = self.dice.choice(KINDS)(self.dice, tenant)
            body |= {"model": "tiny", "max_tokens": self.dice.randint(1, 8), "stream": self.dice.random() < 0.5}
            leaves_after = self.dice.random() * 0.2 if self.dice.random() < LEAVING else None
            async with await self.running.connect() as client:
                client.send(post(json.dumps(body).encode(), path, tenant))
                await self._answered(client, leaves_after)

    async def _answered(self, client: RawClient, leaves_after: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(leaves_after or PATIENCE_SECONDS):
                got = await client.answer()
                assert got.complete
                self.statuses[got.status] += 1
                return
        assert leaves_after is not None, "an answer never came"
        self.left += 1
        client.reset()


async def test_two_thousand_mixed_requests_leave_nothing_behind_and_are_estimated_well(
    vllm: EngineUnderTest, vllm_client: EngineClient
) -> None:
    shares = [share(each, soft=100, hard=400, concurrent=64) for each in TENANTS]
    async with before(vllm, *shares) as running:
        load = Load(running)
        async with asyncio.TaskGroup() as clients:
            for _ in range(CLIENTS):
                clients.create_task(load.client())
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
        started = asyncio.get_running_loop().time()
        got = asyncio.create_task(asked(running, "/v1/completions", wide, tenant=SEARCH))
        await eventually("it asks", lambda: running.in_flight(SEARCH) == 3)
        await eventually("it is in", lambda: not running.sidecar._desk.waiting)
        waited = asyncio.get_running_loop().time() - started
        assert (await got).status == 200
        ended = [bytes(each) for each in shown if b"kv_evicted" in each]
        counts = {each.id: (each.total.evicted, each.total.guarantee_missed) for each in running.report().tenants}
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await everything.aclose()
        await running.idle()
    await vllm_client.until_idle()
    assert waited < 2.0
    assert len(ended) == 1
    assert b"[DONE]" not in ended[0]
    assert counts == {SEARCH: (0, 0), BATCH: (1, 0)}
