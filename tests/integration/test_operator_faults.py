"""The operator behind an API server that refuses, breaks off and falls silent: it converges, whatever was hit."""

import json
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
import yaml
from aiohttp import ClientSession

from chart_rights import CHART, rights_of
from fault_proxy import Call, Fault, FaultProxy, proxied
from kvquota_api.memory.presets import load_preset
from kvquota_api.meta import INJECT_LABEL
from kvquota_operator import __main__ as program
from kvquota_operator.adapters import api as api_module
from kvquota_operator.adapters import certificates, kube
from kvquota_operator.adapters import watch as watch_module
from kvquota_operator.handlers import framework, restarting
from kvquota_operator.injection.outcomes import SidecarImage
from kvquota_operator.settings import Address, LeaseSettings
from kvquota_operator.webhook_settings import ServiceName, WebhookSettings
from operator_replicas import HOME, Audit
from operator_world import Sidecar, World, key_secret, operator, pod, pool, quota, until, until_true
from testcluster.apiserver import ApiServer
from testcluster.helm import Helm
from testcluster.processes import free_port

pytestmark = pytest.mark.apiserver

FAULTS: tuple[Fault, ...] = (401, 403, 409, 410, 422, 429, 500, 503, 504, "cut", "answer lost")
HITS = 2
MOST_WRITES = 100
"""Of one round with a fault: it needs about 30 writes, each of which is hit twice and may then be made for nothing."""

METHODS = {"get": "GET", "list": "LIST", "watch": "WATCH", "create": "POST", "patch": "PATCH", "update": "PUT"}
NOTICED_S, BOOKMARKS_S = 75.0, 60.0  # what is promised, and how far the bookmarks of an API server are apart
WEBHOOK = "kvquota-webhook"
CONFIGURATION = f"{HOME}-{WEBHOOK}"
CONFLICTS: dict[Call, Fault] = {("PATCH", "modelpools/status"): 409, ("PATCH", "tenantquotas/status"): 409}
"""After a conflict, and never else, a single pool or quota is read."""


@pytest.fixture(scope="module")
def server(audited: ApiServer) -> ApiServer:
    return audited


async def in_force(sidecar: Sidecar, percent: int) -> None:
    def holds() -> bool:
        config = sidecar.config
        return config is not None and sidecar.hard("search") == (config.kv.cap_blocks - 1) * percent // 100

    await until_true(holds, what=f"{percent} % are in force")


async def settled(world: World, sidecars: list[Sidecar], percent: int) -> None:
    """Everywhere is what the quota says: in the pods, in their durable copies and in the statuses."""
    for each in sidecars:
        await in_force(each, percent)
    blocks = sidecars[0].hard("search")

    async def copies() -> list[int]:
        return [each.tenants[0].hard_blocks for each in (await world.config_maps()).values() if each.tenants]

    async def said() -> object:
        status = (await world.get("tenantquota", "search")).get("status", {})
        return status.get("hard", {}).get("blocks"), status.get("observedGeneration")

    generation = (await world.get("tenantquota", "search"))["metadata"]["generation"]
    await until(copies, lambda each: each == [blocks] * len(sidecars), what="every durable copy has it")
    await until(said, lambda each: each == (blocks, generation), what="the status says so")


async def round_of(world: World, sidecars: list[Sidecar], number: int) -> int:
    """One of everything: lost durable copies, a pod, a pool, an edit, a key, an event. The new hard in percent."""
    percent, key, config = 20 + number, f"key-{number}", {"configMapRef": {"name": "model", "key": "config.json"}}
    model = {"name": "own", "config": config, "maxModelLen": 8192}
    await world.kubectl("delete", "configmaps", "-l", "kvquota.dev/pool=llama", "--wait=false")
    sidecars.append(await world.add_pod(f"llama-{number}"))
    await world.apply(key_secret(key, key=f"kvq-{token_hex(32)}"), pool(f"other-{number}", model=model))
    identity = {"apiKeys": [{"secretRef": {"name": name, "key": "key"}} for name in ("search-key", key)]}
    await world.apply(quota("search", hard=percent, identity=identity), quota(f"orphan-{number}", pool="nowhere"))
    return percent


