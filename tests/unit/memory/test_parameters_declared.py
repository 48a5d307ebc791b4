"""Where a config says how its weights are stored, and on which stage they are."""

import pytest

from kvquota_api.memory.inputs import EngineName
from kvquota_api.memory.parameters import weights_per_gpu
from kvquota_api.memory.presets import load_preset

FP8 = load_preset("llama-3.1-70b-fp8")
DECLARED = FP8["quantization_config"]
BARE = {name: value for name, value in FP8.items() if name != "quantization_config"}


def test_a_checkpoint_declares_its_storage_under_either_name() -> None:
    either = [weights_per_gpu({**BARE, name: DECLARED}) for name in ("quantization_config", "compression_config")]
    assert either[0] == either[1]
    assert either[0].size < weights_per_gpu(BARE).size


@pytest.mark.parametrize(("engine", "layers_of_the_end"), [("vLLM", 20), ("SGLang", 21)])
def test_weights_are_cut_into_the_stages_of_the_engine(engine: EngineName, layers_of_the_end: int) -> None:
    """82 layers in four stages: the last one, which has the head, is the fullest with or without a layer more."""
    config = {**load_preset("llama-3.1-70b"), "num_hidden_layers": 82}
    even = {**config, "num_hidden_layers": 4 * layers_of_the_end}
    uneven, alike = (weights_per_gpu(each, pipeline=4, engine=engine).size for each in (config, even))
    assert uneven == alike
