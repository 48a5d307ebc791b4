"""Scenes of a sidecar's life that are played again and again, each time with a fault at another point of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

from kvquota_api.pod_config import Ladder
from kvquota_sidecar.ledger.asking import LedgerError
from kvquota_sidecar.proxy.client_side import ClientConnection
from kvquota_sidecar.proxy.hub import Patience
from raw_client import DEADLINE_SECONDS, RawClient
from raw_engine import EngineConnection, RawEngine
from sidecar_rig import BATCH, SEARCH, Running, both_ends, chat, completion, config, eventually, post, share

MANY = 60  # points of one scenario
FEWEST = 3
AFTERMATH_SECONDS = 0.03  # for whatever follows a fault by itself
USAGE = {"prompt_tokens": 40, "completion_tokens": 9}
SHARED = config(
    share(SEARCH, soft=32, hard=64), share(BATCH, soft=0, hard=64), blocks=65, ladder=Ladder(min_dwell_seconds=0)
)


class InjectedError(Exception):
    """Raised where a test wants it."""


KINDS: tuple[type[BaseException], ...] = (InjectedError, asyncio.CancelledError)


@dataclass(slots=True)
class Faults:
    """Raises at the `wanted`th call of all that it watches; `seen`: calls so far."""

    wanted: int
    kind: type[BaseException]
    seen: int = 0
    fired: asyncio.Event = field(default_factory=asyncio.Event)
    points: list[str] = field(default_factory=list)

    def pass_by(self, point: str) -> None:
        """A watched call is made."""
        self.seen += 1
        if self.seen == self.wanted:
            self.points.append(point)
            self.fired.set()
            raise self.kind(point)


@dataclass(slots=True)
class Stage:
    """Where a scenario plays."""

    running: Running
    engine: RawEngine
    clients: list[RawClient]
    play: int

    async def client(self) -> RawClient:
        self.clients.append(await self.running.connect())
        return self.clients[-1]


async def begun(stage: Stage, request: bytes) -> tuple[RawClient, EngineConnection]:
    """A client that has the first token of a stream."""
    client = await stage.client()
    client.send(request)
    upstream = await stage.engine.next()
    upstream.begin_stream()
    upstream.frame()
    await client.line(b"\n\n")
    return client, upstream


async def a_stream(stage: Stage) -> None:
    client = await stage.client()
    client.send(post(chat(stream=True)))
    upstream = await stage.engine.next()
    upstream.begin_stream()
    for _ in range(9):
        upstream.frame()
    upstream.frame(usage=USAGE)
    upstream.end_stream()
    await client.answer()


async def a_plain_answer(stage: Stage) -> None:
    client = await stage.client()
    client.send(post(chat()) * 2)
    for _ in range(2):
        (await stage.engine.next()).answer(b'{"usage":{"prompt_tokens":40,"completion_tokens":9}}')
        await client.answer()


async def a_client_that_leaves(stage: Stage) -> None:
    client, upstream = await begun(stage, post(chat(stream=True)))
    client.reset()
    await upstream.gone()


async def a_client_that_does_not_read(stage: Stage) -> None:
    client = await stage.client()
    client.send(post(chat(stream=True)))
    upstream = await stage.engine.next()
    client.pause_reading()
    upstream.begin_stream()
    (connection,) = cast("list[ClientConnection[Any]]", list(stage.running.sidecar._traffic_hub.connections))
    while not connection._full:
        upstream.chunk(b"data: " + b"x" * 65_000 + b"\n\n")
        await asyncio.sleep(0.001)
    client.resume_reading()
    upstream.end_stream()
    await client.answer()


async def an_engine_that_breaks_off(stage: Stage) -> None:
    silent = await stage.client()
    silent.send(post(chat(stream=True)))
    (await stage.engine.next()).cut()
    await silent.answer()
    client, upstream = await begun(stage, post(chat(stream=True)))
    upstream.cut()
    await client.eof()


async def a_newcomer_and_its_victim(stage: Stage) -> None:
    await eventually(
        "what the last play may have left in the engine is forgotten", lambda: pressure(stage.running) == 0
    )
    borrower, _ = await begun(stage, post(completion(40, stream=True, prompt=1), "/v1/completions", BATCH))
    newcomer = await stage.client()
    newcomer.send(post(completion(30), "/v1/completions"))
    await borrower.line(b"kv_evicted")
    (await stage.engine.next()).answer(b"{}")
    await newcomer.answer()


def pressure(running: Running) -> float:
    pool = running.report().pool
    assert pool is not None
    return pool.pressure_percent


async def a_request_that_is_counted(stage: Stage) -> None:
    client = await stage.client()
    client.send(post(chat(text=f"{stage.play:04}" + "word " * 160, max_tokens=32)))
    (await stage.engine.next()).answer(b'{"count":210,"max_model_len":4096,"tokens":[]}')
    (await stage.engine.next()).answer(b"{}")
    await client.answer()


Scenario = Callable[[Stage], Coroutine[Any, Any, None]]
SCENARIOS: dict[str, Scenario] = {
    each.__name__.replace("_", " "): each
    for each in (
        a_stream,
        a_plain_answer,
        a_client_that_leaves,
        a_client_that_does_not_read,
        an_engine_that_breaks_off,
        a_newcomer_and_its_victim,
        a_request_that_is_counted,
    )
}


@dataclass(slots=True)
class Releases:
    """Every ticket that came back, as often as it did; the books raise at a second time, too."""

    back: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Theatre:
    """One sidecar that all plays of a scenario are given in; `trouble`: what its loop reported. `watched`: lets faults
    pass by at the calls that are watched."""

    running: Running
    engine: RawEngine
    trouble: list[dict[str, Any]]
    watched: Callable[[Faults, Running], AbstractContextManager[None]]
    releases: Releases = field(default_factory=Releases)

    async def play(self, scenario: Scenario, faults: Faults) -> None:
        """Play it with one fault, let everybody leave, and see that nothing is left."""
        running, stage = self.running, Stage(self.running, self.engine, [], faults.wanted)
        with self.watched(faults, running):
            await until_fault(asyncio.create_task(scenario(stage)), faults)
        for client in stage.clients:
            client.reset()
        desk, hub = running.sidecar._desk, running.sidecar._traffic_hub
        await eventually("everybody has gone", lambda: not hub.connections)
        await eventually("nothing is at work", lambda: desk.at_work == 0)
        await running.idle()
        while not self.engine.requests.empty():
            self.engine.requests.get_nowait().done()
        await eventually("their bytes are let go of", lambda: hub.buffers.total_bytes == 0)
        await eventually("what is open to the engine is idle", lambda: desk.pool.open_links == len(desk.pool._idle))
        assert desk.tickets == {}
        assert len(self.releases.back) == len(set(self.releases.back))
        assert [each for each in self.trouble if isinstance(each.get("exception"), LedgerError)] == []


async def until_fault(playing: asyncio.Task[None], faults: Faults) -> None:
    """Until the scenario is over, or stands still after a fault."""
    fired = asyncio.create_task(faults.fired.wait())
    await asyncio.wait((playing, fired), return_when=asyncio.FIRST_COMPLETED, timeout=DEADLINE_SECONDS)
    if faults.fired.is_set():
        await asyncio.wait((playing,), timeout=AFTERMATH_SECONDS)
    for each in (playing, fired):
        each.cancel()
    with suppress(asyncio.CancelledError, AssertionError, ConnectionError, RuntimeError, asyncio.IncompleteReadError):
        await playing


@asynccontextmanager
async def theatre(
    watched: Callable[[Faults, Running], AbstractContextManager[None]], **changes: Any
) -> AsyncIterator[Theatre]:
    """`changes`: of the sidecar."""
    trouble: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(context))
    async with both_ends(wanted=SHARED, tokenizes=True, patience=Patience(half=0.05), **changes) as (running, engine):
        await eventually("the engine was asked how it is", lambda: running.events("engine_silent") != [])
        yield Theatre(running, engine, trouble, watched)


def points_of(seen: int) -> list[int]:
    """Every one; of a scenario that goes on for long not those in the middle, which are all alike."""
    numbers = list(range(1, seen + 1))
    return numbers if seen <= MANY else numbers[: MANY // 2] + numbers[-MANY // 2 :]


async def play_with_every_fault(
    house: Theatre, scenario: Scenario, kinds: tuple[type[BaseException], ...] = KINDS
) -> None:
    """Once without, to count the calls, and then with a fault at each of them."""
    untouched = Faults(0, InjectedError)
    await house.play(scenario, untouched)
    assert untouched.seen >= FEWEST
    for wanted in points_of(untouched.seen):
        faults = Faults(wanted, kinds[wanted % len(kinds)])
        try:
            await house.play(scenario, faults)
        except AssertionError as error:
            raise AssertionError(f"after {faults.kind.__name__} in {faults.points}") from error
        assert faults.points != [] or wanted > untouched.seen - 3  # how often the tick looks differs
