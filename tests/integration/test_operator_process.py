"""The operator as a process, and with an API server that is not what it should be."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path

import aiohttp
import pytest
import yaml

from kvquota_operator.settings import Address
from operator_world import (
    CRDS,
    DEADLINE_S,
    Sidecar,
    World,
    install_crds,
    metrics,
    operator,
    pool,
    quota,
    until,
    until_true,
    world_in,
)
from testcluster.apiserver import ApiServer
from testcluster.cluster import ESTABLISHED
from testcluster.processes import Server, free_port

pytestmark = pytest.mark.apiserver


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """An API server of this test's own, which knows nothing of kvquota."""
    with ApiServer() as server:
        yield server


@pytest.fixture
async def world(server: ApiServer) -> AsyncIterator[World]:
    async with world_in(server, "inference", network=201) as world:
        yield world


@contextmanager
def process(*args: str | Path) -> Iterator["subprocess.Popen[str]"]:
    environ = {**os.environ, "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-m", "kvquota_operator", "--log-format=text", *map(str, args)]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ)
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


async def get(address: Address, path: str) -> tuple[int, str]:
    """Status and text of an answer; 0 and the error where nobody answers."""
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{address.host}:{address.port}{path}") as answer,
        ):
            return answer.status, await answer.text()
    except aiohttp.ClientConnectionError as error:
        return 0, str(error)


async def test_a_process_waits_for_the_resources_serves_probes_and_ends_on_sigterm(world: World) -> None:
    address = Address("127.0.0.1", free_port())
    args = ("--namespace=inference", "--kubeconfig", world.server.kubeconfig, f"--listen=127.0.0.1:{address.port}")
    with process(*args) as running:
        assert await until(lambda: get(address, "/healthz"), lambda each: each[0] == 200, what="healthz") == (
            200,
            "ok\n",
        )
        assert await get(address, "/readyz") == (503, "the pools and quotas have not been listed yet\n")
        await asyncio.to_thread(install_crds, world.server)
        await until(lambda: get(address, "/readyz"), lambda each: each == (200, "ok\n"), what="readyz")
        sidecar = await world.add_pod("llama-0")
        await world.add_pool()
        await world.apply(quota("search"))
        await until_true(lambda: sidecar.hard("search") is not None, what="the quota is in force")
        assert (await metrics(address))["kvquota_operator_pools"] == 1
        running.send_signal(signal.SIGTERM)
        _, log = await asyncio.to_thread(running.communicate, timeout=DEADLINE_S)
    assert running.returncode == 0, log
    lines = [line.split(" ", 2)[2] for line in log.splitlines()]
    assert lines[0] == "INFO kvquota_operator: starting for inference; each pod is asked every 2 s"
    assert "run `kubectl apply -f crds/`" in lines[1]
    assert lines[-1] == "INFO kvquota_operator: stopped"


@pytest.mark.parametrize("flags", [(), ("--no-leader-elect",)], ids=["with an election", "without an election"])
def test_a_process_without_a_way_to_the_api_server_says_what_to_give(flags: tuple[str, ...]) -> None:
    with process("--namespace=inference", "--listen=127.0.0.1:1", *flags) as running:
        _, log = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 2
    assert log.splitlines()[-1].endswith("run inside a pod with a service account, or give --kubeconfig FILE")


