"""All sidecars of the benchmark in one process: answers `POST /v1/sync` at every address of this machine.

It speaks the contract of `kvquota_api` and checks the token of each pool; a pod is the address that was called. Orders
come as lines of JSON on standard input, each is answered by one line; it ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec
import uvloop
from workload import Course, Fleet, pod_of, usage_of

from kvquota_api import usage
from kvquota_api.pod_config import DocumentError, PodConfig, decode_config, decode_identity
from kvquota_api.usage import SYNC_PATH, EngineUsage, InForce, PoolUsage, Rejected, TenantUsage, UsageReport

REQUEST: Final = f"POST {SYNC_PATH} ".encode()
QUANTUM_SECONDS: Final = 0.05  # how long the numbers of a pool are reckoned once for all its pods


@dataclass(slots=True)
class Pod:
    """One sidecar. `answered`: when it told its numbers; `config_at`: when it took its config."""

    pool: int
    sequence: int = 0
    config: PodConfig | None = None
    config_at: float = 0.0
    identity_digest: str = ""
    rejected: Rejected | None = None
    answered: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Pool:
    token: bytes | None
    engine: EngineUsage
    tenants: tuple[tuple[str, float], ...]
    reckoned_at: float = 0.0
    numbers: tuple[TenantUsage, ...] = ()


class Sidecars:
    """`refused` counts calls with a token that is not the pool's."""

    def __init__(self) -> None:
        self._pods: dict[int, Pod] = {}
        self._pools: list[Pool] = []
        self._course = Course()
        self._wall = time.time()
        self._started = time.time()
        self.refused = 0

    def answer(self, pod: Pod, body: bytes) -> bytes:
        """The answer to a sync whose token was right."""
        asked = usage.decode_request(body)
        if asked.config:
            self._take_config(pod, bytes(asked.config))
        if asked.identity:
            pod.identity_digest = decode_identity(bytes(asked.identity)).digest
        now = time.monotonic()
        pod.sequence += 1
        pod.answered.append(now)
        return usage.encode(self._report(pod, self._pools[pod.pool], now))

    def find(self, ip: str, token: bytes) -> Pod | None:
        """The pod at an address, None where the token is not its pool's. Raises KeyError where there is no pod."""
        pod = self._pods[pod_of(ip)]
        if token == self._pools[pod.pool].token:
            return pod
        self.refused += 1
        return None

    def order(self, order: dict[str, Any]) -> Any:
        """Carry out one order."""
        orders: dict[str, Callable[..., Any]] = {
            "people": self._people,
            "token": self._token,
            "course": self._set_course,
            "told": self._told,
            "in_force": self._in_force,
        }
        return orders[order.pop("order")](**order)

    def _people(self, fleet: dict[str, int], phases: list[list[tuple[str, float]]], blocks: int, tokens: int) -> int:
        there = Fleet(**fleet)
        engine = EngineUsage(state="Ready", blocks=blocks, block_tokens=tokens, used_blocks=100, running=1, waiting=0)
        engine = msgspec.structs.replace(engine, age_seconds=0.5, aborts_lost=False)
        for pool in range(there.pools):
            self._pools.append(Pool(None, engine, tuple((name, phase) for name, phase in phases[pool])))
            self._pods.update({pod: Pod(pool) for pod in there.pods_of(pool)})
        return len(self._pods)

    def _token(self, pool: int, token: str) -> None:
        self._pools[pool].token = token.encode()

    def _set_course(self, passed: float, since: float | None) -> None:
        self._course = Course(passed, since)

    def _told(self) -> dict[str, Any]:
        """When each pod told its numbers, since this was last asked."""
        found = {pod: [round(each, 4) for each in seen.answered] for pod, seen in self._pods.items()}
        for seen in self._pods.values():
            seen.answered.clear()
        return {"answered": found, "refused": self.refused}

    def _in_force(self, pool: int, tenant: str) -> list[tuple[int | None, float]]:
        """Of every pod of a pool: the tenant's hard, and since when it has its config."""
        return [(_hard(pod.config, tenant), pod.config_at) for pod in self._pods.values() if pod.pool == pool]

    def _take_config(self, pod: Pod, data: bytes) -> None:
        try:
            config = decode_config(data)
        except DocumentError as error:
            pod.rejected = Rejected(generation=0, reason="Unreadable", message=str(error)[:1024])
            return
        if pod.config is not None and config.generation < pod.config.generation:
            pod.rejected = Rejected(generation=config.generation, reason="Older", message="A newer one is in force.")
            return
        pod.config, pod.config_at, pod.rejected = config, time.monotonic(), None

    def _report(self, pod: Pod, pool: Pool, now: float) -> UsageReport:
        config = pod.config
        in_force = InForce(
            generation=config.generation if config else 0,
            config_digest=config.digest if config else "",
            identity_digest=pod.identity_digest,
            source="Channel" if config else "None",
        )
        tenants = self._numbers(pool, now) if config else ()
        blocks = (pool.engine.blocks or 1) - 1
        reserved = sum(each.reserved for each in tenants)
        used = sum(each.used for each in tenants)
        return UsageReport(
            epoch="benchmark",
            sequence=pod.sequence,
            started_at=self._started,
            in_force=in_force,
            rejected=pod.rejected,
            engine=pool.engine,
            pool=PoolUsage(
                usable=blocks,
                free=blocks - reserved,
                reserved=reserved,
                used=used,
                unattributed=0,
                pressure_percent=min(100.0, 100 * reserved / blocks),
            ),
            tenants=tenants,
        )

    def _numbers(self, pool: Pool, now: float) -> tuple[TenantUsage, ...]:
        if now - pool.reckoned_at > QUANTUM_SECONDS or not pool.numbers:
            passed = self._course.at(now)
            pool.numbers = tuple(usage_of(name, phase, passed, self._wall) for name, phase in pool.tenants)
            pool.reckoned_at = now
        return pool.numbers


def _hard(config: PodConfig | None, tenant: str) -> int | None:
    tenants = () if config is None else config.tenants
    return next((each.hard_blocks for each in tenants if each.id == tenant), None)


class Connection(asyncio.Protocol):
    """HTTP/1.1 as far as the channel needs it: one request at a time, with a length."""

    def __init__(self, sidecars: Sidecars) -> None:
        self._sidecars = sidecars
        self._received = b""
        self._ip = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is of no class of asyncio
        self._ip = transport.get_extra_info("sockname")[0]

    def data_received(self, data: bytes) -> None:
        self._received = self._received + data if self._received else data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        fields = dict(_field(line) for line in head.split(b"\r\n")[1:])
        length = int(fields.get(b"content-length", b"0"))
        if len(rest) < length:
            return
        self._received = rest[length:]
        self._transport.write(self._answer(head, fields, rest[:length]))

    def _answer(self, head: bytes, fields: dict[bytes, bytes], body: bytes) -> bytes:
        if not head.startswith(REQUEST):
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        try:
            pod = self._sidecars.find(self._ip, fields.get(b"authorization", b"").removeprefix(b"Bearer "))
        except KeyError:
            return b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
        if pod is None:
            return b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
        content = self._sidecars.answer(pod, body)
        start = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        return start % len(content) + content


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.lower(), value.strip()


async def serve(port: int) -> None:
    """Until standard input ends."""
    loop, sidecars = asyncio.get_running_loop(), Sidecars()
    server = await loop.create_server(lambda: Connection(sidecars), "0.0.0.0", port, backlog=8192)
    orders = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        print(json.dumps(sidecars.order(json.loads(line))), flush=True)
    server.close()


def main() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
