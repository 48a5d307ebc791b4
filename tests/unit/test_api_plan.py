"""The plan of a pool."""

import re
from typing import Any

import pytest

from contract_objects import pool
from kvquota_api.amounts import Tokens
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.memory.errors import (
    EngineUnknownError,
    ModelConfigError,
    PartitionTooLargeError,
    PlanError,
    PoolTooSmallError,
    UnknownArchitectureError,
)
from kvquota_api.memory.partition import Partition
from kvquota_api.memory.plan import PoolPlan, plan_pool
from kvquota_api.memory.presets import load_preset
from kvquota_api.validation import parse_model_pool

GIB = 2**30


def plan(config: Any = None, **changes: Any) -> PoolPlan:
    """The plan of Llama-3.1-8B on 80 GiB, 32768 tokens at most, with fields of the spec changed."""
    return plan_pool(parse_model_pool(pool(**{"model__maxModelLen": 32768, **changes})), config)


def config(**changes: Any) -> dict[str, Any]:
    """Llama-3.1-8B as an inline config; None takes a field out."""
    merged = {**load_preset("llama-3.1-8b"), **changes}
    return {"inline": {key: value for key, value in merged.items() if value is not None}}


WORKED_EXAMPLE: dict[str, Any] = {
    "memory": {"kvPool": {"percent": 45}, "activation": "6Gi", "safetyMarginPercent": 8},
    "model__weightDtype": "bf16",
    "engine__version": "0.32",
    "engine__blockSize": 16,
    "engine__maxNumSeqs": 256,
    "engine__maxNumBatchedTokens": 8192,
    "engine__prefixCaching": True,
    "engine__asyncScheduling": True,
    "gpu__platform": "cuda-sm90",
}


def test_the_worked_example() -> None:
    """45 % of 80 GiB are 36 GiB, and a block of 16 tokens of 131,072 bytes is 2 MiB: 18,432 blocks."""
    result = plan(**WORKED_EXAMPLE)
    assert result == PoolPlan(
        cap_blocks=18432,
        null_blocks=1,
        block_tokens=16,
        bytes_per_block=2 * 2**20,
        bytes_per_token=131072,
        max_model_len=32768,
        groups=(LayerGroup(kind="Full", block_tokens=16),),
        partition=Partition(
            card=80 * GIB,
            weights=16_060_522_496,
            activation=6 * GIB,
            kv_pool=36 * GIB,
            safety_margin=80 * GIB * 8 // 100,
            other=115 * GIB // 100,
        ),
        assumptions=(
            "weights are counted from the model's config: 14.96 GiB on the fullest GPU",
            "CUDA context, communication and graphs are estimated at 1.15 GiB",
            "kv_cache_dtype not given: bfloat16, the type that the model computes in",
        ),
        warnings=(),
        advice=result.advice,
        plan_hash=result.plan_hash,
    )
    assert result.usable_blocks == 18_431
    assert result.requests_of(Tokens(8192)) == 35


# KV bytes, layers, heads, KV heads, head_dim, GPUs of a tensor group, stages, block, KV type -> blocks, bytes of one:
# as vLLM 0.32 computes them for a model of this shape.
AS_VLLM = [
    (8589934592, 32, 32, 8, 128, 1, 1, 16, "auto", 4096, 2097152),
    (8589934592, 36, 32, 8, 128, 1, 1, 16, "auto", 3640, 2359296),
    (8589934592, 8, 8, 8, 64, 1, 1, 16, "auto", 32768, 262144),
    (8589934592, 8, 8, 1, 64, 1, 1, 32, "auto", 131072, 65536),
    (17179869184, 32, 32, 8, 128, 1, 1, 16, "fp8", 16384, 1048576),
    (17179869184, 28, 28, 4, 128, 1, 1, 16, "fp8", 37449, 458752),
    (8589959282, 32, 32, 8, 128, 2, 1, 16, "auto", 8192, 1048576),
    (8589983972, 28, 28, 4, 128, 4, 1, 16, "auto", 37449, 229376),
    (8590033352, 8, 8, 1, 64, 8, 1, 16, "auto", 262147, 32768),
    (402654183, 4, 32, 8, 128, 1, 1, 32, "auto", 768, 524288),
    (8589934592, 28, 28, 4, 128, 2, 2, 16, "auto", 37449, 229376),
    (209715211, 5, 32, 8, 128, 1, 2, 128, "auto", 133, 1572864),
    (35808398447, 8, 8, 8, 64, 1, 2, 48, "bf16", 91065, 393216),
    (41178880904, 36, 32, 8, 128, 8, 1, 16, "auto", 139631, 294912),
]


