"""The model configs that kvquota carries."""

import pytest

from kvquota_api.memory.architectures import read_architecture
from kvquota_api.memory.errors import ModelConfigError
from kvquota_api.memory.presets import load_preset, preset_names

# Bytes of one token in 16 bits: 2 (K and V) x layers x KV heads x head_dim x 2.
KV_BYTES = {
    "llama-3.1-70b": 327_680,
    "llama-3.1-8b": 131_072,
    "llama-3.2-1b": 32_768,
    "llama-3.2-3b": 114_688,
    "qwen2.5-7b": 57_344,
    "qwen3-0.6b": 114_688,
    "qwen3-32b": 262_144,
    "qwen3-8b": 147_456,
}


def test_every_preset_is_dense_and_costs_what_is_known_of_it() -> None:
    costs = {}
    for name in preset_names():
        model = read_architecture(load_preset(name))
        costs[name] = model.kv_bytes_per_token(tensor=1, layers=model.layers, element=2)

    assert costs == KV_BYTES


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_says_its_type_and_its_longest_context(name: str) -> None:
    model = read_architecture(load_preset(name))

    assert model.dtype == "bf16"
    assert model.max_positions is not None


def test_a_name_that_is_close_is_suggested() -> None:
    with pytest.raises(
        ModelConfigError, match=r"llama-3-8b is not one of .*; did you mean llama-3\.1-8b\? For any other"
    ):
        load_preset("llama-3-8b")


@pytest.mark.parametrize("name", ["zzz", "../presets/llama-3.1-8b", "__init__.py", ""])
def test_a_name_that_is_none_lists_the_presets(name: str) -> None:
    with pytest.raises(ModelConfigError, match=r"is not one of llama-3\.1-70b, llama-3\.1-8b, .*qwen3-8b"):
        load_preset(name)
