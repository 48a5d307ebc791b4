"""Plans: never more than the card, never other than a plan or a PlanError; longer costs more, more memory is more."""

import contextlib
from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from contract_objects import pool
from kvquota_api.amounts import Bytes, Tokens, parse_quantity
from kvquota_api.memory.advice import FIELDS, advise
from kvquota_api.memory.blocks import LayerGroup, blocks_for
from kvquota_api.memory.capacity import capacity_of
from kvquota_api.memory.errors import PlanError
from kvquota_api.memory.inputs import LONGEST, EngineInputs, EngineName
from kvquota_api.memory.plan import plan_pool
from kvquota_api.memory.planning import Card, CardPlan, KvBudget, KvBytes, KvRemainder, PlanRequest, plan_card
from kvquota_api.memory.presets import load_preset, preset_names
from kvquota_api.validation import parse_model_pool

DENSE = ("llama-3.1-8b", "llama-3.2-1b", "llama-3.2-3b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-8b")
"""Models of one group of layers that keep every token, small enough that many of the drawn cards hold them."""

RELAXED = settings(deadline=None)
"""No time limit: a busy machine is not a defect."""

percents = st.one_of(st.integers(0, 100), st.integers(0, 9999).map(lambda value: f"{value // 100}.{value % 100:02d}"))
kv_pools = st.one_of(
    st.builds(lambda value: {"percent": value}, percents),
    st.builds(lambda value: {"bytes": value}, st.integers(0, 2**38)),
    st.builds(lambda value: {"tokens": value}, st.integers(0, 2**22)),
    st.just({"remainder": {}}),
)
groups = st.lists(
    st.builds(
        LayerGroup,
        kind=st.sampled_from(["Full", "Sliding", "Chunked", "State"]),
        block_tokens=st.integers(1, 4096),
        window_tokens=st.integers(1, 65536),
        fixed_blocks=st.integers(0, 8),
    ),
    max_size=6,
)


@st.composite
def pools(draw: st.DrawFn) -> dict[str, Any]:
    tensor = draw(st.sampled_from([1, 2, 4, 8]))
    pipeline = draw(st.integers(1, 4))
    return pool(
        model__config={"preset": draw(st.sampled_from(DENSE))},
        model__weightDtype=draw(st.sampled_from(["auto", "bf16", "fp8", "int4"])),
        model__kvCacheDtype=draw(st.sampled_from(["auto", "fp8"])),
        model__maxModelLen=draw(st.integers(1, 131_072)),
        engine__blockSize=draw(st.sampled_from([1, 16, 128])),
        engine__parallelism={"tensor": tensor, "pipeline": pipeline},
        gpu={"memory": f"{draw(st.integers(1, 200))}Gi", "count": tensor * pipeline},
        memory={"kvPool": draw(kv_pools), "safetyMarginPercent": draw(st.integers(0, 50))},
    )


