"""A fault of the sidecar's own at any point of a request's life: nothing stays held, and nothing is released twice."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvquota_api.pod_config import Ladder
from kvquota_sidecar.ledger.asking import LedgerError
from kvquota_sidecar.proxy import clerk
from kvquota_sidecar.proxy.client_side import ClientConnection
from kvquota_sidecar.proxy.desk import Desk
from kvquota_sidecar.proxy.engine_side import EngineCall
from kvquota_sidecar.proxy.hub import Hub, Patience
from kvquota_sidecar.proxy.metering import StreamMeter
from raw_client import DEADLINE_SECONDS, RawClient
from raw_engine import EngineConnection, RawEngine
from sidecar_rig import (
    BATCH,
    SEARCH,
    Running,
    both_ends,
    chat,
    completion,
    config,
    eventually,
    on_both_loops,
    post,
    share,
)

MANY = 60  # points of one scenario
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

    def watch(self, patch: pytest.MonkeyPatch, owner: Any, *names: str) -> None:
        for name in names:
            patch.setattr(owner, name, self._watched(f"{owner!r}.{name}", getattr(owner, name)))

    def _watched(self, point: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.seen += 1
            if self.seen == self.wanted:
                self.points.append(point)
                self.fired.set()
                raise self.kind(point)
            return call(*args, **kwargs)

        return watched


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
    (connection,) = stage.running.sidecar._traffic_hub.connections
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
    borrower, _ = await begun(stage, post(completion(40, stream=True, prompt=1), "/v1/completions", BATCH))
    newcomer = await stage.client()
    newcomer.send(post(completion(30), "/v1/completions"))
    await borrower.line(b"kv_evicted")
    (await stage.engine.next()).answer(b"{}")
    await newcomer.answer()


async def a_request_that_is_counted(stage: Stage) -> None:
    client = await stage.client()
    client.send(post(chat(text=f"{stage.play:04}" + "word " * 160, max_tokens=32)))
    (await stage.engine.next()).answer(b'{"count":210,"max_model_len":4096,"tokens":[]}')
    (await stage.engine.next()).answer(b"{}")
    await client.answer()


SCENARIOS: dict[str, Callable[[Stage], Coroutine[Any, Any, None]]] = {
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


def watched_everywhere(faults: Faults, patch: pytest.MonkeyPatch, running: Running) -> None:
    sidecar, desk = running.sidecar, running.sidecar._desk
    faults.watch(patch, sidecar.books, "ask", "grow", "settle", "sent", "turn", "room", "count_refusal")
    faults.watch(patch, desk.ratios, "estimate", "learn")
    faults.watch(patch, desk.pool, "call")
    faults.watch(patch, desk.journal, "write")
    faults.watch(patch, desk.tokenizer, "count")
    faults.watch(patch, desk, "new_id")
    faults.watch(patch, clerk, "read_shape", "engine_body", "engine_request")
    faults.watch(patch, StreamMeter, "feed", "rest")
    faults.watch(patch, EngineCall, "pause", "resume", "cancel")
    patch.setattr(Desk, "tick", surviving(Desk.tick, faults))
    patch.setattr(Hub, "expire", surviving(Hub.expire, faults))
    faults.watch(patch, ClientConnection, "attach", "let_go", "answer", "begin", "write", "end")


@dataclass(slots=True)
class Releases:
    """Every ticket that was given, and how often it came back."""

    given: list[int] = field(default_factory=list)
    back: list[int] = field(default_factory=list)


def noted(books: Any) -> Releases:
    releases = Releases()
    release = books.release

    def noting(ticket: int, *args: Any) -> None:
        releases.back.append(ticket)
        release(ticket, *args)

    books.release = noting
    return releases


@dataclass(slots=True)
class Theatre:
    """One sidecar that all plays of a scenario are given in; `trouble`: what its loop reported."""

    running: Running
    engine: RawEngine
    releases: Releases
    trouble: list[dict[str, Any]]

    async def play(self, scenario: Callable[[Stage], Coroutine[Any, Any, None]], faults: Faults) -> None:
        """Play it with one fault, let everybody leave, and see that nothing is left."""
        running, stage = self.running, Stage(self.running, self.engine, [], faults.wanted)
        with pytest.MonkeyPatch.context() as patch:
            watched_everywhere(faults, patch, running)
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
async def theatre() -> AsyncIterator[Theatre]:
    trouble: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(context))
    async with both_ends(wanted=SHARED, tokenizes=True, patience=Patience(half=0.05)) as (running, engine):
        await eventually("the engine was asked how it is", lambda: running.events("engine_silent") != [])
        yield Theatre(running, engine, noted(running.sidecar.books), trouble)


def surviving(tick: Callable[[Any], None], faults: Faults) -> Callable[[Any], None]:
    """On the tick a fault ends the process; here the books are to be seen after it."""

    def ticking(owner: Any) -> None:
        with suppress(faults.kind):
            tick(owner)

    return ticking


def points_of(seen: int) -> list[int]:
    """Every one; of a scenario that goes on for long not those in the middle, which are all alike."""
    numbers = list(range(1, seen + 1))
    return numbers if seen <= MANY else numbers[: MANY // 2] + numbers[-MANY // 2 :]


@pytest.mark.interpreted
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
@on_both_loops
async def test_nothing_stays_held_and_nothing_is_released_twice(
    scenario: Callable[[Stage], Coroutine[Any, Any, None]],
) -> None:
    async with theatre() as house:
        untouched = Faults(0, InjectedError)
        await house.play(scenario, untouched)
        assert untouched.seen > 5
        for wanted in points_of(untouched.seen):
            faults = Faults(wanted, KINDS[wanted % 2])
            try:
                await house.play(scenario, faults)
            except AssertionError as error:
                raise AssertionError(f"after a fault in {faults.points}") from error
            assert faults.points != [] or wanted > untouched.seen - 3  # how often the tick looks differs
