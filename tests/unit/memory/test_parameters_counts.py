"""Parameters counted from a config are those that the real model classes have, part by part."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvquota_api.memory.parameters import count_parameters

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
