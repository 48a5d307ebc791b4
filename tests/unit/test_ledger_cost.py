"""What a request of copies costs on models whose layers keep their past in different ways."""

from __future__ import annotations

import pytest

from kvquota_api.memory.blocks import LayerGroup
from kvquota_sidecar.ledger.cost import Tariff

FULL = LayerGroup(kind="Full", block_tokens=16)
SLIDING = LayerGroup(kind="Sliding", block_tokens=16, window_tokens=64)
STATE = LayerGroup(kind="State", block_tokens=16, fixed_blocks=3)


@pytest.mark.parametrize(
    ("groups", "prompt", "output", "copies", "expected"),
    [
        pytest.param([FULL], 100, 50, 1, 10, id="one sequence pays for its own length"),
        pytest.param([FULL], 100, 50, 4, 6 + 4 * 4, id="copies share the six whole blocks of the prompt"),
        pytest.param([FULL], 96, 0, 4, 6, id="copies without output are one prompt"),
        pytest.param([FULL], 100, 0, 4, 6 + 4, id="copies without output still end the prompt each in its own block"),
        pytest.param([STATE], 100, 50, 4, 12, id="each copy has a state of its own"),
        pytest.param([SLIDING], 100, 50, 4, 20, id="each copy has a window of its own"),
        pytest.param([FULL, SLIDING, STATE], 100, 50, 2, (6 + 2 * 4) + 2 * 5 + 2 * 3, id="the groups add up"),
        pytest.param([FULL], 0, 0, 3, 0, id="nothing costs nothing"),
    ],
)
def test_prompt_cost(groups: list[LayerGroup], prompt: int, output: int, copies: int, expected: int) -> None:
    assert Tariff(tuple(groups)).prompt(prompt, output, copies) == expected