@dataclass(frozen=True)
class Hook:
    """The chart of an operator that serves this namespace: what it may ask for, and its webhook, at an address."""

    world: World
    manifests: list[dict[str, Any]]
    port: int

    @property
    def settings(self) -> WebhookSettings:
        image = SidecarImage("kvquota/sidecar:test", "IfNotPresent", cpu="200m", memory="256Mi")
        return WebhookSettings(Address("127.0.0.1", self.port), ServiceName(HOME, WEBHOOK), image)

    def calls(self) -> set[Call]:
        """All that the operator may ask for, which is all that it ever does: see the test of the chart's rights."""
        rights = rights_of(self.manifests)
        return {(METHODS[verb], f"{HOME}/{of}" if place == HOME else of) for place, _, of, verb in rights}

    async def put_in(self) -> None:
        """Its Secret is empty, and nobody believes any certificate."""
        for manifest in self.manifests:
            if manifest["kind"] == "MutatingWebhookConfiguration":
                manifest["webhooks"][0]["clientConfig"] = {"url": f"https://127.0.0.1:{self.port}/inject"}
            if manifest["kind"] in ("Secret", "MutatingWebhookConfiguration"):
                await self.world.kubectl("delete", manifest["kind"], WEBHOOK, CONFIGURATION, "-n", HOME, IGNORE)
                await self.world.kubectl("create", "-n", HOME, "-f", "-", input=yaml.safe_dump(manifest))

    async def create(self) -> str:
        """What is said of a pod that asks for the sidecar: its containers besides the engine, or why it is refused.

        Not by kubectl, which tries ten times what is to be tried again.
        """
        asking, server = pod("asking", sidecar=False), self.world.server
        asking["metadata"]["labels"][INJECT_LABEL] = "true"
        asking["spec"]["containers"][0] |= {"args": ["--port", "8000"]}
        url = f"{server.url}/api/v1/namespaces/{self.world.namespace}/pods?dryRun=All"
        headers = {"Authorization": f"Bearer {server.token}"}
        context = ssl.create_default_context(cafile=str(server.ca))
        async with ClientSession() as session, session.post(url, json=asking, headers=headers, ssl=context) as answer:
            body = await answer.json()
        if answer.status == 201:
            return " ".join(each["name"] for each in body["spec"].get("initContainers", []))
        return str(body["message"])


IGNORE = "--ignore-not-found"


@pytest.fixture
def hook(world: World, helm: Helm) -> Hook:
    text = helm("template", "kvquota", CHART, "--namespace", HOME, "--set", f"namespaces={{{world.namespace}}}")
    return Hook(world, [each for each in yaml.safe_load_all(text) if each], free_port())


async def is_asked_in_vain(proxy: FaultProxy, hook: Hook, fault: Fault) -> None:
    """While the webhook cannot read pools, it says so; as soon as it can, pods get what they ask for."""
    proxy.arm(fault, 10**6, "LIST")
    refused = await hook.create()
    assert "the pod's ModelPool cannot be read now" in refused, refused
    proxy.arm(fault, 0)
    assert await hook.create() == "kvquota"


