"""One namespace of a real API server with pods whose sidecars are played by this process, and an operator over it."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from aiohttp import ClientSession, web

from kvquota_api import usage
from kvquota_api.meta import PLAN_ANNOTATION
from kvquota_api.pod_config import PodConfig, decode_config, decode_identity
from kvquota_operator.__main__ import run
from kvquota_operator.settings import Address, LeaseSettings, OperatorSettings
from kvquota_operator.webhook_settings import WebhookSettings
from operator_fakes import FakePod
from testcluster.apiserver import ApiServer
from testcluster.cluster import ESTABLISHED
from testcluster.processes import free_port

DEADLINE_S = 60.0
"""Seconds a wait may take: what is waited for takes 2 s at most, on a machine that does nothing else."""

POLL_S = 0.1
CRDS = Path(__file__).parents[2] / "crds"
KEY = "kvq-7c1f4a2e9b6d4c0f8a3e5d7b1c9f2e4a6d8b0c3e5f7a9b1d3c5e7f90a2b4c6d8"

T = TypeVar("T")
Object = dict[str, Any]


def pool(name: str = "llama", *, port: int = 9600, **spec: Any) -> Object:
    """A ModelPool whose pods are labelled app: NAME."""
    return {
        "apiVersion": "kvquota.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "model": {"name": "llama-3.2-1b", "config": {"preset": "llama-3.2-1b"}, "maxModelLen": 32768},
            "engine": {"type": "vLLM"},
            "gpu": {"memory": "24Gi", "count": 1},
            "memory": {"kvPool": {"percent": 50}},
            "sidecar": {"adminPort": port},
            **spec,
        },
    }


def quota(name: str, *, hard: int = 50, tenant: str = "", pool: str = "llama", **spec: Any) -> Object:
    """A TenantQuota; the tenant's name is the quota's unless it is given. `hard` in percent."""
    return {
        "apiVersion": "kvquota.dev/v1alpha1",
        "kind": "TenantQuota",
        "metadata": {"name": name},
        "spec": {
            "tenant": tenant or name,
            "modelPoolRef": {"name": pool},
            "kv": {"hard": {"percent": hard}},
            **spec,
        },
    }


def pod(name: str, *, app: str = "llama", sidecar: bool = True, plan: str | None = None) -> Object:
    """`plan`: the hash of that by which the webhook let it in; None: it was written by hand."""
    containers = [{"name": "vllm", "image": "engine"}] + ([{"name": "kvquota", "image": "sidecar"}] if sidecar else [])
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"app": app},
            "annotations": {} if plan is None else {PLAN_ANNOTATION: plan},
        },
        "spec": {"containers": containers},
    }


def key_secret(name: str, *, key: str = KEY, kind: str = "kvquota.dev/api-key") -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": kind,
        "metadata": {"name": name},
        "stringData": {"key": key},
    }


@dataclass
class Sidecar:
    """What the operator talks to at one address. `config` is what it enforces, `asked` counts syncs."""

    fake: FakePod = field(default_factory=FakePod)
    config: PodConfig | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    asked: int = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        self.tokens.add(request.headers.get("Authorization", ""))
        asked = usage.decode_request(await request.read())
        if asked.config:
            self.config = decode_config(bytes(asked.config))
        if asked.identity:
            self.keys = decode_identity(bytes(asked.identity)).api_keys
        return web.Response(body=usage.encode(self.fake.answer(asked)), content_type="application/json")

    def hard(self, tenant: str) -> int | None:
        """The hard limit in blocks that this sidecar enforces for a tenant of any namespace; None without one."""
        tenants = self.config.tenants if self.config else ()
        return next((each.hard_blocks for each in tenants if each.id.endswith(f"/{tenant}")), None)


class World:
    """Everything of one test. All sidecars listen on one port, each at its own address of this machine."""

    def __init__(self, server: ApiServer, namespace: str, network: int) -> None:
        self.server = server
        self.namespace = namespace
        self.port = free_port()
        self.sidecars: dict[str, Sidecar] = {}
        self._network = network
        self._runners: list[web.AppRunner] = []

    async def kubectl(self, *args: str | Path, input: str | None = None) -> str:  # noqa: A002  as subprocess names it
        """Output of one kubectl call in the namespace of this test."""
        return await asyncio.to_thread(self.server.kubectl, "--namespace", self.namespace, *args, input=input)

    async def get(self, kind: str, name: str) -> Object:
        found: Object = json.loads(await self.kubectl("get", kind, name, "-o", "json"))
        return found

    async def list(self, kind: str, *args: str) -> list[Object]:
        found: list[Object] = json.loads(await self.kubectl("get", kind, "-o", "json", *args))["items"]
        return found

    async def apply(self, *objects: Object) -> None:
        await self.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(objects))

    async def patch(self, kind: str, name: str, patch: Object, *args: str) -> None:
        await self.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(patch), *args)

    async def add_pool(self, name: str = "llama", **spec: Any) -> None:
        await self.apply(pool(name, port=self.port, **spec))

    async def add_pod(
        self,
        name: str,
        *,
        app: str = "llama",
        sidecar: bool = True,
        plan: str | None = None,
        fake: FakePod | None = None,
    ) -> Sidecar:
        """A running, ready pod at an address of its own, where its sidecar answers."""
        await self.apply(pod(name, app=app, sidecar=sidecar, plan=plan))
        there = self.sidecars[name] = Sidecar(fake or FakePod())
        address = f"127.77.{self._network}.{len(self.sidecars)}"
        await self._listen(address, there)
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        await self.patch("pod", name, {"status": status}, "--subresource=status")
        return there

    async def condition(self, kind: str, name: str, of: str) -> tuple[str, str]:
        """Status and reason of one condition; two empty strings where it is not there."""
        listed = (await self.get(kind, name)).get("status", {}).get("conditions", [])
        return next(((each["status"], each["reason"]) for each in listed if each["type"] == of), ("", ""))

    async def config_maps(self) -> dict[str, PodConfig]:
        """The durable copies, by the name of their pod."""
        found = await self.list("configmaps", "-l", "kvquota.dev/pool")
        configs = [decode_config(each["data"]["config.json"]) for each in found]
        return {each.pod.name: each for each in configs}

    async def collect(self) -> None:
        """Delete the durable copies of pods that are gone, as Kubernetes' collector does, which does not run here."""
        there = {each["metadata"]["uid"] for each in await self.list("pods")}
        copies = [each["metadata"] for each in await self.list("configmaps", "-l", "kvquota.dev/pool")]
        gone = [each["name"] for each in copies if each["ownerReferences"][0]["uid"] not in there]
        if gone:
            await self.kubectl("delete", "configmap", *gone)

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()

    async def _listen(self, address: str, sidecar: Sidecar) -> None:
        application = web.Application(client_max_size=2**24)
        application.router.add_post(usage.SYNC_PATH, sidecar.answer)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, address, self.port).start()


