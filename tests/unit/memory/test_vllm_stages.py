"""Which layers a pipeline stage gets."""

import pytest

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.vllm.stages import stages_of


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [
        pytest.param(8, 2, [4, 4], id="evenly"),
        pytest.param(9, 2, [5, 4], id="the last stage gets no more"),
        pytest.param(13, 4, [3, 3, 4, 3], id="one more goes to the last but one"),
        pytest.param(14, 4, [3, 4, 4, 3], id="two more spare the first"),
        pytest.param(15, 4, [4, 4, 4, 3], id="three more do not"),
    ],
)
def test_layers_of_stages(layers: int, stages: int, sizes: list[int]) -> None:
    of = stages_of(layers, stages)
    assert [of.count(stage) for stage in range(stages)] == sizes
    assert list(of) == sorted(of)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(EngineUnknownError, match="2 layers cannot be spread over 3 pipeline stages"):
        stages_of(2, 3)
