"""Which ModelPool and which config.json `kvquota plan` takes from a file of several objects."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvquota_api.memory.errors import ModelConfigError
from kvquota_api.memory.presets import load_preset
from kvquota_cli.errors import CliError
from kvquota_cli.planning.pool_files import read_pool

FILE = Path("pools.yaml")


def pool(name: str = "a", namespace: str | None = None, config: dict[str, Any] | None = None) -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {
        "apiVersion": "kvquota.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "model": {"name": name, "config": config or {"preset": "llama-3.1-8b"}},
            "engine": {"type": "vLLM"},
            "gpu": {"memory": "80Gi"},
        },
    }


def config_map(text: str, namespace: str | None = None) -> dict[str, Any]:
    metadata = {"name": "configs"} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"config.json": text}}


def read(*objects: dict[str, Any], wanted: str | None = None) -> tuple[str, str]:
    """The config's architecture and the pool's name."""
    config, found = read_pool(yaml.safe_dump_all(objects), FILE, wanted)
    return config["architectures"][0], found.metadata.name


REFERENCE = {"configMapRef": {"name": "configs", "key": "config.json"}}
QWEN = json.dumps(load_preset("qwen3-8b"))


@pytest.mark.parametrize("wanted", ["b", "two/b"])
def test_a_pool_is_chosen_by_name_or_by_namespace_and_name(wanted: str) -> None:
    assert read(pool("a"), pool("b", "two"), wanted=wanted) == ("LlamaForCausalLM", "b")


def test_a_config_map_of_the_same_namespace_is_taken() -> None:
    assert read(config_map("[]", "other"), config_map(QWEN), pool(config=REFERENCE)) == ("Qwen3ForCausalLM", "a")


def test_a_config_map_of_another_namespace_is_not() -> None:
    with pytest.raises(ModelConfigError, match=r"ConfigMap configs, or its key config\.json, is not there"):
        read(config_map(QWEN, "other"), pool(config=REFERENCE))


@pytest.mark.parametrize(
    ("objects", "wanted", "sentence"),
    [
        pytest.param([pool("a"), pool("a")], None, "ModelPool a is there twice: keep one", id="one pool twice"),
        pytest.param(
            [pool("a", "one"), pool("a", "two")],
            "a",
            "it holds several ModelPools: give --pool one of one/a, two/a",
            id="one name in two namespaces",
        ),
        pytest.param([pool("a")], "c", "--pool 'c': pools.yaml has no ModelPool of this name", id="another name"),
        pytest.param(
            [config_map("{" * 3), pool(config=REFERENCE)],
            None,
            "ConfigMap configs: its key config.json holds no JSON object: put the model's config.json there",
            id="no JSON",
        ),
        pytest.param(
            [config_map('{"hidden_size": ' + "9" * 5000 + "}"), pool(config=REFERENCE)],
            None,
            "holds no JSON object",
            id="a number of 5,000 digits",
        ),
        pytest.param(
            [config_map('{"a":' * 5000 + "1" + "}" * 5000), pool(config=REFERENCE)],
            None,
            "holds no JSON object",
            id="5,000 levels",
        ),
    ],
)
def test_what_cannot_be_chosen_or_read_is_said(
    objects: list[dict[str, Any]], wanted: str | None, sentence: str
) -> None:
    with pytest.raises(CliError) as caught:
        read(*objects, wanted=wanted)
    assert sentence in str(caught.value)
