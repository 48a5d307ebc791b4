"""What a pool asks of the planner."""

from typing import Any

import pytest

from contract_objects import pool
from kvquota_api.amounts import Bytes, Tokens
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.plan import request_of
from kvquota_api.memory.planning import Card, KvRemainder, KvTokens, PlanRequest
from kvquota_api.validation import parse_model_pool

GIB = 2**30


def test_every_input_of_the_planner_is_passed_on() -> None:
    raw = pool(
        model={
            "name": "m", "config": {"preset": "llama-3.1-8b"}, "dtype": "fp16", "weightDtype": "fp8",
            "kvCacheDtype": "fp8_e4m3", "stateDtype": "fp32", "maxModelLen": 4096,
        },
        engine={
            "type": "vLLM", "version": "0.31", "blockSize": 32, "maxNumSeqs": 7, "maxNumBatchedTokens": 2048,
            "prefixCaching": False, "asyncScheduling": True, "hybridKvCacheManager": False,
            "parallelism": {"tensor": 16, "pipeline": 2, "data": 3, "decodeContext": 2},
            "speculation": {"tokens": 2, "draftLayers": 1, "config": {"method": "eagle"}},
        },
        gpu={"memory": "40Gi", "count": 96, "platform": "cuda-sm80"},
        memory={
            "kvPool": {"tokens": 5}, "weights": "1Gi", "activation": "2Gi", "other": "3Gi", "safetyMarginPercent": 7,
        },
    )  # fmt: skip
    assert request_of(parse_model_pool(raw), {"a": 1}) == PlanRequest(
        config={"a": 1},
        inputs=EngineInputs(
            engine="vLLM", version="0.31", tensor=16, pipeline=2, data=3, decode_context=2, dtype="fp16",
            weight_dtype="fp8", kv_dtype="fp8_e4m3", state_dtype="fp32", block_tokens=32, max_model_len=4096,
            max_num_batched_tokens=2048, max_num_seqs=7, prefix_caching=False, async_scheduling=True,
            hybrid_manager=False, speculative_tokens=2, draft_layers=1, speculative={"method": "eagle"},
        ),
        kv=KvTokens(Tokens(5)),
        card=Card(Bytes(40 * GIB), Bytes(GIB), Bytes(2 * GIB), Bytes(3 * GIB), margin_percent=7),
        platform="cuda-sm80",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "tokens"),
    [
        pytest.param({"config": {"num_speculative_tokens": 2}}, 2, id="as the drafter's description says"),
        pytest.param({"tokens": 2, "config": {"num_speculative_tokens": 2}}, 2, id="said twice and the same"),
        pytest.param({"tokens": 2, "config": {"method": "mtp"}}, 2, id="beside a description without them"),
    ],
)
def test_the_tokens_of_a_drafter_are_said_once(stated: dict[str, Any], tokens: int) -> None:
    assert request_of(parse_model_pool(pool(engine__speculation=stated)), {}).inputs.speculative_tokens == tokens


@pytest.mark.parametrize(
    ("stated", "dtype"),
    [
        ({}, "auto"),
        ({"kvCacheDtype": "q8_0"}, "q8_0"),
        ({"kvCacheDtype": "q8_0", "valueCacheDtype": "q4_0"}, "q8_0/q4_0"),
        ({"valueCacheDtype": "q4_0"}, "fp16/q4_0"),
    ],
)
def test_llama_cpp_may_keep_values_in_a_type_of_their_own(stated: dict[str, Any], dtype: str) -> None:
    changes = {f"model__{field}": value for field, value in stated.items()}
    raw = pool(engine={"type": "LlamaCpp", "unifiedKvCache": True}, **changes)
    inputs = request_of(parse_model_pool(raw), {}).inputs
    assert (inputs.kv_dtype, inputs.unified) == (dtype, True)


def test_what_a_pool_leaves_out_is_left_to_the_engine() -> None:
    assert request_of(parse_model_pool(pool(memory={"kvPool": {"remainder": {}}})), {}) == PlanRequest(
        config={}, inputs=EngineInputs(engine="vLLM"), kv=KvRemainder(), card=Card(Bytes(80 * GIB), margin_percent=8)
    )


@pytest.mark.parametrize(("slots", "context"), [(None, 4096), (1, 4096), (4, 16_384)])
def test_every_slot_of_llama_cpp_holds_a_longest_request(slots: int | None, context: int) -> None:
    raw = pool(model__maxModelLen=4096, engine={"type": "LlamaCpp", "slots": slots})
    inputs = request_of(parse_model_pool(raw), {}).inputs
    assert (inputs.max_model_len, inputs.slots) == (context, slots or 1)
