"""Talk to an engine as a client does, and read its metrics as a monitor does."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from testengine.port import EngineUnderTest

_Seen = TypeVar("_Seen")

# Generous: a step of the real engine takes 5 ms on two idle cores, and a second or more on busy ones.
_PATIENCE_SECONDS = 300.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer in one piece."""

    status: int
    headers: dict[str, str]
    document: Any


@dataclass(frozen=True, slots=True)
class Work:
    """What an engine did in some time: output tokens that it made, answers that it finished; aborted ones are none."""

    output_tokens: float
    finished: float

    def __sub__(self, earlier: "Work") -> "Work":
        return Work(self.output_tokens - earlier.output_tokens, self.finished - earlier.finished)


@dataclass(frozen=True, slots=True)
class Readings:
    """One scrape. Counters and gauges by name as exposed, summed over labels; `families` has everything."""

    families: tuple[Metric, ...]

    @property
    def work(self) -> Work:
        """All that the engine did since it started."""
        return Work(self.value("vllm:generation_tokens_total"), self.value("vllm:request_success_total"))

    def value(self, name: str) -> float:
        """The sum of the samples called `name`; raises `KeyError` where there is none."""
        values = [sample.value for family in self.families for sample in family.samples if sample.name == name]
        if not values:
            raise KeyError(name)
        return sum(values)

    def labels(self, name: str) -> list[dict[str, str]]:
        return [sample.labels for family in self.families for sample in family.samples if sample.name == name]


class EngineClient:
    """One client of one engine; connections are its own."""

    def __init__(self, engine: EngineUnderTest, session: aiohttp.ClientSession) -> None:
        self.engine = engine
        self._session = session

    async def post(self, path: str, body: Any, **headers: str) -> Reply:
        """Send JSON, or bytes as they are, and read the whole answer."""
        async with self._send(path, body, headers) as response:
            text = await response.text()
            head = {name.lower(): value for name, value in response.headers.items()}
            return Reply(response.status, head, json.loads(text) if text else None)

    async def get(self, path: str) -> Reply:
        async with self._session.get(self.engine.base_url + path) as response:
            text = await response.text()
            head = {name.lower(): value for name, value in response.headers.items()}
            return Reply(response.status, head, json.loads(text) if text else None)

    async def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """Read a whole stream: its documents in order, and the text `[DONE]` where it stands."""
        async with self._send(path, body | {"stream": True}, {}) as response:
            assert response.status == 200, await response.text()
            return [event async for event in events(response)]

    @asynccontextmanager
    async def open_stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        """A stream whose head has arrived; its connection is cut when the block is left."""
        response = await self._send(path, body | {"stream": True}, {})
        try:
            yield response
        finally:
            response.close()

    async def readings(self) -> Readings:
        async with self._session.get(self.engine.base_url + "/metrics") as response:
            return Readings(tuple(text_string_to_metric_families(await response.text())))

    async def blocks_in_use(self) -> float:
        """The blocks in use, now."""
        return self.blocks_of(await self.readings())

    def blocks_of(self, readings: Readings) -> float:
        """The gauge times the pool without its null block; a whole number but for rounding."""
        return readings.value("vllm:kv_cache_usage_perc") * (self.engine.blocks - 1)

    async def until_idle(self) -> None:
        """Wait until nothing runs, waits or holds blocks."""
        await eventually(self._load, lambda load: load == (0, 0, 0))

    async def _load(self) -> tuple[float, float, float]:
        now = await self.readings()
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        return (now.value(names[0]), now.value(names[1]), now.value(names[2]))

    def _send(self, path: str, body: Any, headers: dict[str, str]) -> Any:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
        return self._session.post(self.engine.base_url + path, data=content, headers=sent)


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    """The documents of a stream as they arrive, `[DONE]` as text."""
    async for line in response.content:
        if line.startswith(b"data: "):
            data = line[len(b"data: ") :].strip()
            yield "[DONE]" if data == b"[DONE]" else json.loads(data)


async def eventually(look: Callable[[], Awaitable[_Seen]], wanted: Callable[[_Seen], bool]) -> _Seen:
    """Look until what is seen is `wanted`, and return it; fail with what was seen last."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE_SECONDS
    while not wanted(seen := await look()):
        if loop.time() > deadline:
            raise AssertionError(f"still {seen!r} after {_PATIENCE_SECONDS:.0f} s")
        await asyncio.sleep(_POLL_SECONDS)
    return seen


@asynccontextmanager
async def client_of(engine: EngineUnderTest) -> AsyncIterator[EngineClient]:
    """A client with a limit on how long a request may take."""
    timeout = aiohttp.ClientTimeout(total=_PATIENCE_SECONDS)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield EngineClient(engine, session)
