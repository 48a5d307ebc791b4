"""How amounts are read, written and added."""

import pytest

from contract_amounts import AS_KUBERNETES
from kvquota_api.amounts import (
    UNLIMITED,
    AmountError,
    Blocks,
    Bytes,
    Hundredths,
    exact_quantity,
    format_bytes,
    format_quantity,
    minus,
    parse_percent,
    parse_quantity,
    percent_of,
    plus,
)


@pytest.mark.parametrize(("text", "size"), [pytest.param(text, size, id=text) for text, size in AS_KUBERNETES])
def test_reads_a_quantity_as_kubernetes_does(text: str, size: int) -> None:
    assert parse_quantity(text) == size


@pytest.mark.parametrize(
    ("low", "high"),
    [
        pytest.param("0.1", "0.9", id="parts of a byte"),
        pytest.param("1n", "1.5n", id="billionths, where more is rounded up"),
        pytest.param("1", "1.0000000001", id="less than a billionth more"),
        pytest.param("100E", "1000E", id="decimal suffixes beyond 63 bits"),
        pytest.param("9223372036854775807", "9223372036854775808", id="digits beyond 63 bits"),
    ],
)
def test_tells_apart_what_kubernetes_tells_apart(low: str, high: str) -> None:
    assert exact_quantity(low) < exact_quantity(high)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("0.5n", "1n", id="less than a billionth of a byte"),
        pytest.param("1.0000000001", "1.0000000002", id="a difference below a billionth"),
        pytest.param("9Ei", "10Ei", id="binary suffixes beyond 63 bits"),
        pytest.param("8Gi", "8589934592", id="two ways to write one size"),
    ],
)
def test_takes_for_the_same_what_kubernetes_takes_for_the_same(one: str, other: str) -> None:
    assert exact_quantity(one) == exact_quantity(other)


def test_reads_a_number_of_bytes() -> None:
    assert parse_quantity(1024) == 1024


def test_more_than_63_bits_is_unlimited() -> None:
    assert parse_quantity("1e99") == UNLIMITED


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(value, id=repr(value)[:40])
        for value in ("", " ", ".", "+", "-5", "5 ", " 5", "8Gi\n", "1K", "1ki", "0x10", "1_0", "80GiB", "1.5e3Gi",
                      "1e", "1e100", "1.2.3", "٣", "9" * 33, -1, True, None)
    ],
)  # fmt: skip
def test_refuses_what_is_no_quantity(value: object) -> None:
    with pytest.raises(AmountError, match="is not a quantity of bytes: write"):
        parse_quantity(value)  # type: ignore[arg-type]  # a value of a wrong type is the point


@pytest.mark.parametrize(
    ("value", "hundredths"),
    [
        pytest.param(0, 0, id="nothing"),
        pytest.param(100, 10_000, id="the whole"),
        pytest.param("100.00", 10_000, id="the whole with decimals"),
        pytest.param("2.5", 250, id="one decimal"),
        pytest.param(2.5, 250, id="a float that a program passes"),
        pytest.param("0.07", 7, id="two decimals, where a float would lose"),
        pytest.param("04", 400, id="a leading zero"),
    ],
)
def test_reads_a_percent_exactly(value: int | float | str, hundredths: int) -> None:
    assert parse_percent(value) == hundredths


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(value, id=repr(value))
        for value in (-1, 101, "100.01", "100.001", "2.505", "2,5", "5%", "", ".5", "5.", "1e1", "40\n", True, None)
    ],
)
def test_refuses_what_is_no_percent(value: object) -> None:
    with pytest.raises(AmountError, match="is not a percent: write a number from 0 to 100 with at most two decimals"):
        parse_percent(value)  # type: ignore[arg-type]  # a value of a wrong type is the point


@pytest.mark.parametrize(
    ("left", "right", "added", "taken"),
    [
        pytest.param(5, 3, 8, 2, id="plain"),
        pytest.param(3, 5, 8, 0, id="a difference never falls below nothing"),
        pytest.param(UNLIMITED - 1, 5, UNLIMITED, UNLIMITED - 6, id="a sum never passes unlimited"),
        pytest.param(UNLIMITED, 5, UNLIMITED, UNLIMITED, id="unlimited stays unlimited"),
        pytest.param(5, UNLIMITED, UNLIMITED, 0, id="unlimited takes all"),
        pytest.param(UNLIMITED, UNLIMITED, UNLIMITED, UNLIMITED, id="unlimited without unlimited is unlimited"),
    ],
)
def test_sums_and_differences_saturate(left: int, right: int, added: int, taken: int) -> None:
    assert (plus(Blocks(left), Blocks(right)), minus(Blocks(left), Blocks(right))) == (added, taken)


def test_a_sum_of_nothing_is_nothing_and_of_many_saturates() -> None:
    assert (plus(), plus(Blocks(1), Blocks(2), Blocks(3)), plus(*[Blocks(2**62)] * 3)) == (0, 6, UNLIMITED)


def test_a_percent_of_blocks_is_rounded_down() -> None:
    assert percent_of(Blocks(18_431), Hundredths(4_000)) == 7_372


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1024, "1 KiB"),
        (2 * 2**20, "2 MiB"),
        (36 * 2**30, "36 GiB"),
        (16_060_522_496, "14.96 GiB"),
        (3 * 2**40, "3 TiB"),
        (-(2**30), "-1 GiB"),
    ],
)
def test_a_size_is_written_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0"), (1000, "1000"), (1024, "1Ki"), (1536 * 2**20, "1536Mi"), (36 * 2**30, "36Gi"), (2**60, "1Ei")],
)
def test_a_quantity_is_written_without_loss(size: int, text: str) -> None:
    assert format_quantity(Bytes(size)) == text
