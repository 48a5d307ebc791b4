"""The operator's process goes on where kopf ends: where a watch is refused in a way that kopf does not retry."""

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from fault_proxy import Fault, FaultProxy, proxied
from kvquota_operator.adapters import probes
from kvquota_operator.adapters.inbox import Inbox
from kvquota_operator.handlers import framework
from kvquota_operator.settings import Address
from operator_replicas import HOME, Audit, Replica, leader, replica
from operator_world import Sidecar, World, install_crds, metrics, operator, quota, until, until_true
from testcluster.apiserver import ApiServer
from testcluster.processes import free_port

pytestmark = pytest.mark.apiserver

WATCHES = {("WATCH", "modelpools"), ("WATCH", "tenantquotas")}
TWICE = 2
STOPS_S = 5.0
SOON_S = 15.0
"""Seconds until an edit is in force after a fault: two ends of kopf, or three tries of its own, take about 3."""


@pytest.fixture(scope="module")
def server(audited: ApiServer) -> ApiServer:
    return audited


def ends(process: Replica) -> list[str]:
    """Why kopf was begun anew each time, by the log."""
    lines = [each for each in process.events() if each["event"] == "watch_broke"]
    return [each["reason"] for each in lines if each["path"] == "/apis/kvquota.dev/v1alpha1"]


async def stop(process: Replica) -> int:
    """End it as a kubelet does. How often it has begun kopf anew."""
    start = time.monotonic()
    process.send(signal.SIGTERM)
    assert await asyncio.to_thread(process.process.wait, 30) == 0
    assert time.monotonic() - start < STOPS_S
    return len(ends(process))


async def restarts(process: Replica) -> int:
    """How often the watch of quotas was begun anew, for whatever reason."""
    found = await process.metrics()
    return int(sum(value for name, value in found.items() if "watch_restarts_total" in name and "tenantquotas" in name))


async def lowered_to(world: World, sidecar: Sidecar, percent: int) -> float:
    """Seconds until an edit is in force in the pod."""
    start = time.monotonic()
    await world.patch("tenantquota", "search", {"spec": {"kv": {"hard": {"percent": percent}}}})

    def holds() -> bool:
        config = sidecar.config
        return config is not None and sidecar.hard("search") == (config.kv.cap_blocks - 1) * percent // 100

    await until_true(holds, what=f"{percent} % are in force")
    return time.monotonic() - start


async def terms(world: World) -> tuple[str, int]:
    """Who holds the Lease, and how often it changed hands."""
    [lease] = await world.list("lease", "--namespace", HOME)
    return lease["spec"]["holderIdentity"], lease["spec"].get("leaseTransitions", 0)


@asynccontextmanager
async def governed(
    world: World, server: ApiServer, kubeconfig: Path, folder: Path
) -> AsyncIterator[tuple[FaultProxy, Replica, Sidecar, tuple[str, int]]]:
    """A process that leads behind a proxy, the pod whose quota it has brought into force, and its term."""
    proxy = FaultProxy(server)
    async with proxy.serving() as url:
        await world.add_pool()
        await world.apply(quota("search"))
        sidecar = await world.add_pod("llama-0")
        with replica("only", proxied(kubeconfig, url, folder), world.namespace) as process:
            await leader([process])
            await lowered_to(world, sidecar, 40)
            yield proxy, process, sidecar, await terms(world)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param(401, "Forbidden", id="401"),
        pytest.param(409, "APIConflictError", id="409"),
        pytest.param(410, "APIClientError", id="410"),
        pytest.param(422, "APIUnprocessableEntityError", id="422"),
        pytest.param(429, None, id="429, which kopf retries"),
        pytest.param("cut", None, id="a connection that breaks, which kopf retries"),
    ],
)
async def test_a_watch_that_is_refused_twice_when_it_is_opened_again_ends_nothing(
    world: World, server: ApiServer, kubeconfig: Path, tmp_path: Path, fault: Fault, reason: str | None
) -> None:
    async with governed(world, server, kubeconfig, tmp_path) as (proxy, process, sidecar, term):
        proxy.arm(fault, TWICE, "WATCH")
        proxy.end_watches()
        seconds = await lowered_to(world, sidecar, 30)
        await until_true(lambda: all(proxy.met[each] == TWICE for each in WATCHES), what="both watches are refused")
        later = await lowered_to(world, sidecar, 20)
        print(f"{fault}: in force after {seconds:.1f} s, and {later:.1f} s later on")  # noqa: T201
        assert max(seconds, later) < SOON_S
        assert await process.ready() == 200
        assert await terms(world) == term, "the same process leads, without a break"
        assert await restarts(process) == await stop(process)
        assert set(ends(process)) == ({reason} if reason else set())


