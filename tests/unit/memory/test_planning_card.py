"""One plan of one card: what is asked for, what the engine makes of it, and whether it fits."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from kvquota_api.amounts import Bytes, Hundredths, Tokens
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.memory.cache_plan import CacheGroup
from kvquota_api.memory.errors import PlanError, UnknownArchitectureError
from kvquota_api.memory.inputs import LONGEST, EngineInputs
from kvquota_api.memory.models.reading import read_model
from kvquota_api.memory.partition import Partition
from kvquota_api.memory.planning import (
    Card,
    CardPlan,
    KvBudget,
    KvBytes,
    KvPercent,
    KvRemainder,
    KvSize,
    KvTokens,
    PlanRequest,
    plan_cache,
    plan_card,
)
from kvquota_api.memory.presets import load_preset

GIB = 2**30
CONFIG = load_preset("llama-3.1-8b")
CARD = Card(Bytes(80 * GIB), Bytes(15 * GIB), Bytes(6 * GIB), Bytes(GIB), margin_percent=10)
BLOCK = 2 * 2**20  # bytes of 16 tokens of 131,072 bytes


def planned(kv: KvSize, card: Card | None = CARD, **inputs: Any) -> CardPlan:
    given = EngineInputs(**{"engine": "vLLM", "version": "0.32", "max_model_len": 32_768, **inputs})
    return plan_card(PlanRequest(CONFIG, given, kv, card))


def test_a_plan_has_the_parts_of_the_card_and_the_cache_of_the_engine() -> None:
    plan = planned(KvBytes(Bytes(36 * GIB + 1)), max_num_batched_tokens=8192)
    assert plan.cache is not None
    assert (plan.problem, plan.model) == (None, read_model(CONFIG))
    assert plan.partition == Partition(
        card=Bytes(80 * GIB),
        weights=Bytes(15 * GIB),
        activation=Bytes(6 * GIB),
        kv_pool=Bytes(36 * GIB),
        safety_margin=Bytes(8 * GIB),
        other=Bytes(GIB),
    )
    assert replace(plan.cache, assumptions=(), warnings=()) == replace(
        plan.cache,
        blocks=18_432,
        null_blocks=1,
        block_tokens=16,
        bytes_per_token=131_072,
        bytes_per_block=BLOCK,
        kv_bytes=36 * GIB,
        tokens=294_912,
        logged_tokens=294_912,
        concurrency=Fraction(9),
        max_model_len=32_768,
        min_bytes=2049 * BLOCK,
        groups=(CacheGroup("Full", 32, BLOCK, LayerGroup(kind="Full", block_tokens=16)),),
        assumptions=(),
        warnings=(),
    )


@pytest.mark.parametrize(
    ("kv", "card", "blocks", "margin"),
    [
        pytest.param(KvBytes(Bytes(10 * GIB + BLOCK - 1)), CARD, 5120, 8 * GIB, id="bytes, rounded down to a block"),
        pytest.param(KvPercent(Hundredths(25_00)), CARD, 10_240, 8 * GIB, id="a percent of the card"),
        pytest.param(KvTokens(Tokens(100_001)), CARD, 6251, 8 * GIB, id="tokens, rounded up to a block"),
        pytest.param(KvRemainder(), CARD, 50 * 512, 8 * GIB, id="what the other parts leave"),
        pytest.param(
            KvRemainder(), replace(CARD, margin_percent=None), 58 * 512, 0, id="what is left where no margin is stated"
        ),
        pytest.param(
            KvBudget(Fraction(9, 10)),
            replace(CARD, margin_percent=None),
            50 * 512,
            8 * GIB,
            id="what the engine may use",
        ),
    ],
)
def test_the_kv_cache_is_stated_in_several_ways(kv: KvSize, card: Card, blocks: int, margin: int) -> None:
    plan = planned(kv, card)
    assert plan.cache is not None
    assert plan.partition is not None
    assert (plan.cache.blocks, plan.partition.kv_pool, plan.partition.safety_margin, plan.problem) == (
        blocks,
        blocks * BLOCK,
        margin,
        None,
    )


def test_without_a_card_only_the_bytes_count() -> None:
    plan = planned(KvBytes(Bytes(4 * GIB + BLOCK)), None)
    assert plan.cache is not None
    assert (plan.partition, plan.problem, plan.cache.blocks) == (None, None, 2049)


def test_parts_that_do_not_fit_are_a_problem_with_the_numbers() -> None:
    plan = planned(KvBytes(Bytes(51 * GIB)))
    assert plan.problem is not None
    assert plan.problem.reason == "PartitionTooLarge"
    assert str(plan.problem) == (
        "the parts of one card sum to 81 GiB, 1 GiB more than its 80 GiB: weights 15 GiB + activation 6 GiB"
        " + kvPool 51 GiB + other 1 GiB + safetyMargin 8 GiB"
    )


def test_weights_that_leave_nothing_are_a_problem_with_a_pool_of_nothing() -> None:
    plan = planned(KvRemainder(), replace(CARD, weights=Bytes(70 * GIB)))
    assert plan.partition is not None
    assert plan.problem is not None
    assert (plan.problem.reason, plan.partition.kv_pool) == ("PartitionTooLarge", 0)


@pytest.mark.parametrize(("kv", "card"), [(KvTokens(Tokens(32_768)), CARD), (KvBytes(Bytes(4 * GIB)), None)])
def test_a_cache_that_does_not_hold_the_longest_request_is_a_problem(kv: KvSize, card: Card | None) -> None:
    plan = planned(kv, card)
    assert plan.problem is not None
    assert plan.problem.reason == "PoolTooSmall"
    assert "32,768" in str(plan.problem)


def test_the_longest_request_that_fits_is_looked_for() -> None:
    plan = planned(KvBytes(Bytes(4 * GIB)), max_model_len=LONGEST)
    assert plan.cache is not None
    assert (plan.cache.max_model_len, plan.problem) == (32_752, None)


def test_tokens_of_a_model_with_several_groups_are_those_of_its_longest_requests() -> None:
    config = load_preset("gpt-oss-20b")
    inputs = EngineInputs("vLLM", "0.32", max_model_len=65_536)
    plan = plan_card(PlanRequest(config, inputs, KvTokens(Tokens(3 * 65_536)), CARD))
    assert plan.cache is not None
    assert (plan.cache.concurrency, plan.cache.tokens) == (Fraction(3), 3 * 65_536)


@pytest.mark.parametrize(
    ("engine", "block_tokens"),
    [("vLLM", 16), ("SGLang", 1), ("TensorRTLLM", 32), ("LlamaCpp", 1)],
)
def test_every_engine_has_its_own_blocks(engine: Any, block_tokens: int) -> None:
    inputs = EngineInputs(engine, max_model_len=8192)
    assert plan_cache(read_model(CONFIG), inputs, 8 * GIB).block_tokens == block_tokens


def test_llama_cpp_says_what_it_needs_where_no_memory_is_given() -> None:
    plan = planned(KvBudget(), None, engine="LlamaCpp", version=None, max_model_len=8192)
    assert plan.cache is not None
    assert (plan.cache.kv_bytes, plan.problem) == (GIB, None)


def test_what_is_not_known_is_an_error_that_names_it() -> None:
    with pytest.raises(UnknownArchitectureError, match="nobody"):
        plan_card(PlanRequest({"architectures": ["nobody"]}, EngineInputs("vLLM"), KvBudget(), CARD))
    with pytest.raises(PlanError, match="0\\.0"):
        planned(KvBudget(), version="0.0")


def test_bytes_that_are_stated_need_no_weights_that_can_be_counted() -> None:
    config = {key: value for key, value in CONFIG.items() if key != "intermediate_size"}
    inputs = EngineInputs("vLLM", "0.32", max_model_len=8192)
    stated, counted = (
        PlanRequest(config, inputs, kv, Card(Bytes(80 * GIB))) for kv in (KvBytes(Bytes(8 * GIB)), KvRemainder())
    )
    plan = plan_card(stated)
    assert plan.cache is not None
    assert (plan.cache.blocks, plan.partition, plan.problem) == (4096, None, None)
    assert "intermediate_size" in str(plan.undivided)
    with pytest.raises(PlanError, match="intermediate_size"):
        plan_card(counted)
