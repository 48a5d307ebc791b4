"""What would make a plan fit, or hold more."""

from dataclasses import replace
from typing import Any

import pytest

from kvquota_api.amounts import Bytes, Hundredths, Tokens
from kvquota_api.memory.advice import FIELDS, FLAGS, Advice, Terms, advise, in_order
from kvquota_api.memory.inputs import LONGEST, EngineInputs
from kvquota_api.memory.planning import (
    Card,
    KvBudget,
    KvBytes,
    KvPercent,
    KvRemainder,
    KvSize,
    KvTokens,
    PlanRequest,
    plan_card,
)
from kvquota_api.memory.presets import load_preset

GIB = 2**30
CARD = Card(Bytes(80 * GIB), activation=Bytes(5 * GIB), other=Bytes(GIB), margin_percent=10)


def advice(preset: str, kv: KvSize, card: Card | None = CARD, **inputs: Any) -> tuple[Advice, ...]:
    given = EngineInputs(**{"engine": "vLLM", "version": "0.32", **inputs})
    return advise(plan_card(PlanRequest(load_preset(preset), given, kv, card)), FLAGS)


def said(found: tuple[Advice, ...]) -> list[tuple[str, str]]:
    return [(each.reason, each.message) for each in found]


def test_a_plan_that_fits_is_told_what_a_smaller_cache_type_would_hold() -> None:
    found = advice("llama-3.1-8b", KvBytes(Bytes(8 * GIB + 2**21)), max_model_len=32_768)
    assert said(found) == [
        (
            "QuantiseKvCache",
            "quantise the KV cache (--kv-dtype fp8): 65,536 B per token instead of 131,072 B, then 4 requests of 32,768"
            " tokens fit into 8 GiB of KV cache",
        )
    ]
    assert [each.plan.problem for each in found] == [None]


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        pytest.param(FLAGS, "--max-model-len 69632 instead of 131072", id="a flag says the whole context"),
        pytest.param(FIELDS, "spec.model.maxModelLen: 17408 instead of 32768", id="a field what a request may have"),
    ],
)
def test_a_shorter_context_of_several_slots_is_said_as_its_reader_writes_it(terms: Terms, words: str) -> None:
    given = EngineInputs("LlamaCpp", max_model_len=131_072, slots=4)
    plan = plan_card(PlanRequest(load_preset("llama-3.1-8b"), given, KvBudget(), Card(Bytes(24 * GIB))))
    (context,) = [each for each in advise(plan, terms) if each.reason == "ShortenContext"]
    assert words in context.message
    again = replace(given, max_model_len=context.plan.inputs.streams * 17_408)
    assert plan_card(replace(plan.request, inputs=again)).problem is None


def test_a_cache_of_one_byte_already_is_told_nothing() -> None:
    assert advice("llama-3.1-8b", KvBytes(Bytes(8 * GIB)), max_model_len=32_768, kv_dtype="fp8") == ()


def test_a_model_that_is_too_large_is_quantised_then_its_cache_on_top_then_spread() -> None:
    found = advice("llama-3.1-70b", KvRemainder())
    assert [each.reason for each in found] == ["QuantiseWeights", "QuantiseKvCache", "ShortenContext", "MoreGpus"]
    weights, cache, context, gpus = (each.message for each in found)
    assert weights.startswith("quantise the weights (--weight-dtype int4): ")
    assert weights.endswith(", which is not enough alone")
    assert cache.startswith("with weights in int4, quantise the KV cache (--kv-dtype fp8): ")
    assert context.startswith("with weights in int4, shorten the context (--max-model-len ")
    assert gpus.startswith("more GPUs (--tp 4): ")
    assert [each.plan.problem is None for each in found] == [False, True, True, True]


def test_the_mildest_type_of_weights_that_is_enough_is_named() -> None:
    found = advice("qwen3-32b", KvRemainder(), max_model_len=32_768)
    assert [each.message.partition(":")[0] for each in found] == [
        "quantise the weights (--weight-dtype fp8)",
        "quantise the KV cache (--kv-dtype fp8)",
        f"shorten the context (--max-model-len {found[2].plan.cache and found[2].plan.cache.max_model_len} instead of"
        " 32768)",
        "more GPUs (--tp 2)",
    ]
    assert [each.plan.problem for each in found] == [None] * 4


def test_a_pool_that_is_stated_too_large_is_told_what_is_left_for_it() -> None:
    found = advice("llama-3.1-8b", KvPercent(Hundredths(90_00)), max_model_len=32_768, weight_dtype="fp8")
    pool = next(each for each in found if each.reason == "ShrinkKvPool")
    size = pool.plan.partition
    assert size is not None
    assert pool.message.startswith(f"give the KV cache less (--kv-memory {size.kv_pool}): then ")
    assert (size.free < 2 * 2**20, pool.plan.problem) == (True, None)


