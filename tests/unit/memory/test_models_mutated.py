"""A config in which anything is broken is read or refused with a PlanError, never anything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvquota_api.memory.errors import PlanError
from kvquota_api.memory.models.families.table import BY_ARCHITECTURE, CACHE_FIELDS
from kvquota_api.memory.models.layers import ModelShape
from kvquota_api.memory.models.reading import read_model
from kvquota_api.memory.presets import load_preset, preset_names

LIVE = Path(__file__).parents[2] / "data" / "memory" / "live.json"
CONFIGS: list[dict[str, Any]] = [
    *json.loads(LIVE.read_text())["configs"].values(),
    *(load_preset(name) for name in preset_names()),
]
FIELDS = sorted({field for config in CONFIGS for field in config} | CACHE_FIELDS)
NUMBERS = st.integers(-2, 5) | st.sampled_from([2**31, 2**31 + 1, 10**30, -(10**30)]) | st.integers()
SCALARS = NUMBERS | st.none() | st.booleans() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS | st.sampled_from(["full_attention", "auto", "M*-"]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def broken_configs(draw: st.DrawFn) -> dict[str, Any]:
    """A real config with some fields replaced, some taken out, perhaps under the name of another family."""
    config = dict(draw(st.sampled_from(CONFIGS)))
    text = config.get("text_config")
    if isinstance(text, dict) and draw(st.booleans()):
        config["text_config"] = broken(draw, text)
    if draw(st.integers(0, 3)) == 0:
        config["architectures"] = [draw(st.sampled_from(sorted(BY_ARCHITECTURE)))]
    return broken(draw, config)


def broken(draw: st.DrawFn, fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of which up to three have another value and up to two are gone."""
    own = sorted(fields)
    changed = draw(st.dictionaries(st.sampled_from(own) | st.sampled_from(FIELDS), VALUES, max_size=3))
    gone = draw(st.sets(st.sampled_from(own), max_size=2))
    return {name: value for name, value in {**fields, **changed}.items() if name not in gone}


def read_or_refused(config: dict[str, Any]) -> ModelShape | PlanError:
    """The model, or why there is none."""
    try:
        return read_model(config)
    except PlanError as error:
        return error


@settings(max_examples=600, deadline=None)
@given(broken_configs())
def test_a_broken_config_is_read_or_refused_with_a_plan_error(config: dict[str, Any]) -> None:
    outcome = read_or_refused(config)

    assert isinstance(outcome, ModelShape | PlanError)
    assert str(outcome) if isinstance(outcome, PlanError) else outcome.layers


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8))
def test_nonsense_is_refused_with_a_plan_error(config: dict[str, Any]) -> None:
    outcome = read_or_refused(config)

    assert isinstance(outcome, ModelShape | PlanError)
