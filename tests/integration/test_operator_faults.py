"""The operator behind an API server that refuses, breaks off and falls silent: it converges, whatever was hit."""

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fault_proxy import Fault, FaultProxy, proxied
from kvquota_operator.adapters import api as api_module
from kvquota_operator.handlers import framework, restarting
from kvquota_operator.settings import LeaseSettings
from operator_replicas import HOME, Audit, account, audited_server
from operator_world import Sidecar, World, key_secret, operator, quota, until, until_true, world_in
from testcluster.apiserver import ApiServer

pytestmark = pytest.mark.apiserver

FAULTS: tuple[Fault, ...] = (401, 403, 409, 410, 422, 429, 500, 503, 504, "cut", "answer lost")
HITS = 2
MOST_WRITES = 60
"""Of one round with a fault: it needs about 12 writes, each of which is hit twice and may then be made for nothing."""

WATCHES = {("WATCH", watched) for watched in ("modelpools", "tenantquotas", "pods", "configmaps")}
CALLS = {("POST", "configmaps"), ("PATCH", "tenantquotas/status"), ("PUT", "leases")} | WATCHES
"""Kinds of request that every round meets, beside those that depend on what went wrong before."""


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


async def round_of(world: World, sidecars: list[Sidecar], number: int) -> int:
    """One of everything: another pod, an edit, a lost durable copy, an event. The new hard in percent."""
    percent = 20 + number
    sidecars.append(await world.add_pod(f"llama-{number}"))
    await world.patch("tenantquota", "search", {"spec": {"kv": {"hard": {"percent": percent}}}})
    await world.apply(quota(f"orphan-{number}", pool="nowhere"))
    await world.kubectl("delete", "configmaps", "-l", "kvquota.dev/pool=llama", "--wait=false")
    return percent


async def test_whatever_is_refused_twice_is_done_in_the_end(
    world: World,
    server: ApiServer,
    audit: Audit,
    kubeconfig: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restarting, "LONGEST_PAUSE_SECONDS", 1.0)  # kopf makes five requests in a row, each hit twice
    proxy = FaultProxy(server)
    async with proxy.serving() as url:
        path = proxied(kubeconfig, url, tmp_path)
        await world.add_pool()
        identity = {"apiKeys": [{"secretRef": {"name": "search-key", "key": "key"}}]}
        await world.apply(key_secret("search-key"), quota("search", identity=identity))
        sidecars = [await world.add_pod("llama-0")]
        async with operator(world, kubeconfig=path, lease=LeaseSettings(world.namespace, HOME)):
            await settled(world, sidecars, 50)
            for number, fault in enumerate(FAULTS, start=1):
                start, before = time.monotonic(), len(audit.writes())
                proxy.arm(fault, HITS)
                proxy.end_watches()
                percent = await round_of(world, sidecars, number)
                await until_true(lambda: proxy.met.keys() >= CALLS, what=f"{fault} hits every kind of call")
                await settled(world, sidecars, percent)
                written = len(audit.writes()) - before
                print(f"{fault}: {time.monotonic() - start:.1f} s, {written} writes, {sum(proxy.met.values())} hits")  # noqa: T201
                assert written <= MOST_WRITES
                assert sidecars[0].keys, "no key was taken away"


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
