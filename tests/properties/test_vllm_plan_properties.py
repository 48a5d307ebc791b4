"""What holds of every plan of vLLM, whatever the model and the flags."""

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvquota_api.amounts import Tokens
from kvquota_api.memory.blocks import blocks_for
from kvquota_api.memory.cache_plan import CachePlan
from kvquota_api.memory.errors import EngineUnknownError, PlanError
from kvquota_api.memory.inputs import LONGEST, EngineInputs
from kvquota_api.memory.models.layers import (
    Attention,
    GatedDeltaState,
    Latent,
    Layer,
    Mamba2State,
    ModelShape,
)
from kvquota_api.memory.vllm import plan_cache

GIB = 1 << 30
RELAXED = settings(deadline=None)
"""No time limit: a busy machine is not a defect."""
KINDS: tuple[Layer, ...] = (
    (Attention(8, 128, 128),),
    (Attention(2, 256, 256),),
    (Attention(8, 128, 128, window=512),),
    (Attention(4, 64, 64, window=4096),),
    (Attention(8, 128, 128, chunk=2048),),
    (Latent(512, 64),),
    (GatedDeltaState(16, 32, 128, 128, 4),),
    (Mamba2State(64, 64, 128, 8, 4),),
    (),
)


@st.composite
def models(draw: st.DrawFn) -> ModelShape:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    layers = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=24))
    return ModelShape(
        architecture="SomeForCausalLM",
        model_type="some",
        layers=tuple(layers),
        draft_layers=(),
        heads=32,
        vocabulary=1024,
        max_positions=32768,
        dtype="bf16",
    )


inputs = st.builds(
    EngineInputs,
    engine=st.just("vLLM"),
    version=st.sampled_from(["0.32.0", "0.20.0", "0.11.0"]),
    platform=st.sampled_from(["cuda-sm80", "cuda-sm90", "cpu"]),
    tensor=st.sampled_from([1, 2, 4]),
    kv_dtype=st.sampled_from(["auto", "fp8"]),
    block_tokens=st.sampled_from([None, 32, 64]),
    max_model_len=st.integers(1, 32768),
    max_num_batched_tokens=st.sampled_from([None, 512, 8192]),
    prefix_caching=st.sampled_from([None, True, False]),
    hybrid_manager=st.booleans(),
)


def plan_or_reject(model: ModelShape, given_inputs: EngineInputs, kv_bytes: int) -> CachePlan:
    """A plan, or an example that does not count: vLLM refuses some mixtures."""
    try:
        return plan_cache(model, given_inputs, kv_bytes)
    except EngineUnknownError:
        assume(False)
        raise


def blocks_of(plan: CachePlan, length: int) -> int:
    return blocks_for((group.cost for group in plan.groups), Tokens(length))


@RELAXED
@given(models(), inputs, st.integers(0, 64 * GIB))
def test_blocks_fill_the_memory_and_no_more(model: ModelShape, flags: EngineInputs, kv_bytes: int) -> None:
    plan = plan_or_reject(model, flags, kv_bytes)
    assert plan.kv_bytes == plan.blocks * plan.bytes_per_block <= kv_bytes < plan.kv_bytes + plan.bytes_per_block


@RELAXED
@given(models(), inputs, st.integers(0, GIB), st.integers(0, GIB))
def test_more_memory_never_gives_fewer_blocks(model: ModelShape, flags: EngineInputs, less: int, more: int) -> None:
    plan = plan_or_reject(model, flags, less)
    larger = plan_or_reject(model, flags, less + more)
    assert (larger.blocks >= plan.blocks, larger.concurrency >= plan.concurrency) == (True, True)


@RELAXED
@given(models(), inputs, st.lists(st.integers(0, 40000), min_size=2, max_size=8))
def test_longer_requests_never_cost_less(model: ModelShape, flags: EngineInputs, lengths: list[int]) -> None:
    plan = plan_or_reject(model, flags, GIB)
    costs = [blocks_of(plan, length) for length in sorted(lengths)]
    assert costs == sorted(costs)


@RELAXED
@given(models(), inputs)
def test_every_layer_that_keeps_something_is_in_one_group(model: ModelShape, flags: EngineInputs) -> None:
    plan = plan_or_reject(model, flags, GIB)
    assert sum(group.layers for group in plan.groups) == sum(1 for _ in caches(model))
    assert max(group.page_bytes for group in plan.groups) == plan.bytes_per_block


@RELAXED
@given(models(), inputs, st.integers(1, GIB))
def test_longest_length_fits_and_a_longer_one_does_not(model: ModelShape, flags: EngineInputs, kv_bytes: int) -> None:
    try:
        plan = plan_cache(model, replace(flags, max_model_len=LONGEST, max_num_batched_tokens=512), kv_bytes)
    except PlanError:
        assume(False)
        raise
    assert plan.min_bytes <= kv_bytes
    more = blocks_of(plan, plan.max_model_len + 1) + plan.null_blocks
    assert plan.max_model_len == model.max_positions or more * plan.bytes_per_block > kv_bytes


def caches(model: ModelShape) -> Iterator[object]:
    yield from (cache for layer in model.layers for cache in layer)
