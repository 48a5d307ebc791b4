"""A pool rolls to another model on a real API server: each pod is governed by the plan of its own revision."""

from dataclasses import dataclass

import msgspec
import pytest

from kvquota_api.memory.plan import PoolPlan, plan_pool
from kvquota_api.meta import REVIEWED_ANNOTATION
from kvquota_api.usage import EngineUsage, SyncRequest, UsageReport
from kvquota_api.validation import parse_model_pool
from operator_fakes import FakePod
from operator_world import Sidecar, World, operator, pool, quota, until, until_true

pytestmark = pytest.mark.apiserver

NEW_MODEL = {"name": "llama-3.2-1b-fp8", "kvCacheDtype": "fp8"}
NEW_ENGINE = {"blockSize": 32}


@dataclass
class Started(FakePod):
    """A sidecar whose engine came up as this plan says."""

    plan: PoolPlan | None = None

    def answer(self, request: SyncRequest) -> UsageReport:
        assert self.plan is not None
        engine = EngineUsage(state="Ready", blocks=self.plan.cap_blocks, block_tokens=self.plan.block_tokens)
        return msgspec.structs.replace(super().answer(request), engine=engine)


def plans() -> tuple[PoolPlan, PoolPlan]:
    """By the pool as it is first, and as it is edited."""
    old, new = pool(), pool()
    new["spec"]["model"] |= NEW_MODEL
    new["spec"]["engine"] |= NEW_ENGINE
    old_plan, new_plan = (plan_pool(parse_model_pool(each)) for each in (old, new))
    return old_plan, new_plan


def kv_of(sidecar: Sidecar) -> tuple[str, int, int, int] | None:
    """The model that a sidecar governs by its config, with its blocks."""
    config = sidecar.config
    if config is None:
        return None
    return config.plan, config.kv.cap_blocks, config.kv.block_tokens, config.kv.bytes_per_block


def as_planned(plan: PoolPlan) -> tuple[str, int, int, int]:
    return plan.plan_hash, plan.cap_blocks, plan.block_tokens, plan.bytes_per_block


async def test_a_pool_that_rolls_to_another_model(world: World) -> None:
    old_plan, new_plan = plans()

    async def said(kind: str) -> tuple[str, str]:
        return await world.condition("modelpool", "llama", kind)

    async def add(name: str, plan: PoolPlan) -> Sidecar:
        return await world.add_pod(name, plan=plan.plan_hash, fake=Started(plan=plan))

    await world.add_pool()
    await world.apply(quota("search", kv={"hard": {"tokens": 64_000}}))
    old = await add("old", old_plan)
    async with operator(world):
        await until_true(lambda: kv_of(old) == as_planned(old_plan), what="the pod has the first plan")
        await until(lambda: said("PartitionApplied"), lambda each: each == ("True", "Applied"), what="as planned")
        await until(lambda: said("QuotaReviewed"), lambda each: each == ("True", "Reviewed"), what="nothing to review")

        await world.patch("modelpool", "llama", {"spec": {"model": NEW_MODEL, "engine": NEW_ENGINE}})
        await until(lambda: said("QuotaReviewed"), lambda each: each == ("False", "PlanChanged"), what="a review")
        new = await add("new", new_plan)
        await until_true(lambda: kv_of(new) == as_planned(new_plan), what="the new pod has the new plan")
        assert kv_of(old) == as_planned(old_plan)

    async with operator(world):
        asked = old.asked
        await until(lambda: said("PartitionApplied"), lambda each: each == ("False", "EarlierPlan"), what="told")
        await until_true(lambda: old.asked > asked + 3, what="the next operator asks")
        assert (kv_of(old), kv_of(new)) == (as_planned(old_plan), as_planned(new_plan))
        assert (old.hard("search"), new.hard("search")) == (4_000, 2_000)
        copies = await world.config_maps()
        assert {name: copy.plan for name, copy in copies.items()} == {
            "old": old_plan.plan_hash,
            "new": new_plan.plan_hash,
        }
        told = " ".join((await world.kubectl("describe", "kvmp", "llama")).split())
        assert f"pod old has {old_plan.cap_blocks:,} blocks" in told
        assert f"planned are now {new_plan.cap_blocks:,} blocks" in told
        assert "hard 4,000 blocks (64,000 tokens) -> 2,000 blocks (64,000 tokens)" in told

        await world.kubectl("delete", "pod", "old", "--grace-period=0", "--force")
        await until(lambda: said("PartitionApplied"), lambda each: each == ("True", "Applied"), what="all is well")
        accepted = f"{REVIEWED_ANNOTATION}={new_plan.plan_hash}"
        await world.kubectl("annotate", "kvmp", "llama", "--overwrite", accepted)
        await until(lambda: said("QuotaReviewed"), lambda each: each == ("True", "Reviewed"), what="accepted")
        assert kv_of(new) == as_planned(new_plan)