@RELAXED
@given(pools())
def test_a_plan_fits_or_says_why_not(raw: dict[str, Any]) -> None:
    spec = parse_model_pool(raw).spec
    try:
        plan = plan_pool(parse_model_pool(raw))
    except PlanError:
        return
    parts, card, asked = plan.partition, parse_quantity(spec.gpu.memory), spec.memory.kv_pool

    assert parts.total <= parts.card == card
    assert parts.kv_pool == plan.cap_blocks * plan.bytes_per_block
    assert plan.bytes_per_block == plan.block_tokens * plan.bytes_per_token
    assert blocks_for(plan.groups, plan.max_model_len) <= plan.usable_blocks
    assert plan.requests_of(plan.max_model_len) >= 1
    if asked.hundredths is not None:
        assert parts.kv_pool <= card * asked.hundredths // 10_000 < parts.kv_pool + plan.bytes_per_block
    if asked.byte_count is not None:
        assert parts.kv_pool <= asked.byte_count < parts.kv_pool + plan.bytes_per_block
    if asked.token_count is not None:
        assert plan.cap_blocks == -(-asked.token_count // plan.block_tokens)


@RELAXED
@given(pools(), st.integers(1, 99))
def test_a_larger_cap_is_never_fewer_blocks(raw: dict[str, Any], percent: int) -> None:
    sizes = []
    for each in (percent, percent + 1):
        raw["spec"]["memory"]["kvPool"] = {"percent": each}
        try:
            sizes.append(plan_pool(parse_model_pool(raw)).cap_blocks)
        except PlanError:
            assume(False)

    assert sizes == sorted(sizes)


engines: st.SearchStrategy[EngineName] = st.sampled_from(["vLLM", "SGLang", "LlamaCpp", "TensorRTLLM"])
kv_sizes = st.one_of(st.builds(KvBytes, st.integers(0, 2**38)), st.just(KvRemainder()), st.just(KvBudget()))


@st.composite
def requests(draw: st.DrawFn) -> PlanRequest:
    """Any model on any engine and card; `max_model_len` in reach of the model."""
    inputs = EngineInputs(
        engine=draw(engines),
        tensor=draw(st.sampled_from([1, 2, 4, 8])),
        kv_dtype=draw(st.sampled_from(["auto", "fp8"])),
        max_model_len=draw(st.sampled_from([None, LONGEST, 1, 1000, 32_768])),
        max_num_seqs=draw(st.sampled_from([None, 1, 256])),
    )
    card = Card(Bytes(draw(st.integers(1, 300)) * 2**30), margin_percent=draw(st.sampled_from([None, 0, 8, 50])))
    return PlanRequest(load_preset(draw(st.sampled_from(preset_names()))), inputs, draw(kv_sizes), card)


def planned(request: PlanRequest) -> CardPlan:
    try:
        return plan_card(request)
    except PlanError:
        assume(False)
        raise


@RELAXED
@given(requests())
def test_the_parts_of_a_plan_never_sum_to_more_than_the_card(request: PlanRequest) -> None:
    plan = planned(request)
    assume(plan.undivided is None)
    assert plan.partition is not None
    if plan.problem is None:
        assert plan.cache is not None
        assert plan.partition.total <= plan.partition.card
        assert plan.partition.kv_pool == plan.cache.kv_bytes
        (line,) = capacity_of(plan.cache, (Tokens(plan.cache.max_model_len),))
        assert line.requests >= 1
    elif plan.problem.reason == "PartitionTooLarge":
        assert plan.partition.total > plan.partition.card


@RELAXED
@given(requests(), st.integers(1, 2**34))
def test_more_memory_never_gives_fewer_blocks(request: PlanRequest, more: int) -> None:
    less = planned(request).cache
    assert request.card is not None
    kv = KvBytes(Bytes(request.kv.size + more)) if isinstance(request.kv, KvBytes) else request.kv
    larger = planned(
        replace(request, card=replace(request.card, memory=Bytes(request.card.memory + more)), kv=kv)
    ).cache
    assume(less is not None and larger is not None and less.max_model_len == larger.max_model_len)
    assert less is not None
    assert larger is not None
    assert less.blocks <= larger.blocks


@settings(deadline=None, max_examples=25)
@given(requests())
def test_every_way_out_is_a_plan_that_is_better(request: PlanRequest) -> None:
    plan = planned(request)
    for each in advise(plan, FIELDS):
        assert 0 < len(each.message) <= 1024
        assert each.plan.problem is None or plan.problem is not None


@RELAXED
@given(groups, st.integers(0, 200_000), st.integers(0, 200_000))
def test_a_longer_sequence_never_holds_fewer_blocks(parts: list[LayerGroup], one: int, other: int) -> None:
    short, long = sorted((one, other))

    assert 0 <= blocks_for(parts, Tokens(short)) <= blocks_for(parts, Tokens(long))


@RELAXED
@given(groups, groups, st.integers(0, 200_000))
def test_the_costs_of_groups_add_up(some: list[LayerGroup], others: list[LayerGroup], length: int) -> None:
    together = blocks_for([*some, *others], Tokens(length))

    assert together == blocks_for(some, Tokens(length)) + blocks_for(others, Tokens(length))


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 70_000),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(["llama", "bfloat16", ""]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["a", "kv_cache_scheme"]), inner)
    ),
    max_leaves=4,
)


@RELAXED
@given(st.sampled_from(preset_names()), st.data())
def test_any_config_is_read_or_refused_as_a_plan_error(preset: str, data: st.DataObject) -> None:
    config = load_preset(preset)
    fields = [*config, "layer_types", "quantization_config", "sliding_window", "num_experts", "dtype", "mlp_bias"]
    changes = data.draw(st.dictionaries(st.sampled_from(fields), json_values, min_size=1, max_size=4))
    with contextlib.suppress(PlanError):
        plan = plan_pool(parse_model_pool(pool(model__config={"inline": {**config, **changes}})))
        assert plan.partition.free >= 0
