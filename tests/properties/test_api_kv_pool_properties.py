"""A KV pool that is stated in another unit is the same pool, so a printed plan can be applied."""

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from contract_objects import pool
from kvquota_api.amounts import Bytes, format_quantity
from kvquota_api.memory.errors import PartitionTooLargeError, PoolTooSmallError
from kvquota_api.memory.plan import PoolPlan, plan_pool
from kvquota_api.validation import parse_model_pool

RELAXED = settings(deadline=None, max_examples=50)
"""No time limit: a busy machine is not a defect."""


def planned(kv_pool: dict[str, Any], **changes: Any) -> PoolPlan | None:
    """The plan of a small model on a large card; None where the partition does not fit."""
    raw = pool(model__config={"preset": "llama-3.2-1b"}, model__maxModelLen=1024, memory__kvPool=kv_pool, **changes)
    try:
        return plan_pool(parse_model_pool(raw))
    except (PartitionTooLargeError, PoolTooSmallError):
        return None


percents = st.integers(0, 10_000).map(lambda hundredths: f"{hundredths // 100}.{hundredths % 100:02d}")
cards = st.integers(20, 200).map(lambda gib: f"{gib}Gi")


@RELAXED
@given(percents, cards)
def test_a_percent_of_the_card_is_the_same_pool_when_written_as_its_bytes(percent: str, card: str) -> None:
    plan = planned({"percent": percent}, gpu__memory=card)
    assume(plan is not None)
    assert plan is not None

    again = planned({"bytes": format_quantity(Bytes(plan.cap_blocks * plan.bytes_per_block))}, gpu__memory=card)

    assert again is not None
    assert (again.cap_blocks, again.partition) == (plan.cap_blocks, plan.partition)


@RELAXED
@given(percents, cards)
def test_a_percent_of_the_card_is_the_same_pool_when_written_as_its_tokens(percent: str, card: str) -> None:
    plan = planned({"percent": percent}, gpu__memory=card)
    assume(plan is not None)
    assert plan is not None

    again = planned({"tokens": plan.cap_blocks * plan.block_tokens}, gpu__memory=card)

    assert again is not None
    assert (again.cap_blocks, again.partition) == (plan.cap_blocks, plan.partition)


@RELAXED
@given(cards, st.integers(0, 50))
def test_the_remainder_is_the_largest_pool_that_fits(card: str, margin: int) -> None:
    changes = {"gpu__memory": card, "memory__safetyMarginPercent": margin}
    plan = planned({"remainder": {}}, **changes)
    assume(plan is not None)
    assert plan is not None

    assert plan.partition.total <= plan.partition.card
    assert planned({"bytes": (plan.cap_blocks + 1) * plan.bytes_per_block}, **changes) is None