def test_a_budget_of_the_engine_is_what_a_stated_pool_falls_back_to_where_no_margin_is_stated() -> None:
    card = replace(CARD, margin_percent=None)
    found = advice("llama-3.1-8b", KvBytes(Bytes(79 * GIB)), card, max_model_len=32_768)
    pool = next(each for each in found if each.reason == "ShrinkKvPool")
    assert pool.plan.request.kv == KvBudget()


def test_only_the_bytes_are_known_and_the_context_is_too_long() -> None:
    found = advice("llama-3.1-8b", KvBytes(Bytes(4 * GIB)), None, max_model_len=32_768)
    assert said(found) == [
        (
            "QuantiseKvCache",
            "quantise the KV cache (--kv-dtype fp8): 65,536 B per token instead of 131,072 B, then 1 request of 32,768"
            " tokens fits into 4 GiB of KV cache",
        ),
        (
            "ShortenContext",
            "shorten the context (--max-model-len 32752 instead of 32768): then 1 request of 32,752 tokens fits into"
            " 4 GiB of KV cache",
        ),
        ("MoreGpus", "more GPUs (--tp 2): then 1 request of 32,768 tokens fits into 4 GiB of KV cache"),
    ]


def test_where_nothing_fits_yet_a_smaller_type_may() -> None:
    found = advice("llama-3.1-8b", KvBytes(Bytes(3 * 2**20)), None, max_model_len=LONGEST)
    assert said(found)[0] == (
        "QuantiseKvCache",
        "quantise the KV cache (--kv-dtype fp8): then 1 request of 32 tokens fits into 3 MiB of KV cache",
    )
    assert advice("llama-3.1-8b", KvBytes(Bytes(1)), None, max_model_len=LONGEST) == ()


def test_weights_that_were_given_are_not_counted_anew() -> None:
    found = advice("llama-3.1-8b", KvRemainder(), replace(CARD, weights=Bytes(90 * GIB)))
    assert found == ()


def test_a_pool_that_is_stated_too_small_is_told_what_the_longest_request_needs() -> None:
    first, *_ = advice("llama-3.1-8b", KvTokens(Tokens(32_768)), max_model_len=32_768)
    assert (first.reason, first.message) == (
        "GrowKvPool",
        "give the KV cache more (--kv-memory 4297064448): then 1 request of 32,768 tokens fits into 4 GiB of KV cache",
    )


def test_llama_cpp_calls_the_smaller_type_otherwise() -> None:
    found = advice("llama-3.1-8b", KvBytes(Bytes(GIB)), None, engine="LlamaCpp", version=None, max_model_len=8192)
    assert said(found) == [
        (
            "QuantiseKvCache",
            "quantise the KV cache (--kv-dtype q8_0): 69,632 B per token instead of 131,072 B, then 1 request of 8,192"
            " tokens fits into 544 MiB of KV cache",
        )
    ]


def test_the_ways_out_are_one_sentence_in_the_words_of_the_reader() -> None:
    request = PlanRequest(
        load_preset("llama-3.1-8b"),
        EngineInputs("vLLM", "0.32", max_model_len=32_768),
        KvBytes(Bytes(4 * GIB)),
        replace(CARD, weights=Bytes(15 * GIB)),
    )
    sentence = in_order(advise(plan_card(request), FIELDS))
    assert sentence.startswith("Ways out, in this order: 1. quantise the KV cache (spec.model.kvCacheDtype: fp8): ")
    assert "; 2. give the KV cache more (spec.memory.kvPool.bytes: 4297064448): " in sentence
    assert "; 3. shorten the context (spec.model.maxModelLen: 32752 instead of 32768): " in sentence
    assert "(spec.engine.parallelism.tensor: 2, and spec.gpu.count with it)" in sentence


def test_where_nothing_helps_a_larger_card_does() -> None:
    assert in_order(()) == (
        "No other type, context or number of GPUs that the planner knows makes it fit: take a larger card"
    )


@pytest.mark.parametrize("preset", ["llama-3.1-8b", "qwen3-0.6b", "llama-3.1-70b"])
def test_every_number_is_that_of_a_plan(preset: str) -> None:
    for each in advice(preset, KvPercent(Hundredths(95_00))):
        again = plan_card(each.plan.request)
        assert replace(again, problem=None) == replace(each.plan, problem=None)
        assert str(again.problem) == str(each.plan.problem)