@asynccontextmanager
async def world_in(server: ApiServer, namespace: str, *, network: int) -> AsyncIterator[World]:
    """A world in a namespace that is made for it. No two worlds at a time have the same `network`."""
    await asyncio.to_thread(server.create_namespace, namespace)
    world = World(server, namespace, network)
    try:
        yield world
    finally:
        await world.close()


async def until(read: Callable[[], Awaitable[T]], wanted: Callable[[T], bool], *, what: str) -> T:
    """What `read` gives as soon as it is as `wanted`; fails with the last that it gave, and the time."""
    start = time.monotonic()
    while True:
        value = await read()
        if wanted(value):
            return value
        if time.monotonic() - start > DEADLINE_S:
            raise AssertionError(f"not within {DEADLINE_S:.0f} s: {what}; it is {value!r}")
        await asyncio.sleep(POLL_S)


async def until_true(holds: Callable[[], bool], *, what: str) -> None:
    """Wait until `holds()`."""

    async def read() -> bool:
        return holds()

    await until(read, bool, what=what)


async def metrics(address: Address) -> dict[str, float]:
    """What an operator counts, by name and labels as Prometheus writes them."""
    async with ClientSession() as session, session.get(f"http://{address.host}:{address.port}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


class _Bugs(logging.Handler):
    """What the operator goes on after, and no test should."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(logging.Formatter().format(record))


@asynccontextmanager
async def operator(
    world: World,
    *,
    kubeconfig: Path | None = None,
    listen: Address | None = None,
    sync_seconds: float = 0.5,
    lease: LeaseSettings | None = None,
    webhook: WebhookSettings | None = None,
) -> AsyncIterator[None]:
    """An operator of the world's namespace in this process. A bug in it fails the test."""
    settings = OperatorSettings(
        namespaces=(world.namespace,),
        kubeconfig=kubeconfig or world.server.kubeconfig,
        sync_seconds=sync_seconds,
        listen=listen,
        lease=lease,
        webhook=webhook,
    )
    stop, ready, bugs = asyncio.Event(), asyncio.Event(), _Bugs()
    logging.getLogger("kvquota_operator.errands").addHandler(bugs)
    running = asyncio.create_task(run(settings, stop, ready))
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait([running, waiting], timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert ready.is_set() or running.done(), "the operator did not become ready"
        if not running.done():
            yield
    finally:
        stop.set()
        await asyncio.wait_for(running, DEADLINE_S)
        logging.getLogger("kvquota_operator.errands").removeHandler(bugs)
    assert bugs.told == []


def install_crds(server: ApiServer) -> None:
    """Make the resources of kvquota ready to be used, as a user does."""
    server.kubectl("apply", "-f", CRDS)
    names = [f"{plural}.kvquota.dev" for plural in ("modelpools", "tenantquotas")]
    server.kubectl("wait", ESTABLISHED, "--timeout=60s", "crd", *names)


@contextmanager
def with_crds(server: ApiServer) -> Iterator[ApiServer]:
    """An API server that others use too: it knows kvquota's resources, and none of them is left behind."""
    install_crds(server)
    yield server
    server.kubectl("delete", "modelpools,tenantquotas", "--all", "--all-namespaces")
