"""What a tenant asks for on one pod."""

import pytest

from kvquota_api.amounts import Blocks
from kvquota_operator.planning.demand import Demand

LONGEST = Blocks(100)


@pytest.mark.parametrize(
    ("demand", "blocks", "sequences"),
    [
        pytest.param(Demand(Blocks(300), 6), 0, 0, id="what found room asks for nothing"),
        pytest.param(Demand(Blocks(300), 6, refused_blocks=4), 500, 0, id="a refusal counts as the mean of what runs"),
        pytest.param(Demand(Blocks(7), 3, refused_blocks=2), 13, 0, id="the mean is rounded up"),
        pytest.param(Demand(refused_blocks=2), 200, 0, id="and as the longest request where nothing runs"),
        pytest.param(Demand(Blocks(0), 2, refused_blocks=1), 100, 0, id="or where what runs holds nothing"),
        pytest.param(Demand(Blocks(300), 6, refused_sequences=4), 0, 10, id="sequences are asked for by themselves"),
    ],
)
def test_what_is_asked_for(demand: Demand, blocks: int, sequences: int) -> None:
    assert (demand.asks_blocks(LONGEST), demand.asks_sequences()) == (blocks, sequences)


@pytest.mark.parametrize(
    ("demand", "is_refused", "is_idle"),
    [
        pytest.param(Demand(), False, True, id="nothing at all"),
        pytest.param(Demand(Blocks(1)), False, False, id="blocks are held"),
        pytest.param(Demand(sequences=1), False, False, id="a sequence runs"),
        pytest.param(Demand(admitted=1), False, False, id="one was let in lately"),
        pytest.param(Demand(refused_blocks=1), True, False, id="one was refused for want of blocks"),
        pytest.param(Demand(refused_sequences=1), True, False, id="one was refused for want of sequences"),
    ],
)
def test_whether_anybody_asks(demand: Demand, is_refused: bool, is_idle: bool) -> None:
    assert (demand.is_refused, demand.is_idle) == (is_refused, is_idle)
