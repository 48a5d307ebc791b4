"""A limit over all pods on a real API server: its parts go where requests are refused for want of them."""

import asyncio
from dataclasses import dataclass

import msgspec
import pytest
import yaml

from kvquota_api.usage import Counts, EngineUsage, SyncRequest, TenantUsage, UsageReport
from operator_fakes import FakePod
from operator_world import Sidecar, World, operator, pod, quota, until, until_true

pytestmark = pytest.mark.apiserver

ENGINE = EngineUsage(state="Ready", blocks=5_001, block_tokens=16)


@dataclass
class AskedPod(FakePod):
    """A sidecar whose one tenant holds `reserved` blocks in four requests, and of which it refused `refused`."""

    tenant: str = ""
    reserved: int = 0
    refused: int = 0

    def answer(self, request: SyncRequest) -> UsageReport:
        recent = Counts(rejected={"tenant_kv_quota_exceeded": self.refused}) if self.refused else Counts()
        usage = TenantUsage(
            id=self.tenant, reserved=self.reserved, used=0, over_soft=0, in_flight=4, total=Counts(), recent=recent
        )
        return msgspec.structs.replace(super().answer(request), engine=ENGINE, tenants=(usage,))


async def idle_pod(world: World, name: str) -> tuple[Sidecar, AskedPod]:
    fake = AskedPod(tenant=f"{world.namespace}/search")
    sidecar = await world.add_pod(name)
    sidecar.fake = fake
    return sidecar, fake


async def where_one_goes(world: World, *, grace_seconds: int) -> tuple[Sidecar, Sidecar]:
    """Two idle pods that share a limit: one that stays, and one that is given time when it is deleted."""
    await world.add_pool()
    await world.apply(quota("search", scope="Pool", kv={"hard": {"tokens": 64_000}}, maxContextTokens=1_600))
    stays, _ = await idle_pod(world, "llama-0")
    await on_a_node(world, "llama-1", grace_seconds=grace_seconds)
    goes, _ = await idle_pod(world, "llama-1")
    return stays, goes


async def test_parts_follow_demand(world: World) -> None:
    await world.add_pool()
    await world.apply(quota("search", hard=40, scope="Pool", maxContextTokens=1_600))
    (busy, rush), (idle, calm) = await idle_pod(world, "llama-0"), await idle_pod(world, "llama-1")

    def parts() -> tuple[int | None, int | None]:
        return busy.hard("search"), idle.hard("search")

    async with operator(world):
        await until_true(lambda: parts() == (2_000, 2_000), what="equal parts")
        rush.reserved, rush.refused, calm.reserved = 1_900, 30, 50
        await until_true(lambda: parts() == (3_500, 500), what="the idle one keeps a fourth of its part")
    generations = [each.config.generation for each in (busy, idle) if each.config is not None]
    rush.reserved = rush.refused = 0
    asked = idle.asked
    async with operator(world):
        await until_true(lambda: idle.asked > asked + 5, what="the new operator asks the pods")
        await asyncio.sleep(1)
        assert parts() == (3_500, 500)
    assert [each.config.generation for each in (busy, idle) if each.config is not None] == generations


async def test_a_pod_deleted_by_force_keeps_its_part_until_its_grace_period_is_over(world: World) -> None:
    stays, goes = await where_one_goes(world, grace_seconds=15)
    async with operator(world):
        await until_true(lambda: (stays.hard("search"), goes.hard("search")) == (2_000, 2_000), what="equal parts")
        await world.kubectl("delete", "pod", "llama-1", "--force", "--grace-period=0")
        await world.collect()
        asked = stays.asked
        await until_true(lambda: stays.asked > asked + 5, what="some passes")
        assert stays.hard("search") == 2_000
        await until_true(lambda: stays.hard("search") == 4_000, what="the other pod has all")


async def test_a_pod_that_lost_its_labels_keeps_its_part_for_as_long_as_it_is_there(world: World) -> None:
    stays, leaves = await where_one_goes(world, grace_seconds=1)

    def parts() -> tuple[int | None, int | None]:
        return stays.hard("search"), leaves.hard("search")

    async def governed() -> tuple[str, str]:
        return await world.condition("modelpool", "llama", "PodsGoverned")

    async with operator(world):
        await until_true(lambda: parts() == (2_000, 2_000), what="equal parts")
        await world.kubectl("label", "pod", "llama-1", "app-")
        await until(governed, lambda said: said == ("False", "PodLeft"), what="it is told")
        assert parts() == (2_000, 2_000)
    asked = stays.asked
    async with operator(world):
        await until_true(lambda: stays.asked > asked + 5, what="a new operator makes some passes")
        assert parts() == (2_000, 2_000)
        await world.kubectl("label", "pod", "llama-1", "app=llama")
        await until(governed, lambda said: said == ("True", "AllGoverned"), what="it is back")
        await world.kubectl("label", "pod", "llama-1", "app-")
        await world.kubectl("delete", "pod", "llama-1", "--force", "--grace-period=0")
        await world.collect()
        await until_true(lambda: stays.hard("search") == 4_000, what="the other pod has all")


async def on_a_node(world: World, name: str, *, grace_seconds: int) -> None:
    """A pod that a node may run, which it would end after so many seconds."""
    spec = {"nodeName": "node-0", "terminationGracePeriodSeconds": grace_seconds}
    body = pod(name)
    await world.kubectl("create", "-f", "-", input=yaml.safe_dump({**body, "spec": {**body["spec"], **spec}}))
