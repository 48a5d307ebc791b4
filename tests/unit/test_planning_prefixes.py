"""Whether requests that begin alike are charged for their beginning once."""

import pytest

from kvquota_api.engine_spec import Engine
from kvquota_api.memory.blocks import LayerGroup
from kvquota_operator.planning.prefixes import shares_prefixes

FULL = LayerGroup(kind="Full", block_tokens=16)
SLIDING = LayerGroup(kind="Sliding", block_tokens=16, window_tokens=4096)
STATE = LayerGroup(kind="State", block_tokens=16, fixed_blocks=1)


@pytest.mark.parametrize(
    ("engine", "prefix_caching", "groups", "expected"),
    [
        pytest.param("vLLM", None, (FULL,), True, id="vLLM does by itself"),
        pytest.param("SGLang", None, (FULL, FULL), True, id="so does SGLang"),
        pytest.param("TensorRTLLM", None, (FULL,), True, id="and TensorRT-LLM"),
        pytest.param("vLLM", False, (FULL,), False, id="it is switched off"),
        pytest.param("vLLM", None, (FULL, SLIDING), False, id="a window: it depends on the version"),
        pytest.param("vLLM", None, (STATE,), False, id="a state: it depends on the version"),
        pytest.param("vLLM", True, (FULL, STATE), True, id="where the spec says so it does"),
        pytest.param("LlamaCpp", None, (FULL,), False, id="llama.cpp keeps a copy in each slot"),
        pytest.param("LlamaCpp", True, (FULL,), False, id="whatever it is told"),
        pytest.param("OpenAI", True, (FULL,), False, id="nothing is known of others"),
    ],
)
def test_prefixes_are_shared(engine, prefix_caching, groups, expected):
    assert shares_prefixes(Engine(type=engine, prefix_caching=prefix_caching), groups) is expected
