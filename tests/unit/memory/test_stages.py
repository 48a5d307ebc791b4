"""Which layers a pipeline stage gets."""

import pytest

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.inputs import EngineName
from kvquota_api.memory.stages import stages_of


@pytest.mark.parametrize(
    ("engine", "layers", "stages", "sizes"),
    [
        pytest.param("vLLM", 8, 2, [4, 4], id="evenly"),
        pytest.param("vLLM", 9, 2, [5, 4], id="the last stage gets no more"),
        pytest.param("vLLM", 13, 4, [3, 3, 4, 3], id="one more goes to the last but one"),
        pytest.param("vLLM", 14, 4, [3, 4, 4, 3], id="two more spare the first"),
        pytest.param("vLLM", 15, 4, [4, 4, 4, 3], id="three more do not"),
        pytest.param("SGLang", 61, 4, [15, 15, 15, 16], id="SGLang: the last one gets more"),
        pytest.param("TensorRTLLM", 62, 4, [16, 16, 15, 15], id="TensorRT-LLM: the first ones get more"),
        pytest.param("LlamaCpp", 8, 2, [4, 4], id="llama.cpp: evenly, where that can be"),
    ],
)
def test_layers_of_stages(engine: EngineName, layers: int, stages: int, sizes: list[int]) -> None:
    of = stages_of(layers, stages, engine)
    assert [of.count(stage) for stage in range(stages)] == sizes
    assert list(of) == sorted(of)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(EngineUnknownError, match="2 layers cannot be spread over 3 pipeline stages"):
        stages_of(2, 3, "vLLM")


def test_uneven_stages_of_llama_cpp_are_not_known() -> None:
    with pytest.raises(EngineUnknownError, match="use one pipeline stage"):
        stages_of(9, 2, "LlamaCpp")
