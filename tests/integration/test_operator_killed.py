"""The operator is killed at random moments, again and again, while pods, quotas and the model change: it converges, and
no part of a limit is given twice meanwhile.

`KVQUOTA_KILLS_SEED` brings the moments and the changes of a run again; each run prints its own.
"""

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

import knobs
from kvquota_api.memory.plan import PoolPlan, plan_pool
from kvquota_api.pod_config import PodConfig, TenantShare, decode_config
from kvquota_api.usage import Counts, EngineUsage, SyncRequest, TenantUsage, UsageReport
from kvquota_api.validation import parse_model_pool
from operator_fakes import FakePod
from operator_replicas import Audit, Replica, replica
from operator_world import Sidecar, World, key_secret, pool, quota, until, until_true
from testcluster.apiserver import ApiServer

pytestmark = pytest.mark.apiserver

KILLS = 12
LATEST_KILL_S = 3.0
"""Seconds after the process has begun: all of a start, its first writes, and some passes lie within."""

MOST_WRITES = 4  # for each kill and each change: two are what it takes
QUIET_S = 7.0  # longer than the operator waits between two writes of a status
FEWEST_PODS, MOST_PODS = 2, 6
CONTEXT = 1_600
NEW_MODEL = {"name": "llama-3.2-1b-fp8", "kvCacheDtype": "fp8"}
NEW_ENGINE = {"blockSize": 32}
LIMITS = (32_000, 48_000, 64_000, 96_000)  # tokens of all pods together, whole blocks of both models
PERCENTS = (10, 20, 30, 40)  # of each pod
QUOTAS = ("search", "mail")


@pytest.fixture(scope="module")
def server(audited: ApiServer) -> ApiServer:
    return audited


@dataclass
class Books:
    """What all pods together may use of the limit over all of them, in tokens, and where that became too much."""

    pods: dict[str, "Pod"] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)

    def sum(self) -> int:
        return sum(each.tokens() for each in self.pods.values())

    def take(self, pod: "Pod", config: PodConfig) -> None:
        """A part may come only out of what is free: of the limit by which it was decided, or what was given before."""
        before, known = self.sum(), pod.config
        pod.config = config
        self.told[pod.name] += 1
        whole = pod.whole_tokens()
        if self.sum() > max(whole, before):
            parts = {name: each.tokens() for name, each in self.pods.items()}
            self.wrong.append(f"{pod.name} brings {before} to {self.sum()} of {whole} tokens: {parts}")
        if known is not None and config.generation < known.generation:
            self.wrong.append(f"{pod.name} goes back from generation {known.generation} to {config.generation}")


@dataclass
class Pod(FakePod):
    """A sidecar whose engine came up by `plan`. Its one tenant of the limit over all pods holds `reserved` blocks in
    four requests, and had `refused` refused."""

    name: str = ""
    plan: PoolPlan | None = None
    books: Books = field(default_factory=Books)
    config: PodConfig | None = None
    reserved: int = 0
    refused: int = 0

    def answer(self, request: SyncRequest) -> UsageReport:
        assert self.plan is not None
        if request.config:
            self.books.take(self, decode_config(bytes(request.config)))
        recent = Counts(rejected={"tenant_kv_quota_exceeded": self.refused}) if self.refused else Counts()
        usages = [
            TenantUsage(
                id=share.id, reserved=self.reserved, used=0, over_soft=0, in_flight=4, total=Counts(), recent=recent
            )
            for share in self.shares()
        ]
        engine = EngineUsage(state="Ready", blocks=self.plan.cap_blocks, block_tokens=self.plan.block_tokens)
        return msgspec.structs.replace(super().answer(request), engine=engine, tenants=tuple(usages))

    def shares(self) -> list[TenantShare]:
        """The share of the limit over all pods, where the pod knows of it."""
        tenants = self.config.tenants if self.config else ()
        return [each for each in tenants if each.quota == "search"]

    def part(self) -> int:
        return sum(each.hard_blocks for each in self.shares())

    def tokens(self) -> int:
        """What it has or holds."""
        return max(self.part(), self.reserved) * self.block_tokens()

    def whole_tokens(self) -> int:
        return sum(each.whole_hard_blocks or 0 for each in self.shares()) * self.block_tokens()

    def block_tokens(self) -> int:
        return self.config.kv.block_tokens if self.config else 0


