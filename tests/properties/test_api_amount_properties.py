"""Amounts: exact, monotonic, and never more than there is."""

import math
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from kvquota_api.amounts import (
    UNLIMITED,
    WHOLE,
    AmountError,
    Blocks,
    Bytes,
    Hundredths,
    exact_quantity,
    format_quantity,
    minus,
    parse_percent,
    parse_quantity,
    percent_of,
    plus,
)

RELAXED = settings(deadline=None)
"""No time limit: a busy machine is not a defect."""

blocks = st.integers(0, UNLIMITED).map(Blocks)
hundredths = st.integers(0, WHOLE).map(Hundredths)
SCALES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@RELAXED
@given(st.integers(0, UNLIMITED))
def test_a_written_quantity_is_read_again(size: int) -> None:
    assert parse_quantity(format_quantity(Bytes(size))) == size
    assert parse_quantity(str(size)) == parse_quantity(size) == size


@RELAXED
@given(st.integers(0, 10**6), st.integers(0, 999_999), st.sampled_from(sorted(SCALES)))
def test_a_quantity_is_the_least_whole_number_of_bytes_that_holds_it(whole: int, millionths: int, suffix: str) -> None:
    exact = (whole + Fraction(millionths, 10**6)) * SCALES[suffix]

    read = parse_quantity(f"{whole}.{millionths:06d}{suffix}")

    assert read - 1 < exact <= read


@RELAXED
@given(st.one_of(st.text(max_size=40), st.from_regex(r"[+-]?[0-9.]{0,6}[eEKMGTkmi+-]{0,3}[0-9]{0,3}", fullmatch=True)))
def test_a_quantity_is_read_or_refused(text: str) -> None:
    try:
        size = parse_quantity(text)
    except AmountError:
        return
    assert 0 <= size <= UNLIMITED


@RELAXED
@given(hundredths)
def test_every_hundredth_of_a_percent_is_read_exactly(value: Hundredths) -> None:
    whole, rest = divmod(value, 100)

    assert parse_percent(f"{whole}.{rest:02d}") == value
    if rest % 10 == 0:
        assert parse_percent(f"{whole}.{rest // 10}") == value
    if rest == 0:
        assert parse_percent(whole) == parse_percent(str(whole)) == value


@RELAXED
@given(st.one_of(st.text(max_size=8), st.from_regex(r"[0-9.]{0,6}", fullmatch=True), st.integers(), st.floats()))
def test_a_percent_is_read_or_refused(value: int | float | str) -> None:
    try:
        read = parse_percent(value)
    except AmountError:
        return
    assert 0 <= read <= WHOLE


@RELAXED
@given(st.integers(0, 2**40).map(Blocks), st.lists(st.integers(0, WHOLE), min_size=1, max_size=50))
def test_parts_of_at_most_100_percent_never_pass_the_pool(pool: Blocks, weights: list[int]) -> None:
    total = max(1, sum(weights))
    percents = [Hundredths(weight * WHOLE // total) for weight in weights]

    assert sum(percents) <= WHOLE
    assert sum(percent_of(pool, percent) for percent in percents) <= pool


def told_back(part: Blocks, pool: Blocks) -> Hundredths:
    """The least percent of the pool that is at least this part."""
    return Hundredths(-(-part * WHOLE // pool))


@RELAXED
@given(st.integers(WHOLE, 2**40).map(Blocks), hundredths)
def test_a_percent_of_a_pool_can_be_told_back_from_its_blocks(pool: Blocks, percent: Hundredths) -> None:
    assert told_back(percent_of(pool, percent), pool) == percent


@RELAXED
@given(st.integers(1, 2**40).map(Blocks), hundredths)
def test_the_blocks_of_a_percent_are_the_blocks_of_the_percent_told_back(pool: Blocks, percent: Hundredths) -> None:
    part = percent_of(pool, percent)

    assert percent_of(pool, told_back(part, pool)) == part


@RELAXED
@given(st.lists(st.integers(0, 2**30).map(Blocks), max_size=20), hundredths)
def test_a_percent_of_every_part_is_never_more_than_of_the_whole(pods: list[Blocks], percent: Hundredths) -> None:
    whole, parts = percent_of(Blocks(sum(pods)), percent), [percent_of(pod, percent) for pod in pods]

    assert 0 <= whole - sum(parts) <= len(pods)


quantities = st.builds(
    lambda number, suffix: f"{number}{suffix}",
    st.from_regex(r"[0-9]{1,12}(\.[0-9]{0,10})?", fullmatch=True),
    st.sampled_from(["", *"numkMGTPE", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E-3"]),
)


@RELAXED
@given(quantities, quantities)
def test_quantities_are_in_the_order_of_their_bytes(one: str, other: str) -> None:
    low, high = sorted((one, other), key=exact_quantity)

    assert parse_quantity(low) <= parse_quantity(high)
    assert parse_quantity(low) == min(UNLIMITED, math.ceil(exact_quantity(low)))


@RELAXED
@given(st.integers(0, 2**40).map(Blocks), hundredths, hundredths)
def test_more_percent_is_never_fewer_blocks(pool: Blocks, one: Hundredths, other: Hundredths) -> None:
    low, high = sorted((one, other))

    assert percent_of(pool, low) <= percent_of(pool, high) <= percent_of(pool, WHOLE) == pool


@RELAXED
@given(blocks, blocks, blocks)
def test_sums_do_not_depend_on_the_order(a: Blocks, b: Blocks, c: Blocks) -> None:
    assert plus(a, b) == plus(b, a)
    assert plus(plus(a, b), c) == plus(a, plus(b, c))


@RELAXED
@given(blocks, blocks)
def test_sums_and_differences_stay_in_range(a: Blocks, b: Blocks) -> None:
    assert max(a, b) <= plus(a, b) <= UNLIMITED
    assert 0 <= minus(a, b) <= max(a, 0)


@RELAXED
@given(st.integers(0, 2**40).map(Blocks), st.integers(0, 2**40).map(Blocks))
def test_what_was_added_can_be_taken(a: Blocks, b: Blocks) -> None:
    assert minus(plus(a, b), b) == a
