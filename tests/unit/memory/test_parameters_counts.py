"""Parameters counted from a config are those that the real model classes have, part by part."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvquota_api.memory.errors import ModelConfigError, UnknownArchitectureError
from kvquota_api.memory.parameters import count_parameters
from kvquota_api.memory.presets import load_preset, preset_names

DATA = Path(__file__).resolve().parents[2] / "data" / "memory"
RECORDED: dict[str, Any] = json.loads((DATA / "parameters.json").read_text())
LIVE: dict[str, Any] = json.loads((DATA / "live.json").read_text())["configs"]
MODELS: dict[str, Any] = RECORDED["models"]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_as_many_parameters_of_each_part_as_its_class(name: str) -> None:
    counted = count_parameters(MODELS[name]["config"])

    assert dict(sorted(counted.by_part().items())) == MODELS[name]["parameters"]
    assert counted.total == sum(MODELS[name]["parameters"].values())


@pytest.mark.parametrize("name", RECORDED["live"])
def test_a_small_shape_has_as_many_parameters_of_each_part_as_its_class(name: str) -> None:
    assert dict(sorted(count_parameters(LIVE[name]).by_part().items())) == RECORDED["live"][name]


COUNTED = [name for name in preset_names() if load_preset(name).get("architectures")]


@pytest.mark.parametrize("name", COUNTED)
def test_a_config_without_its_type_is_counted_by_its_architecture(name: str) -> None:
    config = load_preset(name)
    bare = {field: value for field, value in config.items() if field != "model_type"}

    assert weighed(bare) == weighed(config)


def weighed(config: Mapping[str, Any]) -> object:
    """The weights; of what cannot be counted why, but for the type."""
    try:
        return count_parameters(config)
    except UnknownArchitectureError as error:
        return str(error).replace(repr(config.get("model_type")), "None")


@pytest.mark.parametrize(
    ("architectures", "model_type"),
    [
        pytest.param(["MiMoV2OmniForCausalLM"], None, id="one of a family of several types"),
        pytest.param(["NobodysForCausalLM"], None, id="one that nobody knows"),
        pytest.param([], None, id="none"),
        pytest.param([7], None, id="a number"),
    ],
)
def test_a_type_that_the_architecture_does_not_say_is_not_guessed(architectures: list[Any], model_type: None) -> None:
    with pytest.raises(UnknownArchitectureError, match=r"weights of None: state their size .*--weights"):
        count_parameters({"architectures": architectures, "model_type": model_type})


def test_a_config_that_leaves_something_out_is_told_with_the_way_on() -> None:
    config = {**load_preset("deepseek-v3"), "n_shared_experts": None}
    with pytest.raises(
        ModelConfigError, match=r"^n_shared_experts: None is not .*, or state the size of all weights.*--weights"
    ):
        count_parameters(config)
