"""Cards: parts never sum to more than the card, budgets never hand out more than there is, weights only shrink."""

import contextlib
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvquota_api.amounts import Bytes
from kvquota_api.memory.errors import ModelConfigError, PlanError
from kvquota_api.memory.inputs import EngineInputs, EngineName
from kvquota_api.memory.parameters import count_parameters, weights_per_gpu
from kvquota_api.memory.partition import Partition, Parts, budget, overflow

RELAXED = settings(deadline=None)
"""No time limit: a busy machine is not a defect."""

sizes = st.integers(0, 2**40).map(Bytes)
cards = st.integers(1, 2**40).map(Bytes)
engines: st.SearchStrategy[EngineName] = st.sampled_from(["vLLM", "SGLang", "LlamaCpp", "TensorRTLLM"])
versions = st.sampled_from([None, "0.11.0", "0.19.0", "0.20.2", "0.21.0", "0.32.0"])
fractions = st.none() | st.fractions(0, 1, max_denominator=1000)
FAMILIES = ("llama", "qwen2", "qwen3", "gemma2", "olmo2", "starcoder2", "mixtral", "gpt_oss")
TYPES = ("fp32", "bf16", "fp8", "int8", "int4", "nf4", "mxfp4", "nvfp4", "q8_0", "q4_k")


@st.composite
def parts(draw: st.DrawFn) -> Parts:
    other = draw(sizes)
    return Parts(draw(sizes), draw(sizes), other, Bytes(draw(st.integers(0, other))), ())


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    kv_heads = draw(st.sampled_from([1, 2, 4, 8]))
    return {
        "model_type": draw(st.sampled_from(FAMILIES)),
        "num_hidden_layers": draw(st.integers(1, 12)),
        "hidden_size": draw(st.integers(1, 64)) * 64,
        "intermediate_size": draw(st.integers(1, 5000)),
        "num_attention_heads": kv_heads * draw(st.sampled_from([1, 2, 4])),
        "num_key_value_heads": kv_heads,
        "head_dim": draw(st.sampled_from([32, 64, 128])),
        "vocab_size": draw(st.integers(1, 300_000)),
        "num_local_experts": draw(st.integers(1, 64)),
        "tie_word_embeddings": draw(st.booleans()),
        "torch_dtype": "bfloat16",
    }


@given(cards, parts(), sizes, sizes)
def test_either_the_parts_fit_on_the_card_or_it_is_said_why_not(
    card: Bytes, beside: Parts, kv_pool: Bytes, margin: Bytes
) -> None:
    partition = Partition(card, beside.weights, beside.activation, kv_pool, margin, beside.other)

    assert (overflow(partition) is None) == (partition.total <= card)


@given(engines, versions, cards, parts(), fractions)
def test_what_a_budget_leaves_for_the_cache_never_takes_the_parts_past_the_card(
    engine: EngineName, version: str | None, card: Bytes, beside: Parts, part: Fraction | None
) -> None:
    inputs = EngineInputs(engine, version=version if engine == "vLLM" else None)

    left = budget(inputs, card, beside, part)

    partition = Partition(
        card, beside.weights, beside.activation, Bytes(max(0, left.kv_bytes)), left.safety_margin, beside.other
    )
    assert left.safety_margin >= 0
    assert left.kv_bytes <= card
    if beside.weights + beside.activation + beside.other + left.kv_bytes <= card and left.kv_bytes >= 0:
        assert overflow(partition) is None


@given(cards, parts(), st.fractions(0, 1, max_denominator=100), st.fractions(0, 1, max_denominator=100))
def test_a_larger_part_of_the_card_never_leaves_less_for_the_cache(
    card: Bytes, beside: Parts, one: Fraction, other: Fraction
) -> None:
    smaller, larger = sorted((one, other))
    for engine in ("vLLM", "SGLang", "LlamaCpp"):
        inputs = EngineInputs(engine)
        assert budget(inputs, card, beside, smaller).kv_bytes <= budget(inputs, card, beside, larger).kv_bytes


@RELAXED
@given(configs(), st.sampled_from(TYPES), st.sampled_from([1, 2, 4, 8]), st.integers(1, 4))
def test_more_gpus_never_hold_more_each_and_never_less_together(
    config: dict[str, Any], weight_dtype: str, tensor: int, pipeline: int
) -> None:
    pipeline = min(pipeline, config["num_hidden_layers"])
    whole = weights_per_gpu(config, weight_dtype).size

    one = weights_per_gpu(config, weight_dtype, tensor=tensor, pipeline=pipeline).size

    assert one * tensor * pipeline >= whole - 1
    if weight_dtype != "mxfp4":  # whose experts are padded on each GPU
        assert one <= whole + 64 * tensor * config["hidden_size"] * 4  # the vocabulary's padding


@RELAXED
@given(configs())
def test_fewer_bits_never_take_more(config: dict[str, Any]) -> None:
    sized = [weights_per_gpu(config, weight_dtype).size for weight_dtype in ("fp32", "bf16", "fp8", "nvfp4", "int4")]

    assert sized == sorted(sized, reverse=True)
    assert sized[1] >= 2 * count_parameters(config).total


JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 2**40) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ("quant_method", "bits", "group_size", "config_groups", "ignore", "weight_block_size", "quantized_layers")


@RELAXED
@given(
    configs(),
    st.dictionaries(
        st.sampled_from([*FIELDS, "quant_algo"]), JUNK | st.sampled_from(["fp8", "awq", "gptq", "modelopt"])
    ),
)
def test_whatever_a_quantisation_says_is_a_size_or_an_error_of_the_plan(
    config: dict[str, Any], quantisation: dict[str, Any]
) -> None:
    with contextlib.suppress(ModelConfigError):
        assert weights_per_gpu({**config, "quantization_config": quantisation}).size > 0


@RELAXED
@given(
    configs(), st.dictionaries(st.sampled_from(sorted(["model_type", "text_config", "vision_config", *TYPES])), JUNK)
)
def test_whatever_a_config_says_is_a_size_or_an_error_of_the_plan(config: dict[str, Any], junk: dict[str, Any]) -> None:
    with contextlib.suppress(PlanError):
        assert weights_per_gpu({**config, **junk}).size > 0