@dataclass
class Scene:
    """A pool with a pod, and an operator that is started behind the proxy for each fault."""

    world: World
    proxy: FaultProxy
    hook: Hook
    kubeconfig: Path
    sidecars: list[Sidecar]

    async def under(self, number: int, fault: Fault) -> int:
        """Whatever the operator may ask for meets the fault, and all is well in the end. How many requests met it."""
        world, proxy = self.world, self.proxy
        await self.hook.put_in()
        proxy.arm(fault, HITS, first=CONFLICTS)
        lease = LeaseSettings(f"{world.namespace}-{number}", HOME)
        async with operator(world, kubeconfig=self.kubeconfig, lease=lease, webhook=self.hook.settings):
            percent = await round_of(world, self.sidecars, number)
            await settled(world, self.sidecars, percent)
            await world.patch("tenantquota", "search", {"spec": {"kv": {"hard": {"percent": percent + 20}}}})
            await until(self.missed, lambda each: not each, what=f"{fault} hits every kind of call")
            await settled(world, self.sidecars, percent + 20)
            await until_true(lambda: len(self.sidecars[0].keys) == 2, what="the pods know both keys")
            await until(self.hook.create, lambda each: each == "kvquota", what="the webhook is believed")
            hits = proxy.met.total()
            await is_asked_in_vain(proxy, self.hook, fault)
        return hits

    async def missed(self) -> list[Call]:
        """Kinds of request that did not meet the fault yet."""
        return sorted(self.hook.calls() - self.proxy.met.keys())


@pytest.fixture
async def scene(
    world: World, server: ApiServer, hook: Hook, kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    for module in (kube, certificates):  # which begin anew with the first of their requests, and each is hit twice
        monkeypatch.setattr(module, "LONGEST_RETRY_SECONDS", 1.0)
    monkeypatch.setattr(restarting, "LONGEST_PAUSE_SECONDS", 1.0)
    monkeypatch.setattr(program, "LEAVING_SECONDS", 0.0)
    proxy = FaultProxy(server, apart=HOME)
    async with proxy.serving() as url:
        await world.add_pool()
        config = {"config.json": json.dumps(load_preset("llama-3.2-1b"))}
        model = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "model"}, "data": config}
        await world.apply(model, key_secret("search-key"))
        sidecars = [await world.add_pod("llama-0")]
        yield Scene(world, proxy, hook, proxied(kubeconfig, url, tmp_path), sidecars)


async def test_whatever_is_refused_twice_is_done_in_the_end(scene: Scene, audit: Audit) -> None:
    """Each kind of request that the operator may make, by each fault, from the first start on."""
    for number, fault in enumerate(FAULTS, start=1):
        start, before = time.monotonic(), len(audit.writes())
        hits = await scene.under(number, fault)
        written = len(audit.writes()) - before
        print(f"{fault}: {time.monotonic() - start:.1f} s, {written} writes, {hits} hits")  # noqa: T201
        assert written <= MOST_WRITES


def test_a_watch_that_falls_silent_is_noticed_within_75_seconds() -> None:
    """As shipped; the next test has shorter ones."""
    watching = framework.kopf_settings().watching
    assert watching.inactivity_timeout is not None
    assert api_module.INACTIVITY_SECONDS + watch_module.FIRST_RETRY_SECONDS <= NOTICED_S
    assert watching.inactivity_timeout + watching.reconnect_backoff <= NOTICED_S
    assert min(api_module.INACTIVITY_SECONDS, watching.inactivity_timeout) > BOOKMARKS_S, "or all of them are"


async def test_a_watch_that_falls_silent_is_begun_anew(
    world: World, server: ApiServer, kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "INACTIVITY_SECONDS", 3.0)
    monkeypatch.setattr(framework, "INACTIVITY_SECONDS", 3.0)
    proxy = FaultProxy(server)
    async with proxy.serving() as url:
        path = proxied(kubeconfig, url, tmp_path)
        await world.add_pool()
        await world.apply(quota("search"))
        sidecars = [await world.add_pod("llama-0")]
        async with operator(world, kubeconfig=path):
            await settled(world, sidecars, 50)
            for number in (1, 2, 3):
                opened = proxy.watches
                proxy.silence()
                start = time.monotonic()
                percent = await round_of(world, sidecars, number)
                await settled(world, sidecars, percent)
                print(f"{time.monotonic() - start:.1f} s, {proxy.watches - opened} watches begun anew")  # noqa: T201
                assert proxy.watches - opened >= 4, "pods, configs, pools and quotas"
