"""What tests of the sidecar share: its documents, a sidecar inside the test, and raw ends on both of its sides."""

import asyncio
import inspect
import io
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import uvloop

from kvquota_api import pod_config
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import (
    KvPlan,
    Ladder,
    PodConfig,
    PodRef,
    PoolIdentity,
    PoolRef,
    TenantShare,
    key_digest,
    sealed,
)
from kvquota_api.usage import SyncRequest, UsageReport
from kvquota_sidecar.proxy.engine_side import EngineAddress
from kvquota_sidecar.proxy.hub import Patience
from kvquota_sidecar.settings import Bind, Settings
from kvquota_sidecar.sidecar import Sidecar
from raw_client import DEADLINE_SECONDS, RawClient
from raw_engine import EngineConnection, RawEngine

PEPPER = "ab" * 32
TOKEN = "the-token-of-the-pool"
SEARCH, BATCH, OTHER = "shop/search", "shop/batch", "shop/other"
KEYS = {SEARCH: "kvq-" + "5e" * 32, BATCH: "kvq-" + "ba" * 32, OTHER: "kvq-" + "07" * 32}
BLOCK_TOKENS = 16
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def share(tenant: str, *, soft: int, hard: int, concurrent: int | None = None) -> TenantShare:
    """A tenant's share, soft and hard in blocks."""
    quota = tenant.partition("/")[2]
    return TenantShare(
        id=tenant, quota=quota, priority=0, soft_blocks=soft, hard_blocks=hard, max_concurrent_requests=concurrent
    )


def config(*shares: TenantShare, generation: int = 1, blocks: int = 1024, **changes: Any) -> PodConfig:
    """A config of a pool of `blocks` blocks of 16 tokens, one of them the null block; without shares two tenants that
    have room for everything."""
    plan = KvPlan(
        cap_blocks=blocks,
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
    """The identity of the tenants' keys and of `keys` (key=tenant)."""
    owners = {key: tenant for tenant, key in KEYS.items()} | keys
    return sealed(
        PoolIdentity(digest="", pepper=PEPPER, api_keys={key_digest(PEPPER, k): t for k, t in owners.items()})
    )


def sync_request(wanted: PodConfig | None = None, known: PoolIdentity | None = None) -> SyncRequest:
    """A sync that carries these documents."""
    carried = {"config": wanted, "identity": known}
    documents: dict[str, Any] = {
        name: msgspec.Raw(pod_config.encode(each)) for name, each in carried.items() if each is not None
    }
    digests: dict[str, Any] = {f"{name}_digest": "" if each is None else each.digest for name, each in carried.items()}
    return SyncRequest(**digests, **documents)


def chat(*, stream: bool = False, text: str = "hello", **more: Any) -> bytes:
    """The body of a chat request."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 32,
        "stream": stream,
        **more,
    }
    return json.dumps(body).encode()


def completion(blocks: int, *, stream: bool = False, prompt: int = 0, **more: Any) -> bytes:
    """The body of a completion that takes exactly `blocks` blocks, one of them its output; `prompt`: the token that its
    prompt consists of, so that two of them have something in common or not."""
    ids = [prompt] * ((blocks - 1) * BLOCK_TOKENS)
    return json.dumps({"model": "tiny", "prompt": ids, "max_tokens": BLOCK_TOKENS, "stream": stream, **more}).encode()


def post(
    body: bytes, path: str = "/v1/chat/completions", tenant: str = SEARCH, headers: Iterable[str] = (), minor: int = 1
) -> bytes:
    """A whole POST of a tenant."""
    lines = [f"POST {path} HTTP/1.{minor}", "Host: sidecar", f"Authorization: Bearer {KEYS[tenant]}", *headers]
    lines.append("Content-Type: application/json")
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def get(path: str, *headers: str) -> bytes:
    """A whole GET."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: sidecar", *headers, "", ""]).encode()


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on uvloop, where the sidecar is a program, and on asyncio's own loop, where it is inside another."""
    return _on(test, "asyncio", "uvloop")


def on_the_programs_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on uvloop alone, where the sidecar is a program: for what takes hundreds of requests."""
    return _on(test, "uvloop")


def _on(test: Callable[..., Coroutine[Any, Any, None]], *loops: str) -> Callable[..., None]:
    def run(loop: Callable[[], asyncio.AbstractEventLoop], **given: Any) -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(test(**given))

    own = [
        inspect.Parameter("loop", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        *inspect.signature(test).parameters.values(),
    ]
    vars(run).update(__signature__=inspect.Signature(own), pytestmark=getattr(test, "pytestmark", []))
    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    parametrized: Callable[..., None] = pytest.mark.parametrize("loop", [LOOPS[each] for each in loops], ids=loops)(run)
    return parametrized


def need_namespaces() -> None:
    """Skip the test, as those of the node are skipped, where it may make no namespaces."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")


async def eventually(what: str, happened: Callable[[], bool]) -> None:
    """Wait until it happened; fail with `what`."""
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not happened():  # noqa: ASYNC110 - what is waited for does not know that it is
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

    async def connect(self) -> RawClient:
        return await _opened(self.sidecar.traffic_address)

    async def connect_admin(self) -> RawClient:
        return await _opened(self.sidecar.admin_address)

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
        **{"drain_seconds": 0.0, "lame_duck_seconds": 0.0, "sample_seconds": 3600.0, "settle_seconds": 0.0, **settings},
    )
    log = io.StringIO()
    sidecar = Sidecar(chosen, log=log) if clock is None else Sidecar(chosen, clock=clock, log=log)
    if configured:
        sidecar.sync(sync_request(wanted or config(), identity()))
    async with sidecar:
        yield Running(sidecar, log)


@asynccontextmanager
async def both_ends(*, tokenizes: bool = False, **changes: Any) -> AsyncIterator[tuple[Running, RawEngine]]:
    """A sidecar before a raw engine; `changes` are those of `running_sidecar`."""
    async with RawEngine(tokenizes=tokenizes) as engine, running_sidecar(engine.address, **changes) as running:
        yield running, engine


@dataclass(slots=True)
class ManualClock:
    """Monotonic seconds that only the test moves."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


async def _opened(bind: Bind) -> RawClient:
    return await RawClient.open(bind.host, bind.port)


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream that has sent one token to its client."""

    client: RawClient
    upstream: EngineConnection


@asynccontextmanager
async def begun_stream(
    running: Running, engine: RawEngine, minor: int = 1, request: bytes | None = None
) -> AsyncIterator[Stream]:
    """A stream that a client of HTTP/1.`minor` has asked for, or that `request` asks for."""
    async with await running.connect() as client:
        client.send(post(chat(stream=True), minor=minor) if request is None else request)
        upstream = await engine.next()
        upstream.begin_stream()
        upstream.frame()
        await client.line(b"\n\n" if minor == 0 else b"\n\n\r\n")
        yield Stream(client, upstream)


@asynccontextmanager
async def sent(
    running: Running, engine: RawEngine, *, stream: bool
) -> AsyncIterator[tuple[RawClient, EngineConnection]]:
    """A request that the engine has, and has not answered."""
    async with await running.connect() as client:
        client.send(post(chat(stream=stream)))
        upstream = await engine.next()
        assert running.in_flight() == 1
        yield client, upstream
