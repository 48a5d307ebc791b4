"""The phases of the benchmark, and the stage on which they are played."""

from __future__ import annotations

import asyncio
import base64
import platform
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import machine_load
import site_objects
from api_calls import Calls, all_of, calls
from arguments import python_of
from figures import Step, observed_after, p95, peak_per_second, shown_after
from programs import Operator, Sidecars, sidecars
from site_objects import NAMESPACE
from watching import StatusWatch, collection
from workload import STEP_SECONDS, Course, Fleet, marker, pod_name, pool_name, steps, tenant_name

from contract_cluster import CRDS, NAMES
from kvquota_api.meta import TOKEN_KEY
from testcluster.apiserver import ApiServer
from testcluster.cluster import ESTABLISHED

POLL_SECONDS: Final = 0.1
QUIET_SECONDS: Final = 15.0  # without a write before an idle operator is believed to be idle
LATE_SECONDS: Final = 1.5 * STEP_SECONDS  # how long after a step it is still waited for
CORE: Final = f"/api/v1/namespaces/{NAMESPACE}"


@dataclass(frozen=True, slots=True)
class Site:
    """What is measured; `python` and `options` are the operator's, `patience` in seconds for each phase."""

    fleet: Fleet
    seconds: float
    edits: int
    patience: float
    port: int | None
    log: Path
    python: str
    options: tuple[str, ...] = ()


class Stage:
    """Everything that runs. `course` is that of the numbers."""

    def __init__(self, site: Site, server: ApiServer, api: Calls, pods: Sidecars) -> None:
        self.site = site
        self.server = server
        self.api = api
        self.pods = pods
        self.course = Course()
        self.watch = StatusWatch(api)
        self.operator = Operator(server.kubeconfig, site.log, site.python, site.options)

    def phase(self, quota: int) -> float:
        return quota / self.site.fleet.quotas

    def pids(self) -> dict[str, int]:
        servers = {server.name: server.process.pid for server in self.server.servers}
        return {"operator": self.operator.pid, "sidecars": self.pods.pid, **servers}

    async def set_course(self, course: Course) -> None:
        self.course = course
        await self.pods.order("course", **asdict(course))

    async def until(self, holds: Callable[[], bool], what: str) -> float:
        """The moment at which it held. Raises RuntimeError where it does not within the patience."""
        deadline = time.monotonic() + self.site.patience
        while not holds():
            self.operator.check_alive()
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {self.site.patience:.0f} s: {what}")
            await asyncio.sleep(POLL_SECONDS)
        return time.monotonic()

    def right(self) -> bool:
        """Whether every status says what the pods say, of a course that stands still."""
        fleet, passed = self.site.fleet, self.course.at(time.monotonic())
        for pool in range(fleet.pools):
            count = len(fleet.pods_of(pool))
            if self.watch.status("modelpools", pool_name(pool)).get("pods", {}).get("summary") != f"{count}/{count}":
                return False
            for quota in fleet.quotas_of(pool):
                wanted = count * marker(self.phase(quota), passed)
                if self.watch.status("tenantquotas", tenant_name(quota)).get("inFlight") != wanted:
                    return False
        return True


async def measure(site: Site) -> dict[str, Any]:
    """All phases, one after the other."""
    async with stage(site) as on:
        try:
            say("first start")
            cold = await first_start(on)
            cold_cpu = machine_load.cpu_seconds(on.operator.pid)
            say(f"right after {cold:.1f} s; numbers change for {site.seconds:.0f} s")
            steady = await changing(on)
            say("numbers stand still")
            idle = await idling(on)
            say("second start")
            again = await second_start(on)
        finally:
            on.operator.stop()
        return {
            "pods": site.fleet.pods,
            "quotas": site.fleet.quotas,
            "observedP95Seconds": steady["observedP95Seconds"],
            "statusP95Seconds": steady["statusP95Seconds"],
            "statusWritesPerSecondPeak": steady["statusWritesPerSecondPeak"],
            "statusWritesPerSecondIdle": idle["statusWritesPerSecond"],
            "editInForce250PodsSeconds": steady["editSeconds"],
            "editOfAPoolQuotaInForceSeconds": steady["poolEditSeconds"],
            "cpuCores": steady["cores"]["operator"],
            "rssMiB": steady["rssMiB"],
            "coldStartSeconds": round(cold, 2),
            "coldStartCpuSeconds": round(cold_cpu, 2),
            "secondStartSeconds": round(again, 2),
            "steady": steady,
            "idle": idle,
            "conditions": conditions(site),
        }


