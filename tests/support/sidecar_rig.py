"""What tests of the sidecar share: its documents, a sidecar inside the test, and raw ends on both of its sides."""

import asyncio
import inspect
import io
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self

import msgspec
import pytest
import uvloop

from kvquota_api import pod_config
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import KvPlan, Ladder, PodConfig, PodRef, PoolIdentity, PoolRef, TenantShare, key_digest, sealed
from kvquota_api.usage import SyncRequest, UsageReport
from kvquota_sidecar.proxy.client_side import Patience
from kvquota_sidecar.proxy.engine_side import EngineAddress
from kvquota_sidecar.settings import Bind, Settings
from kvquota_sidecar.sidecar import Sidecar

DEADLINE_SECONDS = 20.0  # for what takes milliseconds; other work on the machine may take the rest
PEPPER = "ab" * 32
TOKEN = "the-token-of-the-pool"
SEARCH, BATCH = "shop/search", "shop/batch"
KEYS = {SEARCH: "kvq-" + "5e" * 32, BATCH: "kvq-" + "ba" * 32}
BLOCK_TOKENS = 16


def share(tenant: str, *, soft: int, hard: int, concurrent: int | None = None) -> TenantShare:
    """A tenant's share, soft and hard in blocks."""
    quota = tenant.partition("/")[2]
    return TenantShare(
        id=tenant, quota=quota, priority=0, soft_blocks=soft, hard_blocks=hard, max_concurrent_requests=concurrent
    )


def config(*shares: TenantShare, generation: int = 1, **changes: Any) -> PodConfig:
    """A config of a pool of 1,024 blocks of 16 tokens; without shares two tenants that have room for everything."""
    plan = KvPlan(
        cap_blocks=1024,
        null_blocks=1,
        block_tokens=BLOCK_TOKENS,
        bytes_per_block=2 * 2**20,
        max_model_len=4096,
        groups=(LayerGroup("Full", BLOCK_TOKENS),),
    )
    whole = PodConfig(
        generation=generation,
        digest="",
        pod=PodRef(namespace="shop", name="pod-0", uid="uid-0"),
        pool=PoolRef(namespace="shop", name="pool"),
        model="tiny",
        engine_type="vLLM",
        kv=plan,
        ladder=Ladder(),
        tenants=shares or (share(SEARCH, soft=400, hard=1000), share(BATCH, soft=400, hard=1000)),
    )
    return sealed(msgspec.structs.replace(whole, **changes))


def identity(**keys: str) -> PoolIdentity:
    """The identity of the two tenants' keys and of `keys` (key=tenant)."""
    owners = {key: tenant for tenant, key in KEYS.items()} | keys
    return sealed(PoolIdentity(digest="", pepper=PEPPER, api_keys={key_digest(PEPPER, k): t for k, t in owners.items()}))


def sync_request(wanted: PodConfig | None = None, known: PoolIdentity | None = None) -> SyncRequest:
    """A sync that carries these documents."""
    carried = {"config": wanted, "identity": known}
    documents = {name: msgspec.Raw(pod_config.encode(each)) for name, each in carried.items() if each is not None}
    digests = {f"{name}_digest": "" if each is None else each.digest for name, each in carried.items()}
    return SyncRequest(**digests, **documents)  # type: ignore[arg-type]


def chat(*, stream: bool = False, text: str = "hello", **more: Any) -> bytes:
    """The body of a chat request."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 32, "stream": stream, **more}
    return json.dumps(body).encode()


def post(
    body: bytes, path: str = "/v1/chat/completions", tenant: str = SEARCH, headers: Iterable[str] = (), minor: int = 1
) -> bytes:
    """A whole POST of a tenant."""
    lines = [f"POST {path} HTTP/1.{minor}", "Host: sidecar", f"Authorization: Bearer {KEYS[tenant]}", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def get(path: str, *headers: str) -> bytes:
    """A whole GET."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: sidecar", *headers, "", ""]).encode()


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on uvloop, where the sidecar is a program, and on asyncio's own loop, where it is inside another."""

    def run(loop: Callable[[], asyncio.AbstractEventLoop], **given: Any) -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(test(**given))

    own = [inspect.Parameter("loop", inspect.Parameter.POSITIONAL_OR_KEYWORD), *inspect.signature(test).parameters.values()]
    vars(run).update(__signature__=inspect.Signature(own), pytestmark=getattr(test, "pytestmark", []))
    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    loops = [pytest.param(asyncio.new_event_loop, id="asyncio"), pytest.param(uvloop.new_event_loop, id="uvloop")]
    parametrized: Callable[..., None] = pytest.mark.parametrize("loop", loops)(run)
    return parametrized


async def eventually(what: str, happened: Callable[[], bool]) -> None:
    """Wait until it happened; fail with `what`."""
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not happened():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not within {DEADLINE_SECONDS:g} s: {what}") from None


# The sidecar.