async def test_while_no_watch_can_be_opened_the_operator_goes_on_and_asks_little(
    world: World, server: ApiServer, audit: Audit, kubeconfig: Path, tmp_path: Path
) -> None:
    async with governed(world, server, kubeconfig, tmp_path) as (proxy, process, sidecar, term):
        proxy.arm(409, 10**6, "WATCH")
        proxy.end_watches()
        await until_true(lambda: all(proxy.met[each] > 3 for each in WATCHES), what="both watches are refused")
        since, asked = time.time(), sidecar.asked
        seconds = await lowered_to(world, sidecar, 30)
        await asyncio.sleep(10.0)
        read, written = len(audit.asked(since=since)), len(audit.writes(since=since))
        print(f"in force after {seconds:.1f} s; {read} requests, {written} of them writes")  # noqa: T201
        assert sidecar.asked >= asked + 10, "the pods are asked all the time"
        assert seconds < SOON_S
        assert (read < 60, written < 10) == (True, True)
        assert (await process.ready(), await terms(world)) == (200, term)
        await stop(process)


async def test_resources_that_are_installed_anew_are_watched_again(
    world: World, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framework, "UNWATCHED_SECONDS", 2.0)
    await world.add_pool()
    await world.apply(quota("search"))
    sidecar = await world.add_pod("llama-0")
    async with operator(world):
        await lowered_to(world, sidecar, 40)
        await world.kubectl("delete", "crd", "modelpools.kvquota.dev", "tenantquotas.kvquota.dev")
        await asyncio.sleep(5.0)
        await asyncio.to_thread(install_crds, server)
        await world.add_pool()
        await world.apply(quota("search"))
        seconds = await lowered_to(world, sidecar, 30)
        later = await lowered_to(world, sidecar, 20)
        print(f"in force after {seconds:.1f} s, and {later:.1f} s later on")  # noqa: T201
        assert seconds + later < SOON_S


STILLNESS = "kvquota_operator_watch_thread_stillness_seconds"


async def healthz(address: Address) -> tuple[int, str]:
    url = f"http://{address.host}:{address.port}/healthz"
    async with ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def test_a_handler_that_blocks_the_thread_of_the_watches_is_seen_by_the_probe(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else sees it: its connections stay open, the passes go on, and the list once a minute finds the edits."""
    monkeypatch.setattr(probes, "LONGEST_THREAD_STILLNESS_SECONDS", 3.0)
    address, free, deliver = Address("127.0.0.1", free_port()), threading.Event(), Inbox.deliver
    free.set()

    def blocking(inbox: Inbox, *event: Any) -> None:
        free.wait()
        deliver(inbox, *event)

    monkeypatch.setattr(Inbox, "deliver", blocking)
    await world.add_pool()
    await world.apply(quota("search"))
    sidecar = await world.add_pod("llama-0")
    async with operator(world, listen=address):
        await lowered_to(world, sidecar, 40)
        assert (await metrics(address))[STILLNESS] < 3.0
        free.clear()
        try:
            asked = sidecar.asked
            await world.patch("tenantquota", "search", {"spec": {"kv": {"hard": {"percent": 30}}}})
            _, said = await until(lambda: healthz(address), lambda each: each[0] == 503, what="the probe sees it")
            assert said.startswith("the thread that watches pools and quotas has not run for ")
            assert (await metrics(address))[STILLNESS] > 3.0
            assert sidecar.asked > asked, "the passes go on"
        finally:
            free.set()
        await until(lambda: healthz(address), lambda each: each == (200, "ok\n"), what="it runs again")
        await lowered_to(world, sidecar, 20)