class Changes:
    """What people and engines do meanwhile, in an order that the seed says."""

    def __init__(self, world: World, seed: int) -> None:
        self.books = Books()
        self.limit, self.percent = LIMITS[2], PERCENTS[1]
        self.made = 0
        self._world = world
        self._random = random.Random(seed)
        self._plan = plan_pool(parse_model_pool(pool()))
        self._number = 0

    async def begin(self) -> None:
        """A pool with two quotas and two pods, and no operator that ever was."""
        await self._world.add_pool()
        await self._world.apply(key_secret("search-key"))
        await self._write_quotas()
        for _ in range(FEWEST_PODS):
            await self._add()

    async def go_on(self, over: asyncio.Event) -> None:
        """One change after the other, until it is over."""
        ways: list[Callable[[], Awaitable[None]]] = [self._add, self._remove, self._edit, self._rush, self._rush]
        while not over.is_set():
            await self._random.choice(ways)()
            self.made += 1
            await asyncio.sleep(self._random.uniform(0.0, 0.5))

    async def another_model(self) -> None:
        """Pods that come from now on run it; those that are there keep theirs."""
        edited = pool(port=self._world.port)
        edited["spec"]["model"] |= NEW_MODEL
        edited["spec"]["engine"] |= NEW_ENGINE
        await self._world.apply(edited)
        self._plan = plan_pool(parse_model_pool(edited))
        self.made += 1

    async def _add(self) -> None:
        if len(self.books.pods) >= MOST_PODS:
            return
        name, self._number = f"llama-{self._number}", self._number + 1
        made = self.books.pods[name] = Pod(name=name, plan=self._plan, books=self.books)
        await self._world.add_pod(name, plan=self._plan.plan_hash, fake=made)

    async def _remove(self) -> None:
        if len(self.books.pods) <= FEWEST_PODS:
            return
        name = self._random.choice(sorted(self.books.pods))
        del self.books.pods[name]
        await self._world.kubectl("delete", "pod", name, "--grace-period=0", "--force")
        await self._world.collect()

    async def _edit(self) -> None:
        self.limit, self.percent = self._random.choice(LIMITS), self._random.choice(PERCENTS)
        await self._write_quotas()

    async def _rush(self) -> None:
        """One pod is full and refuses, the others have next to nothing to do."""
        busy = self._random.choice(sorted(self.books.pods))
        for name, each in self.books.pods.items():
            each.refused = 30 if name == busy else 0
            each.reserved = each.part() * 19 // 20 if name == busy else min(each.part(), 8)

    async def _write_quotas(self) -> None:
        identity = {"apiKeys": [{"secretRef": {"name": "search-key", "key": "key"}}]}
        over_all = quota(
            "search", scope="Pool", kv={"hard": {"tokens": self.limit}}, maxContextTokens=CONTEXT, identity=identity
        )
        await self._world.apply(over_all, quota("mail", hard=self.percent))


async def begun(process: Replica) -> None:
    await until_true(lambda: process.log.stat().st_size > 0, what="the process has begun")


async def converged(world: World, changes: Changes) -> None:
    """Everywhere is what the objects say: in the pods, in their durable copies and in the statuses."""
    pods = changes.books.pods

    def given() -> bool:
        tokens = sum(each.part() * each.block_tokens() for each in pods.values())
        return changes.limit * 9 // 10 <= tokens <= changes.limit

    def right(sidecar: Sidecar) -> bool:
        config = sidecar.config
        return config is not None and sidecar.hard("mail") == (config.kv.cap_blocks - 1) * changes.percent // 100

    async def copies() -> dict[str, str]:
        return {name: each.digest for name, each in (await world.config_maps()).items() if name in pods}

    async def said() -> list[bool]:
        objects = await world.list("modelpools,tenantquotas")
        return [each["metadata"]["generation"] == each.get("status", {}).get("observedGeneration") for each in objects]

    await until_true(lambda: all(right(world.sidecars[name]) for name in pods), what="each pod has its percent")
    await until_true(given, what="all of the limit is given, and no more")
    await until_true(lambda: all(world.sidecars[name].keys for name in pods), what="the pods know the key")
    await until(said, lambda each: each == [True] * (len(QUOTAS) + 1), what="every status is of what stands there")
    await until(
        copies,
        lambda each: each == {name: pod.config.digest for name, pod in pods.items() if pod.config},
        what="every pod has in force what is stored for it",
    )


async def quiet(audit: Audit) -> None:
    async def count() -> int:
        before = len(audit.writes())
        await asyncio.sleep(QUIET_S)
        return len(audit.writes()) - before

    await until(count, lambda each: each == 0, what="nothing is written any more")


async def test_an_operator_that_is_killed_at_random_moments_converges_and_gives_no_part_twice(
    world: World, audit: Audit, kubeconfig: Path
) -> None:
    seed = knobs.seed("KVQUOTA_KILLS_SEED", secrets.randbelow(10**6))
    print(f"KVQUOTA_KILLS_SEED={seed} brings this run again")  # noqa: T201
    moments = random.Random(seed)
    changes = Changes(world, seed)
    await changes.begin()
    over = asyncio.Event()
    going_on = asyncio.create_task(changes.go_on(over))
    for number in range(KILLS):
        with replica(f"killed-{number}", kubeconfig, world.namespace, "--no-leader-elect") as process:
            await begun(process)
            await asyncio.sleep(moments.uniform(0.0, LATEST_KILL_S))
        if number == KILLS // 2:
            await changes.another_model()
    over.set()
    await going_on
    with replica("last", kubeconfig, world.namespace, "--no-leader-elect"):
        await world.collect()
        await converged(world, changes)
        await quiet(audit)
    written = Counter((each.verb, each.resource, each.code) for each in audit.writes("operator"))
    told = changes.books.told.total()
    print(f"{KILLS} kills, {changes.made} changes, {told} configs taken by pods, written: {dict(written)}")  # noqa: T201
    assert changes.books.wrong == []
    assert len({token for each in world.sidecars.values() for token in each.tokens}) == 1, "no start makes a new token"
    assert written.total() <= MOST_WRITES * (KILLS + changes.made)
