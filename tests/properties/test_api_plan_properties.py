"""Plans: never more than the card, never other than a plan or a PlanError, and costs that only grow."""

import contextlib
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from contract_objects import pool
from kvquota_api.amounts import Tokens, parse_quantity
from kvquota_api.memory.architectures import read_architecture
from kvquota_api.memory.blocks import LayerGroup, blocks_for
from kvquota_api.memory.errors import PlanError
from kvquota_api.memory.plan import plan_pool
from kvquota_api.memory.presets import load_preset, preset_names
from kvquota_api.validation import parse_model_pool

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
        kind=st.sampled_from(["Full", "Sliding", "State"]),
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
        model__config={"preset": draw(st.sampled_from(preset_names()))},
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


@RELAXED
@given(st.sampled_from(preset_names()), st.integers(0, 12))
def test_kv_bytes_fall_with_more_gpus_until_every_gpu_has_one_head(preset: str, power: int) -> None:
    model = read_architecture(load_preset(preset))
    one, two = (model.kv_bytes_per_token(tensor, model.layers, 2) for tensor in (2**power, 2 ** (power + 1)))

    assert two in (one, one // 2)
    assert two >= model.layers * 2 * model.head_dim * 2
