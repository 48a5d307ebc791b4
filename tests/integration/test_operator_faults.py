"""The operator behind an API server that refuses, breaks off and falls silent: it converges, whatever was hit."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from secrets import token_hex

import pytest
import yaml

from chart_rights import CHART, rights_of
from fault_proxy import Fault, FaultProxy, proxied
from kvquota_api.memory.presets import load_preset
from kvquota_operator.adapters import api as api_module
from kvquota_operator.handlers import framework, restarting
from kvquota_operator.settings import LeaseSettings
from operator_replicas import HOME, Audit, account, audited_server
from operator_world import Sidecar, World, key_secret, operator, pool, quota, until, until_true, world_in
from testcluster.apiserver import ApiServer
from testcluster.helm import Helm

pytestmark = pytest.mark.apiserver

FAULTS: tuple[Fault, ...] = (401, 403, 409, 410, 422, 429, 500, 503, 504, "cut", "answer lost")
HITS = 2
MOST_WRITES = 80
"""Of one round with a fault: it needs about 20 writes, each of which is hit twice and may then be made for nothing."""

WATCHES = {("WATCH", watched) for watched in ("modelpools", "tenantquotas", "pods", "configmaps")}
TOLD = ("POST", "events")
"""Comes with a write of a status that is known to be done: where its answer is lost nothing may be told any more."""

CALLS = WATCHES | {
    *(("POST", "configmaps"), ("PATCH", "tenantquotas/status"), ("PATCH", "modelpools/status"), ("PUT", "leases")),
    *(("GET", "configmaps"), ("GET", "secrets"), ("POST", "secrets"), ("PATCH", "secrets"), TOLD),
}
"""Kinds of request that every round meets, beside those that depend on what went wrong before."""

METHODS = {"get": "GET", "list": "GET", "watch": "WATCH", "create": "POST", "patch": "PATCH", "update": "PUT"}


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return Audit(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def server(audit: Audit) -> Iterator[ApiServer]:
    with audited_server(audit) as server:
        yield server


@pytest.fixture(scope="module")
def kubeconfig(server: ApiServer, audit: Audit) -> Path:
    return account(server, "operator", audit.folder)


NUMBERS = iter(range(220, 250))


@pytest.fixture
async def world(server: ApiServer) -> AsyncIterator[World]:
    number = next(NUMBERS)
    async with world_in(server, f"faults-{number}", network=number) as world:
        yield world


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


async def missed(proxy: FaultProxy, fault: Fault) -> list[tuple[str, str]]:
    """Kinds of request that were not hit yet."""
    wanted = CALLS - {TOLD} if fault == "answer lost" else CALLS
    return sorted(wanted - proxy.met.keys())


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


def calls_of(helm: Helm) -> set[tuple[str, str]]:
    """What the chart lets an operator without a webhook ask for."""
    text = helm("template", "kvquota", CHART, "--set", "webhook.enabled=false")
    rights = rights_of(each for each in yaml.safe_load_all(text) if each)
    return {(METHODS[verb], resource) for _, _, resource, verb in rights}


async def test_whatever_is_refused_twice_is_done_in_the_end(
    world: World,
    server: ApiServer,
    audit: Audit,
    kubeconfig: Path,
    helm: Helm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restarting, "LONGEST_PAUSE_SECONDS", 1.0)  # kopf makes five requests in a row, each hit twice
    proxy = FaultProxy(server)
    async with proxy.serving() as url:
        path = proxied(kubeconfig, url, tmp_path)
        await world.add_pool()
        identity = {"apiKeys": [{"secretRef": {"name": "search-key", "key": "key"}}]}
        config = {"config.json": json.dumps(load_preset("llama-3.2-1b"))}
        model = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "model"}, "data": config}
        await world.apply(model, key_secret("search-key"), quota("search", identity=identity))
        sidecars = [await world.add_pod("llama-0")]
        proxy.arm(503, 1)
        async with operator(world, kubeconfig=path, lease=LeaseSettings(world.namespace, HOME)):
            await settled(world, sidecars, 50)
            met = set(proxy.met)
            for number, fault in enumerate(FAULTS, start=1):
                start, before = time.monotonic(), len(audit.writes())
                proxy.arm(fault, HITS)
                proxy.end_watches()
                percent = await round_of(world, sidecars, number)
                await until(
                    partial(missed, proxy, fault), lambda each: not each, what=f"{fault} hits every kind of call"
                )
                await settled(world, sidecars, percent)
                await until_true(lambda: len(sidecars[0].keys) == 2, what="the pods know both keys")
                met |= set(proxy.met)
                written = len(audit.writes()) - before
                print(f"{fault}: {time.monotonic() - start:.1f} s, {written} writes, {sum(proxy.met.values())} hits")  # noqa: T201
                assert written <= MOST_WRITES
    assert calls_of(helm) - met == set(), "whatever the operator may ask for was refused once"


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
