"""Figures as engines print them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvquota_api.memory.startup_log.figures import Count, Ratio, Size, count, ratio, size

SIZES = {
    "GB is GiB": ("14.9888", "GB", Size(16_094_101_452, 53_688, 3)),
    "a zero at the end was dropped": ("13.1", "GiB", Size(14_066_017_894, 5_368_710, 3)),
    "MiB": ("1024.00", "MiB", Size(2**30, 5_243, 3)),
    "KiB": ("448.00", "KiB", Size(448 * 1024, 6, 3)),
    "TiB": ("1.00", "TiB", Size(2**40, 5_497_558_139, 3)),
    "thousands": ("1,024.00", "MiB", Size(2**30, 5_243, 3)),
    "negative": ("-0.50", "GiB", Size(-(2**29), 5_368_710, 3)),
    "a whole unit was cut, not rounded": ("14978", "MiB", Size(14978 * 2**20, 2**20, 3)),
    "bytes are exact": ("0", "bytes", Size(0, 0, 3)),
    "B are exact": ("512", "B", Size(512, 0, 3)),
}


@pytest.mark.parametrize(("number", "unit", "expected"), SIZES.values(), ids=SIZES)
def test_a_size_keeps_how_far_it_was_rounded(number: str, unit: str, expected: Size) -> None:
    assert size(number, unit, 3) == expected


def test_a_count_has_thousands_separators() -> None:
    assert count("1,234,567", 9) == Count(1_234_567, 9)


def test_a_ratio_keeps_its_decimals() -> None:
    assert (ratio("7.11", 2), ratio("0.9000", 2), ratio("5", 2)) == (
        Ratio(Fraction(711, 100), Fraction(1, 200), 2),
        Ratio(Fraction(9, 10), Fraction(1, 20_000), 2),
        Ratio(Fraction(5), Fraction(1), 2),
    )