def conditions(site: Site) -> dict[str, Any]:
    packages = ("kopf", "kubernetes", "aiohttp", "msgspec", "pydantic")
    return {
        **machine_load.machine(),
        "python": python_of(site.python),
        "pools": site.fleet.pools,
        "quotasOfScopePool": sum(site.fleet.is_of_pool(quota) for quota in range(site.fleet.quotas)),
        "podsOfTheEditedPool": len(site.fleet.pods_of(0)),
        "secondsOfChange": site.seconds,
        "stepSeconds": STEP_SECONDS,
        "operatorOptions": list(site.options),
        "packages": {name: version(name) for name in packages},
        "apiServer": "v1.36.3, etcd without fsync, on the same machine",
        "system": platform.platform(),
    }


@asynccontextmanager
async def stage(site: Site) -> AsyncIterator[Stage]:
    """API server, objects, sidecars and the watch; the operator is not started."""
    with ApiServer() as server:
        await asyncio.to_thread(prepare, server)
        async with calls(server.access) as api, sidecars(site.port) as pods:
            on = Stage(site, server, api, pods)
            say(f"making {site.fleet.pods} pods and {site.fleet.quotas} quotas in {site.fleet.pools} pools")
            await people(on)
            background = [asyncio.create_task(on.watch.run()), asyncio.create_task(bring_tokens(on))]
            try:
                yield on
            finally:
                for task in background:
                    task.cancel()
                await asyncio.wait(background)


def prepare(server: ApiServer) -> None:
    server.kubectl("apply", "-f", str(CRDS))
    server.kubectl("wait", ESTABLISHED, "--timeout=60s", "crd", *NAMES.values())
    server.create_namespace(NAMESPACE)


async def people(on: Stage) -> None:
    """Make all objects, and tell the sidecars who they are."""
    fleet, port = on.site.fleet, on.pods.port
    plan = site_objects.planned(port)
    phases = [[(_id(quota), on.phase(quota)) for quota in fleet.quotas_of(pool)] for pool in range(fleet.pools)]
    await on.pods.order("people", fleet=asdict(fleet), phases=phases, blocks=plan.cap_blocks, tokens=plan.block_tokens)
    pools = (site_objects.model_pool(pool, port) for pool in range(fleet.pools))
    await all_of(on.api.create(collection("modelpools"), body) for body in pools)
    await all_of(on.api.create(f"{CORE}/secrets", site_objects.api_key(each)) for each in range(fleet.quotas))
    await all_of(on.api.create(collection("tenantquotas"), body) for body in site_objects.quotas(fleet))
    await all_of(_add_pod(on, number, body) for number, body in site_objects.pods(fleet))


def _id(quota: int) -> str:
    return f"{NAMESPACE}/{tenant_name(quota)}"


async def _add_pod(on: Stage, number: int, body: site_objects.Object) -> None:
    await on.api.create(f"{CORE}/pods", body)
    await on.api.merge(f"{CORE}/pods/{pod_name(number)}/status", site_objects.pod_status(number))


async def bring_tokens(on: Stage) -> None:
    """What a node does: bring the pool's Secret, as soon as there is one, to the pods that mount it."""
    pools = {f"kvquota-{pool_name(pool)}": pool for pool in range(on.site.fleet.pools)}
    listed = await on.api.get(f"{CORE}/secrets")
    async for event in on.api.watch(f"{CORE}/secrets", listed["metadata"]["resourceVersion"]):
        pool = pools.get(event["object"]["metadata"]["name"])
        if pool is not None and event["type"] in ("ADDED", "MODIFIED"):
            token = base64.b64decode(event["object"]["data"][TOKEN_KEY]).decode()
            await on.pods.order("token", pool=pool, token=token)


async def first_start(on: Stage) -> float:
    """Seconds from the start of the process until every status is right."""
    start = time.monotonic()
    on.operator.start()
    return await on.until(on.right, "every status is right") - start


async def second_start(on: Stage) -> float:
    """The same where everything is stored already, and the numbers changed while no operator ran."""
    on.operator.stop()
    await on.set_course(Course(on.course.passed + STEP_SECONDS))
    start = time.monotonic()
    on.operator.start()
    return await on.until(on.right, "every status is right again") - start


