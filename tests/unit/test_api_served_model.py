"""The types and platforms that a pool can name are those that the planner knows."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from contract_objects import pool
from kvquota_api.engine_spec import EngineType
from kvquota_api.memory.errors import PartitionTooLargeError, PlanError, PoolTooSmallError
from kvquota_api.memory.inputs import EngineName, Platform
from kvquota_api.memory.parameters.formats import FORMATS, PLAIN_BYTES
from kvquota_api.memory.plan import plan_pool
from kvquota_api.served_model import Dtype, KvCacheDtype, ValueCacheDtype, WeightDtype
from kvquota_api.validation import parse_model_pool, validate

ENGINES = get_args(EngineName)


def refusal(preset: str, **changes: Any) -> PlanError | None:
    """Why a pool of this model on a large card is not planned; None when it is, or is only too small."""
    raw = pool(
        model__config={"preset": preset}, model__maxModelLen=1024, gpu__memory="800Gi", memory__weights=1, **changes
    )
    assert validate(raw) == []
    try:
        plan_pool(parse_model_pool(raw))
    except (PartitionTooLargeError, PoolTooSmallError):
        return None
    except PlanError as error:
        return error
    return None


def test_every_engine_but_the_open_one_is_one_of_the_planner() -> None:
    assert set(get_args(EngineType)) == {*ENGINES, "OpenAI"}


def test_the_types_of_weights_are_those_that_are_counted() -> None:
    assert set(get_args(WeightDtype)) == {"auto", *PLAIN_BYTES, *FORMATS}


@pytest.mark.parametrize("dtype", get_args(KvCacheDtype))
def test_a_type_of_the_kv_cache_is_known_to_some_engine_and_named_by_the_others(dtype: str) -> None:
    refusals = [
        refusal(preset, engine={"type": engine}, model__kvCacheDtype=dtype, gpu__platform=platform)
        for engine in ENGINES
        for preset in ("llama-3.1-8b", "deepseek-v3.2")
        for platform in ("cuda-sm90", "cuda-sm100")
    ]

    assert None in refusals
    names = (dtype, dtype.replace("fp", "float"))
    assert [each for each in refusals if each is not None and not any(name in str(each) for name in names)] == []


@pytest.mark.parametrize("dtype", get_args(ValueCacheDtype))
def test_a_type_of_the_values_alone_is_known_to_llama_cpp(dtype: str) -> None:
    assert refusal("llama-3.1-8b", engine={"type": "LlamaCpp"}, model__valueCacheDtype=dtype) is None


@pytest.mark.parametrize("dtype", get_args(Dtype))
@pytest.mark.parametrize("field", ["dtype", "stateDtype"])
def test_a_type_of_computing_and_of_state_is_known_to_vllm(field: str, dtype: str) -> None:
    assert refusal("llama-3.1-8b", **{f"model__{field}": dtype}) is None


@pytest.mark.parametrize("platform", get_args(Platform))
def test_a_platform_is_planned(platform: str) -> None:
    assert refusal("llama-3.1-8b", gpu__platform=platform) is None
