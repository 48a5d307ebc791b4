"""A limit over all pods on a real API server: its parts go where requests are refused for want of them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import msgspec
import pytest

from kvquota_api.usage import Counts, EngineUsage, SyncRequest, TenantUsage, UsageReport
from operator_fakes import FakePod
from operator_world import Sidecar, World, operator, quota, until_true, with_crds, world_in
from testcluster.apiserver import ApiServer

pytestmark = pytest.mark.apiserver

ENGINE = EngineUsage(state="Ready", blocks=5_001, block_tokens=16)


@pytest.fixture(scope="module")
def server(apiserver: ApiServer) -> Iterator[ApiServer]:
    with with_crds(apiserver) as server:
        yield server


@pytest.fixture
async def world(server: ApiServer) -> AsyncIterator[World]:
    async with world_in(server, "parts-follow-demand", network=90) as world:
        yield world


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
