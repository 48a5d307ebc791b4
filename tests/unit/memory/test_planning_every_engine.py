"""Plans of a card by every engine: what all of them have to have in common."""

from fractions import Fraction
from typing import Any

import pytest

from kvquota_api.amounts import Bytes
from kvquota_api.memory.errors import PlanError
from kvquota_api.memory.inputs import EngineInputs, EngineName
from kvquota_api.memory.models.reading import read_model
from kvquota_api.memory.partition import Partition
from kvquota_api.memory.planning import (
    Card,
    CardPlan,
    KvBudget,
    KvBytes,
    KvRemainder,
    KvSize,
    PlanRequest,
    plan_cache,
    plan_card,
)
from kvquota_api.memory.presets import load_preset, preset_names

GIB = 2**30
ENGINES: tuple[EngineName, ...] = ("vLLM", "SGLang", "LlamaCpp", "TensorRTLLM")
PLENTY = Bytes(8192 * GIB + 12_345)
LLAMA = load_preset("llama-3.1-8b")
BLOCK = 32 * 131_072  # bytes of TensorRT-LLM's block of Llama-3.1-8B


def planned_or_none(preset: str, inputs: EngineInputs, kv: KvSize) -> CardPlan | None:
    """None where the engine's rules for the model, or for so many GPUs, are not known."""
    try:
        return plan_card(PlanRequest(load_preset(preset), inputs, kv, Card(PLENTY)))
    except PlanError:
        return None


@pytest.mark.parametrize("kv", [KvBudget(), KvRemainder()], ids=["the engine's budget", "all that is left"])
@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
@pytest.mark.parametrize("engine", ENGINES)
def test_whatever_can_be_planned_fits_on_a_card_with_plenty_of_room(
    engine: EngineName, tensor: int, kv: KvSize
) -> None:
    inputs = EngineInputs(engine, tensor=tensor, max_model_len=8192)
    plans = {preset: planned_or_none(preset, inputs, kv) for preset in preset_names()}
    planned = {preset: plan for preset, plan in plans.items() if plan is not None}

    assert bool(planned) is (engine != "LlamaCpp" or tensor == 1), "some are planned, so that this shows something"
    assert {preset: str(plan.problem) for preset, plan in planned.items() if plan.problem is not None} == {}


def tensorrt(kv: KvSize, **card: Any) -> CardPlan:
    known = Card(**{"memory": Bytes(64 * GIB), "weights": Bytes(16 * GIB), "activation": 0, "other": 0, **card})
    return plan_card(PlanRequest(LLAMA, EngineInputs("TensorRTLLM", max_model_len=8192), kv, known))


@pytest.mark.parametrize(
    ("kv", "card", "kv_pool", "margin"),
    [
        pytest.param(
            KvBudget(Fraction(1, 2)), {}, 24 * GIB, 24 * GIB, id="a budget of whole blocks leaves the margin as it is"
        ),
        pytest.param(
            KvBudget(Fraction(1, 2)),
            {"memory": Bytes(64 * GIB + BLOCK)},
            24 * GIB + BLOCK,
            24 * GIB,
            id="half a block is rounded up, out of the margin",
        ),
        pytest.param(
            KvBytes(Bytes(24 * GIB - 1)),
            {"margin_percent": 25},
            24 * GIB - BLOCK + BLOCK,
            16 * GIB - 1,
            id="bytes that are stated too",
        ),
        pytest.param(
            KvRemainder(), {"weights": Bytes(16 * GIB + BLOCK // 2)}, 48 * GIB - BLOCK, 0, id="all: a block less"
        ),
        pytest.param(KvRemainder(), {}, 48 * GIB, 0, id="all, in whole blocks"),
        pytest.param(
            KvRemainder(),
            {"weights": Bytes(15 * GIB + BLOCK // 2), "margin_percent": 25},
            33 * GIB,
            16 * GIB - BLOCK // 2,
            id="all beside a margin",
        ),
    ],
)
def test_what_tensorrt_llm_rounds_up_comes_out_of_the_margin(
    kv: KvSize, card: dict[str, Any], kv_pool: int, margin: int
) -> None:
    plan = tensorrt(kv, **card)
    whole = plan.partition

    assert plan.problem is None
    assert whole is not None
    assert (whole.kv_pool, whole.safety_margin) == (kv_pool, margin)


def test_what_is_rounded_up_past_the_card_is_said() -> None:
    """All of the card for the cache, by the engine's own flag: it would not start."""
    plan = tensorrt(KvBudget(Fraction(1)), weights=Bytes(16 * GIB + BLOCK // 2))

    assert plan.partition == Partition(
        card=Bytes(64 * GIB),
        weights=Bytes(16 * GIB + BLOCK // 2),
        activation=Bytes(0),
        kv_pool=Bytes(48 * GIB),
        safety_margin=Bytes(0),
        other=Bytes(0),
    )
    assert plan.problem is not None
    assert plan.problem.reason == "PartitionTooLarge"


def test_a_cache_that_does_not_fit_leaves_the_margin_as_it_is() -> None:
    """llama.cpp needs 1 GiB for its context: it rounds nothing up."""
    card = Card(Bytes(20 * GIB), Bytes(16 * GIB), Bytes(0), Bytes(0), margin_percent=10)
    inputs = EngineInputs("LlamaCpp", max_model_len=8192)
    plan = plan_card(PlanRequest(LLAMA, inputs, KvBytes(Bytes(GIB - 1024 * 1024)), card))

    assert plan.partition is not None
    assert (plan.partition.kv_pool, plan.partition.safety_margin) == (GIB, 2 * GIB)
    assert plan.problem is not None
    assert plan.problem.reason == "PoolTooSmall"


MISTRAL = {
    **{key: value for key, value in LLAMA.items() if key not in ("architectures", "model_type")},
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "sliding_window": 4096,
}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_token_of_a_model_whose_layers_all_slide_takes_its_bytes_inside_the_window(engine: EngineName) -> None:
    """32 layers of 8 heads of 128 elements, K and V, in 16 bits."""
    inputs = EngineInputs(engine, max_model_len=32_768)

    assert plan_cache(read_model(MISTRAL), inputs, 16 * GIB).bytes_per_token == 32 * 2 * 8 * 128 * 2


@pytest.mark.parametrize("engine", ["vLLM", "SGLang", "LlamaCpp"])
def test_where_some_layers_keep_every_token_only_those_count(engine: EngineName) -> None:
    """12 of 24 layers of gpt-oss-20b slide: 8 heads of 64 elements, K and V, in 16 bits in the others."""
    inputs = EngineInputs(engine, max_model_len=32_768)

    assert plan_cache(read_model(load_preset("gpt-oss-20b")), inputs, 16 * GIB).bytes_per_token == 12 * 2 * 8 * 64 * 2