@pytest.mark.parametrize(
    ("size", "layers", "heads", "kv_heads", "head_dim", "tensor", "stages", "block", "dtype", "blocks", "bytes_each"),
    [
        pytest.param(*row, id=f"{row[1]} layers, {row[3]} KV heads, tp {row[5]}, pp {row[6]}, block {row[7]}, {row[8]}")
        for row in AS_VLLM
    ],
)
def test_gives_the_blocks_that_vllm_computes(
    size: int, layers: int, heads: int, kv_heads: int, head_dim: int, tensor: int, stages: int, block: int, dtype: str,
    blocks: int, bytes_each: int,
) -> None:  # fmt: skip
    shape = config(
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
        hidden_size=256, intermediate_size=512, vocab_size=1024,
    )  # fmt: skip

    result = plan(
        model={"name": "m", "config": shape, "kvCacheDtype": dtype, "maxModelLen": 2048},
        engine={"type": "vLLM", "blockSize": block, "parallelism": {"tensor": tensor, "pipeline": stages}},
        gpu={"memory": "80Gi", "count": tensor * stages},
        memory={"kvPool": {"bytes": size}},
    )

    assert (result.cap_blocks, result.bytes_per_block) == (blocks, bytes_each)


@pytest.mark.parametrize(
    ("kv_pool", "blocks"),
    [
        pytest.param({"percent": 30}, 12288, id="a percent of the card"),
        pytest.param({"percent": "30.01"}, 12292, id="a percent that is no whole number of blocks"),
        pytest.param({"bytes": "8Gi"}, 4096, id="bytes"),
        pytest.param({"bytes": 8 * GIB + 2**21 - 1}, 4096, id="bytes that are no whole number of blocks"),
        pytest.param({"tokens": 65536}, 4096, id="tokens"),
        pytest.param({"tokens": 65537}, 4097, id="tokens that are no whole number of blocks"),
        pytest.param({"remainder": {}}, 26364, id="what is left"),
    ],
)
def test_the_cap_comes_from(kv_pool: dict[str, Any], blocks: int) -> None:
    result = plan(memory={"kvPool": kv_pool, "activation": "6Gi"})

    assert result.cap_blocks == blocks
    assert result.partition.kv_pool == blocks * 2**21


def test_a_percent_of_the_card_is_rounded_down_to_bytes() -> None:
    half = {"kvPool": {"percent": 50}, "activation": "6Gi"}

    assert plan(memory=half, gpu__memory=80 * GIB).cap_blocks == 20480
    assert plan(memory=half, gpu__memory=80 * GIB - 1).cap_blocks == 20479


def test_the_default_is_30_percent_of_the_card() -> None:
    assert plan().cap_blocks == 12288


def test_what_is_left_leaves_less_than_a_block() -> None:
    assert 0 <= plan(memory={"kvPool": {"remainder": {}}}).partition.free < 2**21


@pytest.mark.parametrize(
    ("engine", "block", "null"),
    [
        pytest.param({"type": "vLLM"}, 16, 1, id="vLLM takes a block out"),
        pytest.param({"type": "SGLang"}, 1, 0, id="SGLang counts tokens"),
        pytest.param({"type": "TensorRTLLM", "blockSize": 64}, 64, 0, id="TensorRT-LLM counts what is stated"),
    ],
)
def test_the_blocks_of(engine: dict[str, Any], block: int, null: int) -> None:
    result = plan(engine=engine)

    assert (result.block_tokens, result.null_blocks) == (block, null)
    assert result.groups == (LayerGroup(kind="Full", block_tokens=block),)


