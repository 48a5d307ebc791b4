"""The cluster port of an operator over an API server in memory, in simulated time."""

import asyncio
import base64
import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

import virtual_time
from kvquota_api.pod_config import PodConfig, sealed
from kvquota_operator.adapters.api import Json
from kvquota_operator.adapters.events import Events
from kvquota_operator.adapters.kube import KubeCluster
from kvquota_operator.adapters.metrics import OperatorMetrics
from kvquota_operator.ports import ConflictError, VanishedError
from kvquota_operator.reconcile.observed import Observed, PoolKey
from operator_fakes import config
from operator_world import pool

LLAMA = PoolKey("inference", "llama")
KVQUOTA = "/apis/kvquota.dev/v1alpha1/namespaces/inference"
POOLS, QUOTAS = f"{KVQUOTA}/modelpools", f"{KVQUOTA}/tenantquotas"
CORE = "/api/v1/namespaces/inference"
EVENTS = "/apis/events.k8s.io/v1/namespaces/inference/events"
KEYED = {"identity": {"apiKeys": [{"secretRef": {"name": "search-key", "key": "key"}}]}}
"""A quota with one API key."""


class FakeApi:
    """Objects by path. `down`: raised by everything, `refused` by path, `slow`: seconds of a list by path.

    A watch tells what `tell` is given, and no other change; it breaks with an exception among its `news`.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.version = 0
        self.down: Exception | None = None
        self.refused: dict[str, Exception] = {}
        self.slow: dict[str, float] = {}
        self.news: dict[str, asyncio.Queue[Any]] = {}
        self.selectors: list[str] = []

    def store(self, path: str, body: Json, **metadata: Any) -> Json:
        """What a user does: create or change an object."""
        self.version += 1
        name = path.rsplit("/", 1)[1]
        meta = {**body.get("metadata", {}), "name": name, "namespace": "inference", **metadata}
        meta = {"uid": f"uid-{name}", "generation": 1, **meta, "resourceVersion": str(self.version)}
        stored = {**body, "metadata": meta}
        if "stringData" in stored:
            stored["data"] = _encoded(stored.pop("stringData"))
        self.objects[path] = stored
        return copy.deepcopy(stored)

    async def get(self, path: str, *, timeout_seconds: float = 10.0) -> Json:
        return copy.deepcopy(self._found(path))

    async def create(self, path: str, body: Json) -> Json:
        self._answer()
        path = f"{path}/{body['metadata']['name']}"
        if path in self.objects:
            raise ConflictError("exists")
        return self.store(path, body)

    async def apply(self, path: str, body: Json) -> Json:
        self._answer()
        at = body["metadata"].get("resourceVersion")
        if at is not None and at != self.objects.get(path, {"metadata": {}})["metadata"].get("resourceVersion"):
            raise ConflictError("changed")
        return self.store(path, body)

    async def merge(self, path: str, body: Json) -> Json:
        path = path.removesuffix("/status")
        found = self._found(path)
        if found["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ConflictError("changed")
        status = {**found.get("status", {}), **body["status"]}
        return self.store(path, {**found, "status": {key: each for key, each in status.items() if each is not None}})

    async def list(self, path: str, selector: str = "") -> tuple[list[Json], str]:
        self._answer()
        await asyncio.sleep(self.slow.get(path, 0.0))
        self.selectors.append(selector)
        return [copy.deepcopy(each) for key, each in self.objects.items() if key.startswith(f"{path}/")], str(
            self.version
        )

    async def version_of(self, path: str, selector: str = "") -> str:
        self._answer()
        return str(self.version)

    async def watch(self, path: str, version: str, selector: str = "") -> AsyncIterator[Json]:
        queue = self.news.setdefault(path, asyncio.Queue())
        while True:
            news = await queue.get()
            if isinstance(news, Exception):
                raise news
            yield news

    def tell(self, kind: str, path: str) -> None:
        """What the API server tells those that watch."""
        self.news[path.rsplit("/", 1)[0]].put_nowait({"type": kind, "object": copy.deepcopy(self.objects[path])})

    def _answer(self) -> None:
        if self.down is not None:
            raise self.down

    def _found(self, path: str) -> Json:
        self._answer()
        if path in self.refused:
            raise self.refused[path]
        if path not in self.objects:
            raise VanishedError("404")
        return self.objects[path]


def _encoded(entries: Json) -> dict[str, str]:
    return {key: base64.b64encode(value.encode()).decode() for key, value in entries.items()}


class Scene:
    """A cluster port that runs over a fake API server with one pool, and what it touched."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.touched: list[PoolKey] = []
        self.registry = CollectorRegistry()
        self.api.store(f"{POOLS}/llama", pool("llama"))
        clock = virtual_time.LoopClock()
        metrics = OperatorMetrics(self.registry)
        events = Events(self.api, clock, instance="test", dropped=metrics.event_dropped)  # type: ignore[arg-type]  # a fake of what is used
        self.cluster = KubeCluster(
            self.api,  # type: ignore[arg-type]  # a fake of what is used
            clock,
            namespaces=("inference",),
            events=events,
            metrics=metrics,
        )

    async def observe(self) -> Observed:
        seen = await self.cluster.observe(LLAMA)
        assert seen is not None
        return seen

    def pool_secret(self) -> Json:
        return self.api.objects[f"{CORE}/secrets/kvquota-llama"]


def play(story: Callable[[Scene], Awaitable[None]]) -> None:
    """Run `story` beside a cluster port that has listed everything."""

    async def whole() -> None:
        scene = Scene()
        running = asyncio.create_task(scene.cluster.run(scene.touched.append))
        await scene.cluster.listed.wait()
        try:
            await story(scene)
        finally:
            running.cancel()
            await asyncio.wait([running])

    virtual_time.run(whole())


def told(scene: Scene) -> list[tuple[str, str, str]]:
    """The events that were written: whom they are about, reason and message."""
    events = [body for path, body in scene.api.objects.items() if path.startswith(EVENTS)]
    return [(each["regarding"]["kind"], each["reason"], each["note"]) for each in events]


def stored_pod(scene: Scene, name: str = "pod-0") -> None:
    """A pod of the pool, as a user makes it."""
    labels = {"app": "llama"}
    scene.api.store(f"{CORE}/pods/{name}", {"spec": {"containers": [{"name": "kvquota"}]}}, labels=labels)


def ours(name: str = "pod-0") -> PodConfig:
    """A config of the pool's pod."""
    found = config(name)
    return sealed(msgspec.structs.replace(found, pool=msgspec.structs.replace(found.pool, name="llama")))
