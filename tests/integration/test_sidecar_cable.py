"""A client on the other end of a cable: not near, and given up when it is cut off without a word."""

import asyncio
import io
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvquota_api.usage import TenantUsage
from kvquota_sidecar.inheritance import Inheritance
from kvquota_sidecar.listening import Listeners
from kvquota_sidecar.proxy.engine_side import EngineAddress
from kvquota_sidecar.settings import Bind, Settings
from kvquota_sidecar.sidecar import Sidecar
from raw_client import RawClient
from raw_engine import RawEngine
from sidecar_rig import (
    TOKEN,
    chat,
    config,
    eventually,
    get,
    identity,
    need_namespaces,
    on_both_loops,
    post,
    sync_request,
)
from testcluster.node.namespaces import connect, listen

SIDECAR, CLIENT = "10.99.0.1", "10.99.0.2"
SCALE = 10  # times faster than in the product
LIMIT_SECONDS = 60.0


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, timeout=30)


@dataclass(frozen=True, slots=True)
class Cable:
    """Two network namespaces with a cable between them, as files to enter them by."""

    sidecar: int
    client: int

    @property
    def at_sidecar(self) -> Path:
        return Path(f"/proc/{self.sidecar}/ns/net")

    @property
    def at_client(self) -> Path:
        return Path(f"/proc/{self.client}/ns/net")

    def cut(self) -> None:
        run("nsenter", f"--target={self.client}", "--net", "ip", "link", "set", "cable", "down")


@pytest.fixture
def cable() -> Iterator[Cable]:
    need_namespaces()
    holders = [subprocess.Popen(["unshare", "--net", "sleep", "300"]) for _ in range(2)]
    try:
        own = Path("/proc/self/ns/net").readlink()
        for each in holders:
            while Path(f"/proc/{each.pid}/ns/net").readlink() == own:
                time.sleep(0.01)
        one, two = (each.pid for each in holders)
        run(*f"ip link add cable netns {one} type veth peer name cable netns {two}".split())
        for pid, address in ((one, SIDECAR), (two, CLIENT)):
            enter = ("nsenter", f"--target={pid}", "--net")
            run(*enter, *f"ip addr add {address}/24 dev cable".split())
            run(*enter, "ip", "link", "set", "cable", "up")
        yield Cable(one, two)
    finally:
        for each in holders:
            each.kill()
            each.wait()


@asynccontextmanager
async def sidecar_at(cable: Cable, **changes: Any) -> AsyncIterator[tuple[Sidecar, RawEngine]]:
    """A sidecar that listens at its end of the cable; all else of it is here."""
    ports = [listen(cable.at_sidecar, SIDECAR, 0) for _ in range(2)]
    silent, kept = os.open(os.devnull, os.O_RDWR), os.memfd_create("kept")
    async with RawEngine() as engine:
        settings = Settings(
            engine=EngineAddress(*engine.address),
            token=TOKEN,
            drain_seconds=0.0,
            lame_duck_seconds=0.0,
            sample_seconds=3600.0,
            **changes,
        )
        listeners = Listeners((ports[0],), (ports[1],))
        inherited = Inheritance(listeners, beat=silent, life=silent, kept=kept, restarts={})
        sidecar = Sidecar(settings, log=io.StringIO(), inherited=inherited)
        sidecar.sync(sync_request(config(), identity()))
        async with sidecar:
            yield sidecar, engine
    os.close(silent)
    os.close(kept)


async def client_at(cable: Cable, where: Bind) -> RawClient:
    sock = await asyncio.to_thread(connect, cable.at_client, SIDECAR, where.port)
    return RawClient(*await asyncio.open_connection(sock=sock))


def quicken(sidecar: Sidecar) -> None:
    """What the sidecar has set on the socket of its client: the same, SCALE times quicker."""
    (connection,) = sidecar._traffic_hub.connections
    sock = connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT):
        sock.setsockopt(socket.IPPROTO_TCP, option, sock.getsockopt(socket.IPPROTO_TCP, option) // SCALE)


@pytest.mark.parametrize("sends", ["nothing", "what is never acknowledged"])
@on_both_loops
async def test_a_client_whose_cable_is_cut_is_given_up_within_a_minute(cable: Cable, sends: str) -> None:
    async with sidecar_at(cable) as (sidecar, engine):
        client = await client_at(cable, sidecar.traffic_address)
        client.send(post(chat(stream=True)))
        upstream = await engine.next()
        upstream.begin_stream()
        upstream.frame()
        await client.line(b"\n\n")
        quicken(sidecar)
        cable.cut()
        if sends != "nothing":
            upstream.frame()
        cut_at = time.monotonic()
        await upstream.gone()
        took = time.monotonic() - cut_at
        await eventually("nothing is held", lambda: sum(each.reserved for each in held(sidecar)) == 0)
        client.reset()
    assert took * SCALE <= LIMIT_SECONDS


def held(sidecar: Sidecar) -> tuple[TenantUsage, ...]:
    return sidecar.sync(sync_request()).tenants


HOOKS = [(method, path) for method in ("GET", "POST") for path in ("/drain", "/drain/wait")]


@pytest.mark.parametrize(("method", "path"), HOOKS)
@on_both_loops
async def test_another_pod_cannot_begin_the_drain_whatever_it_has(cable: Cable, method: str, path: str) -> None:
    request_bytes = get(path).replace(b"GET", method.encode())
    async with sidecar_at(cable) as (sidecar, _), await client_at(cable, sidecar.admin_address) as stranger:
        with_token = request_bytes.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer %b\r\n\r\n" % TOKEN.encode())
        forwarded = request_bytes.replace(b"\r\n\r\n", b"\r\nX-Forwarded-For: 127.0.0.1\r\n\r\n")
        for each in (request_bytes, with_token, forwarded):
            got = await stranger.ask(each)
            assert (got.status, CLIENT in got.json()["message"]) == (403, True)
        assert (await stranger.ask(get("/healthz"))).status == 200
        assert (await stranger.ask(get("/v1/usage"))).status == 401
        assert not sidecar._standing.is_leaving


@on_both_loops
async def test_the_node_can_begin_the_drain(cable: Cable) -> None:
    async with (
        sidecar_at(cable, node_addresses=(CLIENT,)) as (sidecar, _),
        await client_at(cable, sidecar.admin_address) as kubelet,
    ):
        assert (await kubelet.ask(get("/drain"))).status == 200
        assert sidecar._standing.is_leaving
