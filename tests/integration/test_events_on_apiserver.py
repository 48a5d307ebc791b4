"""What a person has to act on, as events of a real API server: one each, with the sentence of the condition."""

import asyncio
import itertools
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from kvquota_api.usage import (
    Counts,
    EngineUsage,
    PoolUsage,
    Rejected,
    Rung,
    SyncRequest,
    TenantUsage,
    UsageReport,
)
from operator_fakes import FakePod
from operator_replicas import replica
from operator_world import Object, World, metrics, operator, quota, until, until_true

pytestmark = pytest.mark.apiserver

SCALED = {"spec": {"kv": {"soft": {"percent": 99}, "hard": {"percent": 99}}}}  # more than the ladder leaves
FLAPS = 12  # of a rung, one a second
REJECTED = Rejected(generation=1, reason="Malformed", message="kv.capBlocks: too small")

TOLD = {
    ("Shed", "llama"),
    ("Evict", "llama"),
    ("GuaranteeMissed", "llama"),
    ("GuaranteeMissed", "search"),
    ("PlanChanged", "llama"),
    ("Oversubscribed", "search"),
    ("ConfigRejected", "llama"),
}


@dataclass
class Reporting(FakePod):
    """A sidecar that says how its pod is doing. `missed`: guaranteed requests of `tenant` that found no room."""

    tenant: str = ""
    rung: Rung = "Normal"
    missed: int = 0

    def answer(self, request: SyncRequest) -> UsageReport:
        counts = Counts(admitted=40, guarantee_missed=self.missed)
        usage = TenantUsage(id=self.tenant, reserved=0, used=0, over_soft=0, in_flight=0, total=counts, recent=counts)
        pool = PoolUsage(
            usable=1000, free=600, reserved=0, used=0, unattributed=0, pressure_percent=40.0, rung=self.rung
        )
        return msgspec.structs.replace(
            super().answer(request),
            engine=EngineUsage(state="Ready"),
            pool=pool,
            tenants=(usage,),
            rejected=REJECTED if self.refuses else None,
        )


async def with_one_pod(world: World) -> Reporting:
    """A pool with one tenant and one pod."""
    await world.add_pool()
    await world.apply(quota("search", kv={"soft": {"percent": 30}, "hard": {"percent": 50}}))
    fake = Reporting(tenant=f"{world.namespace}/search")
    await world.add_pod("llama-0", fake=fake)
    return fake


async def events(world: World) -> list[Object]:
    """All of this world's, whoever wrote them."""
    return await world.list("events")


async def sentence(world: World, kind: str, name: str, of: str) -> str:
    """The message of a condition."""
    listed: list[Object] = (await world.get(kind, name))["status"]["conditions"]
    return next(str(each["message"]) for each in listed if each["type"] == of)


async def until_told(world: World, kind: str, name: str, of: str, wanted: tuple[str, str]) -> None:
    """Until a condition is as wanted, and until the event is there that says the same."""
    await until(lambda: world.condition(kind, name, of), lambda each: each == wanted, what=f"{of} is {wanted}")
    said = (wanted[1], name, await sentence(world, kind, name, of))

    async def told() -> list[tuple[str, str, str]]:
        return [(each["reason"], each["involvedObject"]["name"], each["message"]) for each in await events(world)]

    await until(told, lambda each: said in each, what=f"the event {said}")


async def test_what_a_person_has_to_act_on_is_one_event_with_the_sentence_of_its_condition(world: World) -> None:
    fake = await with_one_pod(world)
    async with operator(world):
        sidecar = world.sidecars["llama-0"]
        await until_true(lambda: sidecar.hard("search") is not None, what="the quota is in force")
        await until(
            lambda: world.condition("modelpool", "llama", "QuotaReviewed"),
            lambda each: each == ("True", "Reviewed"),
            what="nothing to review",
        )
        fake.rung = "Shed"
        await until_told(world, "modelpool", "llama", "Degraded", ("True", "Shed"))
        fake.rung = "Evict"
        await until_told(world, "modelpool", "llama", "Degraded", ("True", "Evict"))
        fake.missed = 3
        await until_told(world, "modelpool", "llama", "GuaranteeKept", ("False", "GuaranteeMissed"))
        await until_told(world, "tenantquota", "search", "GuaranteeKept", ("False", "GuaranteeMissed"))
        await world.patch("modelpool", "llama", {"spec": {"model": {"kvCacheDtype": "fp8"}}})
        await until_told(world, "modelpool", "llama", "QuotaReviewed", ("False", "PlanChanged"))
        await world.patch("tenantquota", "search", SCALED)
        await until_told(world, "tenantquota", "search", "QuotaWithinCapacity", ("False", "Oversubscribed"))
        fake.refuses = True
        await world.patch("tenantquota", "search", {"spec": {"kv": {"soft": {"percent": 40}}}})
        await until_told(world, "modelpool", "llama", "PodsGoverned", ("False", "ConfigRejected"))
        await asyncio.sleep(3.0)
        found = await events(world)
        stored = await world.get("modelpool", "llama")
    assert {each["reportingComponent"] for each in found} == {"kvquota.dev/kvquota-operator"}
    assert {*stored["metadata"].get("annotations", {})} <= {"kubectl.kubernetes.io/last-applied-configuration"}
    told = Counter((each["type"], each["reason"], each["involvedObject"]["name"], each["message"]) for each in found)
    assert {said: count for said, count in told.items() if count > 1} == {}
    assert TOLD - {(reason, name) for kind, reason, name, _ in told if kind == "Warning"} == set()


async def test_a_rung_that_changes_every_second_is_told_once_each(world: World) -> None:
    fake = await with_one_pod(world)
    rungs: tuple[Rung, Rung] = ("Shed", "Evict")
    seen: Counter[str] = Counter()
    async with operator(world, sync_seconds=0.3):
        await until_true(lambda: world.sidecars["llama-0"].hard("search") is not None, what="the quota is in force")
        for rung in itertools.islice(itertools.cycle(rungs), FLAPS):
            fake.rung, until_next = rung, time.monotonic() + 1.0
            await asyncio.sleep(until_next - time.monotonic())
            seen[(await world.condition("modelpool", "llama", "Degraded"))[1]] += 1
        found = await events(world)
    assert {*seen} >= {*rungs}, "the condition followed"
    assert Counter(each["reason"] for each in found) == {"Shed": 1, "Evict": 1}


async def test_a_namespace_that_is_deleted_is_no_missing_right(world: World, tmp_path: Path) -> None:
    """Nothing new is made in it: that is said as what it is, once for each object, and is no warning."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_bytes(world.server.kubeconfig.read_bytes())
    await with_one_pod(world)
    with replica("deleted", kubeconfig, world.namespace, "--no-leader-elect") as running:
        await until_true(lambda: world.sidecars["llama-0"].hard("search") is not None, what="the quota is in force")
        await until(world.config_maps, bool, what="its copy is stored")
        await world.kubectl("delete", "namespace", world.namespace, "--wait=false")
        await world.kubectl("delete", "configmaps", "--all", "--wait=false")
        refused = 'kvquota_operator_errand_failures_total{kind="Config",reason="NamespaceTerminating"}'
        await until(running.metrics, lambda each: each.get(refused, 0) >= 2, what="it is refused twice")
        counted = await metrics(running.address)
        lines = running.events()
    assert [name for name, count in counted.items() if "Forbidden" in name and count] == []
    told = [line for line in lines if line.get("reason") == "NamespaceTerminating"]
    assert {line["level"] for line in told} == {"info"}
    assert max(Counter((line["kind"], line.get("target")) for line in told).values()) == 1
