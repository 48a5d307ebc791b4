"""What kubectl shows of usage: a refusal, traffic that went past the sidecar, quotas that wait for a review."""

from dataclasses import dataclass, field

import msgspec
import pytest

from kvquota_api.meta import REVIEWED_ANNOTATION
from kvquota_api.usage import (
    Counts,
    EngineRecent,
    EngineUsage,
    PoolUsage,
    Refusal,
    SyncRequest,
    TenantUsage,
    UsageReport,
)
from operator_fakes import FakePod
from operator_world import World, operator, quota, until, until_true

pytestmark = pytest.mark.apiserver

REFUSAL = (
    "This request needs 12,000 tokens of KV cache and the tenant search may hold 10,000: send a shorter prompt or a"
    " smaller max_tokens"
)


@dataclass
class Talkative(FakePod):
    """A sidecar that reports this beside what is in force."""

    engine: EngineUsage = field(default_factory=lambda: EngineUsage(state="Ready"))
    tenants: tuple[TenantUsage, ...] = ()

    def answer(self, request: SyncRequest) -> UsageReport:
        pool = PoolUsage(usable=1000, free=600, reserved=400, used=300, unattributed=0, pressure_percent=40.0)
        return msgspec.structs.replace(super().answer(request), engine=self.engine, pool=pool, tenants=self.tenants)


async def with_one_pod(world: World, reporting: Talkative) -> None:
    """A pool with one tenant and one pod, whose sidecar reports this."""
    await world.add_pool()
    await world.apply(quota("search", hard=50))
    sidecar = await world.add_pod("llama-0")
    sidecar.fake = reporting


async def test_describe_explains_a_refusal(world: World) -> None:
    counts = Counts(admitted=40, rejected={"request_exceeds_kv_quota": 3, "malformed_request": 2})
    usage = TenantUsage(
        id=f"{world.namespace}/search",
        reserved=400,
        used=300,
        over_soft=400,
        in_flight=7,
        total=counts,
        recent=counts,
        last_refusal=Refusal(code="request_exceeds_kv_quota", message=REFUSAL, at=1_793_534_400.0),
    )
    await with_one_pod(world, Talkative(tenants=(usage,)))
    async with operator(world):
        columns = await until(
            lambda: world.kubectl("get", "tq", "search", "--no-headers"),
            lambda each: "Refusing" in each,
            what="the quota says that it refuses",
        )
        told = await world.kubectl("describe", "tq", "search")
    assert columns.split()[5:10] == ["4800", "7", "5", "0", "Refusing"]
    assert REFUSAL in " ".join(told.split())
    for line in ("request_exceeds_kv_quota:  3", "malformed_request:         2", "Last Refusal:"):
        assert line in told


async def test_traffic_past_the_sidecar_is_told_with_its_share(world: World) -> None:
    engine = EngineUsage(state="Ready", recent=EngineRecent(finished=100, foreign=30))
    await with_one_pod(world, Talkative(engine=engine))
    async with operator(world):
        await until(
            lambda: world.condition("modelpool", "llama", "TrafficGoverned"),
            lambda each: each == ("False", "SidecarBypassed"),
            what="TrafficGoverned is False",
        )
        events = await until(
            lambda: world.list("events", "--field-selector=reason=SidecarBypassed"), bool, what="the event"
        )
        columns = await world.kubectl("get", "kvmp", "llama", "--no-headers")
    assert events[0]["message"].startswith("at least 20 % of the requests that the engines served")
    assert "Faulty" in columns.split()


async def test_a_changed_model_asks_for_a_review_that_outlives_the_operator(world: World) -> None:
    await with_one_pod(world, Talkative())
    sidecar = world.sidecars["llama-0"]

    async def reviewed() -> tuple[str, str]:
        return await world.condition("modelpool", "llama", "QuotaReviewed")

    async def hard() -> int:
        return int((await world.get("tenantquota", "search")).get("status", {}).get("hard", {}).get("blocks", 0))

    async with operator(world):
        before = await until(hard, bool, what="the quota has a share")
        await until(reviewed, lambda each: each == ("True", "Reviewed"), what="nothing to review")
    await world.patch("modelpool", "llama", {"spec": {"model": {"kvCacheDtype": "fp8"}}})
    async with operator(world):
        await until(reviewed, lambda each: each == ("False", "PlanChanged"), what="the new plan asks for a review")
        after = await until(hard, lambda each: each != before, what="the new plan is in force")
        await until_true(lambda: abs((sidecar.hard("search") or 0) - after) <= 1, what="on the pod too")
    async with operator(world):
        asked = sidecar.asked
        await until_true(lambda: sidecar.asked > asked + 3, what="the next operator looks")
        assert await reviewed() == ("False", "PlanChanged")
        told = " ".join((await world.kubectl("describe", "kvmp", "llama")).split())
        plan_hash = (await world.get("modelpool", "llama"))["status"]["planHash"]
        assert f"hard {before:,} blocks" in told
        assert f"-> {after:,} blocks" in told
        assert f"kubectl annotate kvmp llama --overwrite {REVIEWED_ANNOTATION}={plan_hash}" in told
        await world.kubectl("annotate", "kvmp", "llama", "--overwrite", f"{REVIEWED_ANNOTATION}={plan_hash}")
        await until(reviewed, lambda each: each == ("True", "Reviewed"), what="the annotation accepts it")

        async def waits() -> bool:
            return "reviewed" in (await world.get("tenantquota", "search"))["status"]

        await until(waits, lambda each: not each, what="the quota waits no more")
