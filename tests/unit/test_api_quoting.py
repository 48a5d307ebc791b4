"""What a message shows of a value that a user wrote."""

import pytest

from kvquota_api.quoting import MAX_QUOTED, quoted


def nested(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param("80GiB", "'80GiB'", id="a text"),
        pytest.param("\x1b[31mred\n", "'\\x1b[31mred\\n'", id="a text that would colour a terminal"),
        pytest.param("x" * 100, "'" + "x" * (MAX_QUOTED - 2) + "…", id="a long text"),
        pytest.param(10**5000, "a number of thousands of digits", id="a number that Python does not write"),
        pytest.param(nested(5000), "a value of thousands of levels", id="a value that Python does not write"),
    ],
)
def test_a_value_is_shown_so_that_it_fits_and_does_no_harm(value: object, shown: str) -> None:
    assert quoted(value) == shown