@dataclass(slots=True)
class Running:
    """A sidecar that serves; `log` is what it wrote."""

    sidecar: Sidecar
    log: io.StringIO

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.sidecar.traffic_address.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.sidecar.admin_address.port}"

    async def connect(self) -> "RawClient":
        return await RawClient.open(self.sidecar.traffic_address)

    async def connect_admin(self) -> "RawClient":
        return await RawClient.open(self.sidecar.admin_address)

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one kind."""
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in lines if line["event"] == name]

    def report(self) -> UsageReport:
        return self.sidecar.sync(sync_request())

    def in_flight(self, tenant: str = SEARCH) -> int:
        return next(each.in_flight for each in self.report().tenants if each.id == tenant)

    async def idle(self) -> None:
        """Wait until nobody holds anything, and check the books."""
        await eventually("nothing runs", lambda: all(not each.in_flight for each in self.report().tenants))
        assert [each.reserved for each in self.report().tenants if each.reserved] == []
        self.sidecar.books.check_integrity()


@asynccontextmanager
async def running_sidecar(
    engine: tuple[str, int],
    *,
    wanted: PodConfig | None = None,
    configured: bool = True,
    clock: Callable[[], float] | None = None,
    patience: Patience | None = None,
    **settings: Any,
) -> AsyncIterator[Running]:
    """A sidecar in this process, with config and identity unless told otherwise; it leaves without waiting."""
    chosen = Settings(
        listen=Bind("127.0.0.1", 0),
        admin=Bind("127.0.0.1", 0),
        engine=EngineAddress(*engine),
        token=TOKEN,
        patience=patience or Patience(),
        **{"drain_seconds": 0.0, "lame_duck_seconds": 0.0, "sample_seconds": 3600.0, **settings},
    )
    log = io.StringIO()
    sidecar = Sidecar(chosen, log=log) if clock is None else Sidecar(chosen, clock=clock, log=log)
    if configured:
        sidecar.sync(sync_request(wanted or config(), identity()))
    async with sidecar:
        yield Running(sidecar, log)


@asynccontextmanager
async def both_ends(**changes: Any) -> AsyncIterator[tuple[Running, "RawEngine"]]:
    """A sidecar before a raw engine; `changes` are those of `running_sidecar`."""
    async with RawEngine() as engine, running_sidecar(engine.address, **changes) as running:
        yield running, engine


@dataclass(slots=True)
class ManualClock:
    """Monotonic seconds that only the test moves."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


# The client's side.


@dataclass(frozen=True, slots=True)
class Got:
    """An answer as it came over the wire. `body` without its framing; `complete`: whether its end came."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool = True

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json()["error"]["code"])


class RawClient:
    """A client that sees every byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, address: Bind) -> "RawClient":
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=1 << 22)
        return cls(reader, writer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def ask(self, data: bytes) -> Got:
        self.send(data)
        return await self.answer()

    async def answer(self) -> Got:
        """The next answer, as far as it comes."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            head = await self.reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"HTTP/1.1 100"):
                head = await self.reader.readuntil(b"\r\n\r\n")
            return await self._body(*_parsed_head(head))

    async def line(self, text: bytes) -> bytes:
        """Everything up to and including `text`."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self.reader.readuntil(text)

    async def eof(self) -> bytes:
        """Everything up to the end of the connection; a reset is an end too."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            rest = b""
            with suppress(ConnectionError):
                while data := await self.reader.read(1 << 16):
                    rest += data
            return rest

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    def reset(self) -> None:
        self.writer.transport.abort()

    async def _body(self, status: int, headers: dict[str, str]) -> Got:
        if "content-length" in headers:
            try:
                return Got(status, headers, await self.reader.readexactly(int(headers["content-length"])))
            except asyncio.IncompleteReadError as error:
                return Got(status, headers, error.partial, complete=False)
        if headers.get("transfer-encoding") == "chunked":
            return await self._chunks(Got(status, headers, b""))
        return Got(status, headers, await self.eof())

    async def _chunks(self, got: Got) -> Got:
        try:
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                got = replace(got, body=got.body + (await self.reader.readexactly(size + 2))[:-2])
            assert await self.reader.readexactly(2) == b"\r\n"
        except (asyncio.IncompleteReadError, ConnectionError):
            return replace(got, complete=False)
        return got


def _parsed_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    return int(first.split(" ")[1]), {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}


# The engine's side.


@dataclass(slots=True)
class EngineConnection:
    """One request that the engine got, and its connection: the test answers it."""

    head: bytes
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")[1:]
        return {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def answer(self, body: bytes, *headers: str, status: str = "200 OK", kind: str = "application/json") -> None:
        """A whole answer by its length; the connection may be used again."""
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers, "", ""]
        self.send("\r\n".join(lines).encode() + body)
        self.done()

    def begin_stream(self) -> None:
        self.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

    def frame(self, text: str = "x", **more: Any) -> None:
        """One frame of a chat with one token in it."""
        self.chunk(frame(text, **more))

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        self.chunk(b"data: [DONE]\n\n")
        self.send(b"0\r\n\r\n")
        self.done()

    def done(self) -> None:
        """This request is answered: the connection waits for the next."""
        self.answered.set()

    def cut(self) -> None:
        """Die: reset the connection."""
        self.writer.transport.abort()
        self.done()

    def finish(self) -> None:
        """Close the connection after what was sent."""
        self.writer.close()
        self.done()

    async def gone(self) -> None:
        """Wait until the sidecar has closed it."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            with suppress(ConnectionError):
                assert await self.reader.read(1) == b""
        self.done()


def frame(text: str = "x", **more: Any) -> bytes:
    """One event of a chat stream."""
    event = {"choices": [{"index": 0, "delta": {"content": text}}], **more}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


class RawEngine:
    """An engine without metrics that answers what the test tells it to, byte by byte."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[EngineConnection] = asyncio.Queue()
        self.accepted = 0  # connections that carried a request
        self.address: tuple[str, int]
        self._server: asyncio.Server
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 24)
        self.address = ("127.0.0.1", self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        for writer in self._writers:
            writer.transport.abort()

    @property
    def authority(self) -> str:
        return ":".join(map(str, self.address))

    async def stop(self) -> None:
        """Listen no more."""
        self._server.close()

    async def next(self) -> EngineConnection:
        """The next request that comes."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self.requests.get()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        counted = False
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET /metrics "):
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    writer.close()
                    return
                self.accepted += not counted
                counted = True
                request = EngineConnection(head, b"", reader, writer)
                request.body = await reader.readexactly(int(request.headers.get("content-length", "0")))
                self.requests.put_nowait(request)
                await request.answered.wait()