@pytest.mark.parametrize(
    ("changes", "per_token"),
    [
        pytest.param({"model__kvCacheDtype": "fp8"}, 65536, id="a KV cache in fp8 takes half"),
        pytest.param({"model__kvCacheDtype": "fp32"}, 262144, id="a KV cache in 32 bits takes double"),
        pytest.param({"model__weightDtype": "fp8"}, 131072, id="fp8 weights leave the KV cache in 16 bits"),
        pytest.param({"model__dtype": "fp32"}, 262144, id="a model that computes in 32 bits has its KV cache in 32"),
        pytest.param(
            {"model__config": config(torch_dtype="float32")}, 131072, id="a checkpoint in 32 bits is loaded in 16"
        ),
        pytest.param(
            {"model__config": config(quantization_config={"kv_cache_scheme": {}}), "model__weightDtype": "fp8"},
            131072,
            id="an empty KV scheme declares nothing",
        ),
    ],
)
def test_one_token_takes(changes: dict[str, Any], per_token: int) -> None:
    assert plan(**changes).bytes_per_token == per_token


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param(
            {"model__config": {"preset": "llama-4"}}, "spec.model.config.preset: llama-4 is not", id="no preset"
        ),
        pytest.param(
            {"model__config": {"configMapRef": {"name": "configs", "key": "config.json"}}},
            "spec.model.config.configMapRef: ConfigMap configs, or its key config.json, is not there: create it",
            id="a ConfigMap that is not there",
        ),
    ],
)
def test_what_the_config_leaves_open_is_asked_for(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelConfigError, match=f"^{re.escape(says)}"):
        plan(**changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param(
            {"gpu__count": 3, "engine__parallelism": {"tensor": 3}},
            "spec.engine.parallelism.tensor: total number of attention heads (32) must be divisible by",
            id="heads that three GPUs cannot share",
        ),
        pytest.param(
            {"gpu__count": 6, "engine__parallelism": {"tensor": 6}, "model__config": config(
                num_attention_heads=24, num_key_value_heads=8, hidden_size=3072
            )},
            "spec.engine.parallelism.tensor: 8 KV heads cannot be spread over a tensor parallel size of 6",
            id="KV heads that six GPUs cannot share",
        ),
        pytest.param(
            {"gpu__count": 33, "engine__parallelism": {"pipeline": 33}},
            "spec.engine.parallelism.pipeline: 32 layers cannot be spread over 33 pipeline stages",
            id="more stages than layers",
        ),
        pytest.param(
            {"gpu__count": 2, "engine__parallelism": {"tensor": 2, "decodeContext": 2}},
            "spec.engine.parallelism.decodeContext: decode context parallel size 2 needs a tensor parallel size",
            id="tokens that would be shared by GPUs with different heads",
        ),
        pytest.param(
            {"engine__version": "latest"}, "spec.engine.version: vLLM version 'latest' cannot be read", id="a version"
        ),
        pytest.param(
            {"model__kvCacheDtype": "q8_0"},
            "spec.model.kvCacheDtype: KV cache dtype 'q8_0' is not known for vLLM",
            id="a type of another engine",
        ),
        pytest.param(
            {"engine__speculation": {"tokens": 3, "config": {"method": "mtp", "num_speculative_tokens": 2}}},
            "spec.engine.speculation.tokens: 3, and speculation.config says 2: keep one",
            id="two numbers of tokens",
        ),
        pytest.param(
            {"engine__version": "latest", "model__kvCacheDtype": "q8_0"}, "vLLM version 'latest'", id="two at once"
        ),
    ],
)  # fmt: skip
def test_what_the_engine_refuses_is_said(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(EngineUnknownError, match=f"^{re.escape(says)}"):
        plan(**changes)


def test_a_pool_whose_weights_cannot_be_counted_is_not_planned_though_its_cache_could_be() -> None:
    with pytest.raises(PlanError, match="intermediate_size"):
        plan(model__config=config(intermediate_size=None), memory={"kvPool": {"bytes": "8Gi"}})


def test_of_any_other_engine_nothing_is_known() -> None:
    with pytest.raises(UnknownArchitectureError, match=r"^spec\.engine\.type: OpenAI stands for any engine"):
        plan(engine={"type": "OpenAI", "blockSize": 16})


def test_what_the_engine_would_change_by_itself_is_a_warning() -> None:
    assert plan().warnings == ()
    assert plan(model__maxModelLen=131_073).warnings == (
        "max_model_len 131073 is longer than the 131072 positions of the model: vLLM refuses it",
    )


def test_a_model_with_several_groups_costs_the_sum_of_them() -> None:
    result = plan(model__config={"preset": "gpt-oss-20b"}, engine__maxNumBatchedTokens=2048)

    assert sorted({group.kind for group in result.groups}) == ["Full", "Sliding"]
    assert result.requests_of(Tokens(1)) > result.requests_of(Tokens(32_768)) > 0


def test_a_config_map_is_read_when_it_is_there() -> None:
    reference = {"configMapRef": {"name": "configs", "key": "config.json"}}

    assert plan(load_preset("llama-3.1-8b"), model__config=reference).cap_blocks == 12288


def test_an_empty_inline_config_is_not_taken_for_a_config_map() -> None:
    with pytest.raises(UnknownArchitectureError):
        plan(load_preset("llama-3.1-8b"), model__config={"inline": {}})


def test_parts_that_do_not_fit_are_said_with_the_ways_out_in_order() -> None:
    with pytest.raises(PartitionTooLargeError) as raised:
        plan(gpu__memory="24Gi", memory={"kvPool": {"percent": 50}})

    assert str(raised.value) == (
        "the parts of one card sum to 31.34 GiB, 7.34 GiB more than its 24 GiB: weights 14.96 GiB + activation 1.31 GiB"
        " + kvPool 12 GiB + other 1.15 GiB + safetyMargin 1.92 GiB. Ways out, in this order: 1. quantise the weights"
        " (spec.model.weightDtype: int4): 5.33 GiB instead of 14.96 GiB, then 2 requests of 32,768 tokens fit into"
        " 12 GiB of KV cache; 2. give the KV cache less (spec.memory.kvPool.bytes: 5003804672): then 1 request of"
        " 32,768 tokens fits into 4.66 GiB of KV cache; 3. more GPUs (spec.engine.parallelism.tensor: 4, and"
        " spec.gpu.count with it): 3.74 GiB of weights on each, then 11 requests of 32,768 tokens fit into 12 GiB of KV"
        " cache"
    )


def test_the_rest_of_a_card_that_is_too_small_is_no_negative_pool() -> None:
    with pytest.raises(PartitionTooLargeError, match="kvPool 0 B"):
        plan(gpu__memory="8Gi", memory={"kvPool": {"remainder": {}}})


def test_a_pool_holds_one_longest_request_beside_the_null_block() -> None:
    assert plan(memory={"kvPool": {"tokens": 32768 + 16}}).usable_blocks == 2048

    with pytest.raises(PoolTooSmallError) as raised:
        plan(memory={"kvPool": {"tokens": 32768}})
    assert str(raised.value).startswith(
        "the KV cache of 4 GiB has 2,047 usable blocks, and one request of 32,768 tokens needs 2,048. Ways out, in this"
        " order: 1. give the KV cache more (spec.memory.kvPool.bytes: "
    )


def test_a_pool_of_nothing_is_too_small() -> None:
    with pytest.raises(PoolTooSmallError, match="the KV cache of 0 B has 0 usable blocks"):
        plan(memory={"kvPool": {"percent": 0}})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        pytest.param(
            {"memory": {"activation": None}},
            "activation is estimated at 4.94 GiB for 1024 sequences",
            id="an activation that nobody stated",
        ),
        pytest.param(
            {"memory": {"activation": None}, "engine__maxNumSeqs": 256},
            "activation is estimated at 1.31 GiB for 256 sequences",
            id="an activation for a stated number of sequences",
        ),
        pytest.param({"gpu__memory": "48Gi"}, "platform not given: cuda-sm80", id="a card that is not large"),
    ],
)
def test_what_is_assumed_is_said(changes: dict[str, Any], sentence: str) -> None:
    stated = {"memory": {"activation": "6Gi"}}

    assert any(each.startswith(sentence) for each in plan(**{**stated, **changes}).assumptions)
    assert not any(each.startswith(sentence) for each in plan(**stated).assumptions)


def test_the_context_comes_from_the_config_when_it_is_not_stated() -> None:
    assert plan(model__maxModelLen=None).max_model_len == 131_072


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"model__revision": "2"}, id="a revision"),
        pytest.param({"model__kvCacheDtype": "fp8"}, id="a type"),
        pytest.param({"model__maxModelLen": 16384}, id="a context"),
        pytest.param({"gpu__count": 2, "engine__parallelism": {"tensor": 2}}, id="parallelism"),
        pytest.param({"model__config": config(rope_theta=1)}, id="the config"),
    ],
)
def test_what_asks_for_a_review_changes_the_hash(changes: dict[str, Any]) -> None:
    assert plan(**changes).plan_hash != plan().plan_hash


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"model__config": config()}, id="the same config from another place"),
        pytest.param({"gpu__memory": "141Gi"}, id="a larger card"),
        pytest.param({"tiers": [{"name": "gold"}]}, id="tiers"),
    ],
)
def test_what_asks_for_no_review_keeps_the_hash(changes: dict[str, Any]) -> None:
    assert plan(**changes).plan_hash == plan().plan_hash
