"""A card as a bar of characters."""

from typing import Any

import pytest

from kvquota_cli.planning.bar import end_of_card, widths
from kvquota_cli.planning.drawing import BLOCKS, LETTERS
from kvquota_cli.planning.showing import glyphs_of_output


@pytest.mark.parametrize(
    ("sizes", "columns", "expected"),
    [
        pytest.param((50, 30, 20), 10, (5, 3, 2), id="parts that divide the bar"),
        pytest.param((1, 1, 1), 10, (4, 3, 3), id="what is over goes to the first of the largest rests"),
        pytest.param((9990, 5, 5), 10, (8, 1, 1), id="a part that is too small to be seen is seen"),
        pytest.param((10, 0, 10), 5, (3, 0, 2), id="a part that is not there is not drawn"),
        pytest.param((0, 0), 10, (0, 0), id="nothing"),
        pytest.param((5, 5, 5), 2, (0, 1, 1), id="fewer characters than parts"),
    ],
)
def test_a_bar_is_as_wide_as_asked(sizes: tuple[int, ...], columns: int, expected: tuple[int, ...]) -> None:
    assert widths(sizes, columns) == expected


def test_the_end_of_a_card_is_marked_where_more_was_planned() -> None:
    assert end_of_card(80, 80, 100) is None
    assert end_of_card(80, 100, 100) == 80


@pytest.mark.parametrize(("encoding", "glyphs"), [("utf-8", BLOCKS), ("ascii", LETTERS), ("latin-1", LETTERS)])
def test_where_blocks_cannot_be_shown_letters_are(encoding: str, glyphs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Output:
        def __init__(self) -> None:
            self.encoding = encoding

    monkeypatch.setattr("sys.stdout", Output())
    assert glyphs_of_output() == glyphs
