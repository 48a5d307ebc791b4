"""Public start-up logs: what the planner makes of the memory that they print, beside what they print."""

import sys

import pytest

from kvquota_api.memory.cache_plan import CachePlan
from kvquota_api.memory.errors import PlanError
from kvquota_api.memory.inputs import EngineInputs, EngineName
from kvquota_api.memory.models.reading import read_model
from observations import GIB, PLANNERS, Observation, observations, outcomes_of, report_line

# Rows that the planner does not reproduce, and why that is no fault of its rules.
EXPLAINED = {
    "v-qwen3-235b-fp8-4h100": "the GiB are those of one GPU, the blocks the least of four",
    "v-qwen35-27b-1568": "it ran with --enable-prefix-caching (139/27 blocks, not 139/24), which the row does not say",
}

# Rows that cannot be planned at all, and why.
LEFT_OUT = {
    "v-granite42-3b": "no config: a model composed of Granite 4.2 3B and adapters, with a layer of its own",
    "v-vlm33-48gb": "no config: the log does not name the model",
}

SHARE = 0.95  # of the rows that are gated, which have to be right

GATED = [seen for seen in observations() if not seen.inferred and seen.id not in LEFT_OUT]
INFERRED = [seen for seen in observations() if seen.inferred]


@pytest.mark.parametrize("seen", [seen for seen in GATED if seen.id not in EXPLAINED], ids=lambda seen: seen.id)
def test_the_figures_of_a_log_are_predicted(seen: Observation) -> None:
    outcomes = outcomes_of(seen)

    assert outcomes, "the log has a figure to compare with"
    assert [str(outcome) for outcome in outcomes if not outcome.right] == []


@pytest.mark.parametrize("seen", [seen for seen in GATED if seen.id in EXPLAINED], ids=lambda seen: seen.id)
def test_an_explained_difference_is_still_there(seen: Observation) -> None:
    """Otherwise its explanation is wrong: take it out."""
    assert not all(outcome.right for outcome in outcomes_of(seen))


def test_most_rows_are_right() -> None:
    assert len(EXPLAINED) <= (1 - SHARE) * len(GATED)
    assert EXPLAINED.keys() <= {seen.id for seen in GATED}


def test_the_rows_left_out_are_those_whose_model_is_not_known() -> None:
    assert {seen.id for seen in observations() if seen.config is None} == LEFT_OUT.keys()


@pytest.mark.parametrize("seen", [seen for seen in observations() if seen.config is None], ids=lambda seen: seen.id)
def test_a_row_left_out_fails_loudly(seen: Observation) -> None:
    with pytest.raises(PlanError, match="architectures"):
        read_model({"architectures": [seen.row["arch"]]})


def test_inferred_rows_are_reported() -> None:
    """Shown with `pytest -rP`. They gate nothing: a choice in them was fitted."""
    lines = [report_line(seen) for seen in INFERRED]
    sys.stdout.write("\n".join(lines))

    assert [line.split(" | ")[0] for line in lines] == [f"| {seen.id}" for seen in INFERRED]


@pytest.mark.parametrize("engine", PLANNERS)
@pytest.mark.parametrize("seen", [seen for seen in observations() if seen.config is not None], ids=lambda seen: seen.id)
def test_every_model_is_planned_or_refused_by_every_engine(seen: Observation, engine: EngineName) -> None:
    """Within the bytes given and one block, by which TensorRT-LLM rounds up; no other error than PlanError."""
    plan = planned(seen, EngineInputs(engine=engine), 64 * GIB)

    assert isinstance(plan, PlanError) or 0 < plan.kv_bytes < 64 * GIB + plan.bytes_per_block


def planned(seen: Observation, inputs: EngineInputs, kv_bytes: int) -> CachePlan | PlanError:
    try:
        return PLANNERS[inputs.engine](seen.shape, inputs, kv_bytes)
    except PlanError as refusal:
        return refusal