README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(README.read_text(encoding="utf-8"), "cannot be read as a kubeconfig (", id="prose"),
        pytest.param("", "is no kubeconfig (it has no lists clusters, contexts, users)", id="an empty file"),
        pytest.param("clusters: 3\ncontexts: []\nusers: []\n", "is no kubeconfig (", id="other YAML"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_said_in_one_sentence(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(content, encoding="utf-8")
    with process("--namespace=inference", "--kubeconfig", path, "--listen=127.0.0.1:1") as running:
        _, log = running.communicate(timeout=DEADLINE_S)
    [_, last] = log.splitlines()
    assert running.returncode == 2
    assert last.partition(" CRITICAL kvquota_operator: ")[2].startswith(f"{path} {says}")
    assert last.endswith("): give --kubeconfig a file that kubectl works with")


@pytest.fixture
def nowhere(tmp_path: Path) -> Path:
    """The kubeconfig of an API server that is away."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "current-context: c\nusers: [{name: u, user: {}}]\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n"
        "clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}]\n"
    )
    return kubeconfig


WEBHOOK = ("--webhook-service=home/webhook", "--sidecar-image=kvquota/sidecar:test")
TAKEN = ": end what has the port, or give {} another address"
FOREIGN = ": give {} an address of this machine, or a port alone, as in :9443"


@pytest.mark.parametrize(
    ("flags", "address", "purpose", "way_out"),
    [
        pytest.param(
            ("--listen={taken}",), "{taken}", "probes and metrics", TAKEN.format("--listen"), id="probes, a taken port"
        ),
        pytest.param(
            ("--listen=192.0.2.1:9443",),
            "192.0.2.1:9443",
            "probes and metrics",
            FOREIGN.format("--listen"),
            id="probes, an address of another machine",
        ),
        pytest.param(
            ("--listen={free}", "--webhook-listen={taken}", *WEBHOOK),
            "{taken}",
            "the webhook",
            TAKEN.format("--webhook-listen"),
            id="the webhook, a taken port",
        ),
        pytest.param(
            ("--listen={free}", "--webhook-listen={free}", *WEBHOOK),
            "{free}",
            "the webhook",
            TAKEN.format("--webhook-listen"),
            id="the webhook, where the probes are",
        ),
        pytest.param(
            ("--listen={free}", "--webhook-listen=192.0.2.1:9443", *WEBHOOK),
            "192.0.2.1:9443",
            "the webhook",
            FOREIGN.format("--webhook-listen"),
            id="the webhook, an address of another machine",
        ),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_said_in_one_sentence(
    nowhere: Path, flags: tuple[str, ...], address: str, purpose: str, way_out: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        places = {"taken": f"127.0.0.1:{server.getsockname()[1]}", "free": f"127.0.0.1:{free_port()}"}
        given = [flag.format(**places) for flag in flags]
        with process("--namespace=inference", "--kubeconfig", nowhere, *given) as running:
            _, log = running.communicate(timeout=DEADLINE_S)
    last = log.splitlines()[-1]
    assert running.returncode == 2
    sentence = last.partition(" CRITICAL kvquota_operator: ")[2]
    assert sentence.startswith(f"cannot listen on {address.format(**places)} for {purpose} (")
    assert sentence.endswith(f"){way_out}")
    assert "Traceback" not in log


async def test_a_namespace_that_does_not_exist_is_named_and_waited_for(world: World) -> None:
    await asyncio.to_thread(install_crds, world.server)
    address = Address("127.0.0.1", free_port())
    args = ("--namespace=later", "--kubeconfig", world.server.kubeconfig, f"--listen=127.0.0.1:{address.port}")
    with process(*args) as running:
        await until(lambda: get(address, "/readyz"), lambda each: each == (200, "ok\n"), what="readyz")
        await asyncio.to_thread(world.server.create_namespace, "later")
        late = World(world.server, "later", network=202)
        await late.apply(quota("search"))
        await until(
            lambda: late.condition("tenantquota", "search", "Ready"),
            lambda each: each == ("False", "PoolNotFound"),
            what="it is served",
        )
        running.send_signal(signal.SIGTERM)
        _, log = await asyncio.to_thread(running.communicate, timeout=DEADLINE_S)
    warnings = [line for line in log.splitlines() if " WARNING " in line]
    assert [line.partition("kube: ")[2] for line in warnings] == [
        "namespace later does not exist (yet): create it or correct --namespace; waiting for it"
    ]


async def test_several_namespaces_are_served_and_no_other(server: ApiServer) -> None:
    """Each has a pool and a quota of the same names."""
    await asyncio.to_thread(install_crds, server)
    address = Address("127.0.0.1", free_port())
    args = ("--namespace=one", "--namespace=two", "--kubeconfig", server.kubeconfig, "--sync-seconds=0.5")
    async with AsyncExitStack() as stack:
        names = ("one", "two", "three")
        worlds = [
            await stack.enter_async_context(world_in(server, name, network=203 + n)) for n, name in enumerate(names)
        ]
        sidecars = [await governed(world, hard) for world, hard in zip(worlds, (10, 20, 30), strict=True)]
        with process(*args, f"--listen=127.0.0.1:{address.port}"):
            for percents in ((10, 20, None), (40, 30, None)):
                for world, percent in zip(worlds, percents, strict=True):
                    if percent is not None:
                        await world.patch("tenantquota", "search", {"spec": {"kv": {"hard": {"percent": percent}}}})
                await until_true(lambda: [percent_of(each) for each in sidecars] == list(percents), what=f"{percents}")  # noqa: B023 - awaited at once
            found = await metrics(address)
    assert found["kvquota_operator_pools"] == 2
    assert sidecars[2].asked == 0
    assert [len(await world.list("configmaps", "-l", "kvquota.dev/pool")) for world in worlds] == [1, 1, 0]


async def governed(world: World, hard: int) -> Sidecar:
    await world.add_pool()
    await world.apply(quota("search", hard=hard))
    return await world.add_pod("llama-0")


def percent_of(sidecar: Sidecar) -> int | None:
    """The hard limit that a sidecar enforces, of what its pod has."""
    blocks = sidecar.hard("search")
    return (
        None if blocks is None or sidecar.config is None else round(100 * blocks / (sidecar.config.kv.cap_blocks - 1))
    )


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    """A server that keeps its connections and does nothing."""
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


async def test_pods_are_asked_while_the_api_server_is_away_and_nothing_is_written_twice_afterwards(
    world: World,
) -> None:
    await asyncio.to_thread(install_crds, world.server)
    sidecar = await world.add_pod("llama-0")
    await world.add_pool()
    await world.apply(quota("search", hard=50))
    address = Address("127.0.0.1", free_port())
    async with operator(world, listen=address):
        await until_true(lambda: sidecar.hard("search") is not None, what="the quota is in force")
        before = sidecar.hard("search")
        [api] = [each for each in world.server.servers if each.name == "kube-apiserver"]
        with frozen(api):
            asked = sidecar.asked
            await until_true(lambda: sidecar.asked > asked + 15, what="fifteen more questions")
        await world.patch("tenantquota", "search", {"spec": {"kv": {"hard": {"percent": 25}}}})
        await until_true(lambda: sidecar.hard("search") != before, what="the lowered quota is in force")
        await until(world.config_maps, lambda each: each["llama-0"].generation == 2, what="and stored")
        counted = await metrics(address)
    assert counted['kvquota_operator_errands_total{kind="Config"}'] == 2


async def test_a_killed_api_server_ends_nothing(world: World) -> None:
    await asyncio.to_thread(install_crds, world.server)
    sidecar = await world.add_pod("llama-0")
    await world.add_pool()
    await world.apply(quota("search"))
    address = Address("127.0.0.1", free_port())
    async with operator(world, listen=address):
        await until_true(lambda: sidecar.hard("search") is not None, what="the quota is in force")
        [api] = [each for each in world.server.servers if each.name == "kube-apiserver"]
        api.process.kill()
        asked = sidecar.asked
        broken = 'kvquota_operator_watch_restarts_total{reason="Unreachable",watched="pods"}'
        await until(lambda: metrics(address), lambda each: each.get(broken, 0) >= 2, what="the watch is tried again")
        await until_true(lambda: sidecar.asked > asked + 15, what="fifteen more questions")
        assert await get(address, "/healthz") == (200, "ok\n")


LAX = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def install_lax_crds(server: ApiServer) -> None:
    """Resources of the same names that take everything, as those of another version may take more than ours."""
    for path in sorted(CRDS.glob("*.yaml")):
        definition = yaml.safe_load(path.read_text())
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = LAX
        server.kubectl("apply", "-f", "-", input=yaml.safe_dump(definition))
        server.kubectl("wait", ESTABLISHED, "crd", definition["metadata"]["name"])


async def test_objects_that_nobody_can_read_are_told_so_and_spoil_nothing(world: World) -> None:
    await asyncio.to_thread(install_lax_crds, world.server)
    await world.apply(quota("broken", priority=-5), pool("unreadable", port=world.port, engine={"type": "Abacus"}))
    await asyncio.to_thread(install_crds, world.server)
    await world.add_pool()
    await world.apply(quota("search"))
    sidecar = await world.add_pod("llama-0")
    async with operator(world):
        await until_true(lambda: sidecar.hard("search") is not None, what="the good quota is in force")
        for kind, name, of in (("tenantquota", "broken", "Ready"), ("modelpool", "unreadable", "PlanValid")):
            await until(
                partial(world.condition, kind, name, of),
                lambda each: each == ("False", "InvalidSpec"),
                what=f"{of} of {kind} {name}",
            )
    assert sidecar.hard("broken") is None