async def changing(on: Stage) -> dict[str, Any]:
    """A window of changing numbers, and the edits after it, while they go on changing."""
    await on.set_course(on.course.started(time.monotonic()))
    await asyncio.sleep(STEP_SECONDS / 2)
    before_it = await on.pods.order("told")
    start, counted = time.monotonic(), await on.operator.metrics()
    before = machine_load.read(on.pids(), start)
    await asyncio.sleep(on.site.seconds)
    end, counted_later = time.monotonic(), await on.operator.metrics()
    after = machine_load.read(on.pids(), end)
    now_mib, peak_mib = machine_load.memory_mib(on.operator.pid)
    edits, pool_edits = await edited(on, of_pool=False), await edited(on, of_pool=True)
    await asyncio.sleep(max(0.0, LATE_SECONDS - (time.monotonic() - end)))
    told = await on.pods.order("told")
    writes = on.watch.writes_between(start, end)
    return {
        **delays(on, start, end, told["answered"]),
        "statusWritesPerSecondPeak": peak_per_second(writes),
        "statusWritesPerSecondMean": round(len(writes) / (end - start), 2),
        "editSeconds": max(edits, default=None),
        "edits": edits,
        "poolEditSeconds": max(pool_edits, default=None),
        "poolEdits": pool_edits,
        "cores": machine_load.cores(before, after),
        "rssMiB": round(peak_mib, 1),
        "rssNowMiB": round(now_mib, 1),
        "callsWithAWrongToken": told["refused"] - before_it["refused"],
        "counted": {name: round(value - counted.get(name, 0.0), 3) for name, value in counted_later.items()},
    }


def delays(on: Stage, start: float, end: float, answered: dict[str, list[float]]) -> dict[str, Any]:
    """How late the steps of the window were known and shown."""
    fleet, found = on.site.fleet, []
    for pool in range(fleet.pools):
        for quota in fleet.quotas_of(pool):
            moments = steps(on.phase(quota), on.course, start, end)
            found += [Step(tenant_name(quota), pool, at, number) for at, number in moments]
    times = [[answered[str(pod)] for pod in fleet.pods_of(pool)] for pool in range(fleet.pools)]
    observed = [observed_after(step, times[step.pool]) for step in found]
    shown = [shown_after(step, on.watch.in_flight[step.quota], len(fleet.pods_of(step.pool))) for step in found]
    return {
        "steps": len(found),
        "observedP95Seconds": _rounded(p95(observed)),
        "observedWorstSeconds": _rounded(max(observed, default=None)),
        "statusP95Seconds": _rounded(p95(shown)),
        "statusMedianSeconds": _rounded(sorted(shown)[len(shown) // 2] if shown else None),
        "statusWorstSeconds": _rounded(max(shown, default=None)),
    }


def _rounded(seconds: float | None) -> float | None:
    """What never came is as late as it was waited for."""
    return None if seconds is None else round(min(seconds, 9999.0), 3)


async def edited(on: Stage, *, of_pool: bool) -> list[float]:
    """One edit after another, of quotas that hold over all pods of their pool or on each of them."""
    turns = [
        (number, on.site.fleet.first_quota(number % on.site.fleet.pools, of_pool=of_pool))
        for number in range(on.site.edits)
    ]
    return [await edit(on, number, quota) for number, quota in turns if quota is not None]


async def edit(on: Stage, number: int, quota: int) -> float:
    """Seconds from the patch of a quota's hard until every pod of its pool enforces another one."""
    pool = number % on.site.fleet.pools
    wanted: dict[str, Any] = {"spec": {"kv": {"hard": {"percent": 40 - number // on.site.fleet.pools}}}}
    before = {hard for hard, _ in await on.pods.order("in_force", pool=pool, tenant=_id(quota))}
    start = time.monotonic()
    await on.api.merge(f"{collection('tenantquotas')}/{tenant_name(quota)}", wanted)
    deadline = start + on.site.patience
    while True:
        found = await on.pods.order("in_force", pool=pool, tenant=_id(quota))
        if all(hard is not None and hard not in before for hard, _ in found):
            latest: float = max(since for _, since in found)
            return round(latest - start, 3)
        if time.monotonic() > deadline:
            raise RuntimeError(f"quota {tenant_name(quota)} is not in force within {on.site.patience:.0f} s")
        await asyncio.sleep(POLL_SECONDS)


async def idling(on: Stage) -> dict[str, Any]:
    """A window in which nothing changes, after the last writes about what did."""
    await on.set_course(on.course.stopped(time.monotonic()))
    stopped = time.monotonic()

    def quiet() -> bool:
        return time.monotonic() - max([stopped, *on.watch.writes[-1:]]) > QUIET_SECONDS

    await on.until(quiet, "no status is written while nothing changes")
    start, before = time.monotonic(), await on.operator.metrics()
    spent = machine_load.read(on.pids(), start)
    await asyncio.sleep(max(on.site.seconds / 2, QUIET_SECONDS))
    end, after = time.monotonic(), await on.operator.metrics()
    seen = on.watch.writes_between(start, end)
    name = 'kvquota_operator_errands_total{kind="Status"}'
    return {
        "statusWritesPerSecond": round(len(seen) / (end - start), 3),
        "statusWritesByTheOperator": after.get(name, 0.0) - before.get(name, 0.0),
        "right": on.right(),
        "cores": machine_load.cores(spent, machine_load.read(on.pids(), end)),
    }


def say(what: str) -> None:
    print(f"bench: {what}", file=sys.stderr, flush=True)
