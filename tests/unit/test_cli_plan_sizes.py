"""Sizes and lengths on the command line of `kvquota plan`."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from kvquota_api.memory.inputs import LONGEST
from kvquota_cli.planning import sizes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("79.18GiB", 85_018_877_624, id="what a driver reports, without the fraction of a byte"),
        pytest.param("80Gi", 80 * 2**30, id="as Kubernetes writes it"),
        pytest.param("80G", 80 * 10**9, id="in powers of 1000, as Kubernetes does"),
        pytest.param("1.5 tib", 3 * 2**39, id="with a space and in small letters"),
        pytest.param("8589934592", 2**33, id="bytes"),
        pytest.param("512B", 512, id="bytes with their unit"),
        pytest.param("77.62999999999998GiB", 83_354_577_797, id="what a program prints of a fraction"),
    ],
)
def test_a_size_is_read(text: str, expected: int) -> None:
    assert sizes.size(text) == expected


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        pytest.param(
            sizes.size, "80GB", "'80GB': GB is a power of 1000 to some and of 1024 to others: write GiB", id="GB"
        ),
        pytest.param(
            sizes.size, "much", "'much' is no size of memory: write a number and a unit, as in 79.18GiB", id="a word"
        ),
        pytest.param(sizes.size, "-1GiB", "'-1GiB' is no size of memory: write a number", id="less than nothing"),
        pytest.param(sizes.size, "0", "'0' is not from 1 byte to 8192 TiB", id="nothing"),
        pytest.param(sizes.size, "9999999TiB", "'9999999TiB' is not from 1 byte to 8192 TiB", id="more than any card"),
        pytest.param(
            sizes.size, "79.18", "'79.18' has no unit: add it, as in 79.18GiB", id="a fraction that has lost its unit"
        ),
        pytest.param(
            sizes.memory,
            "80",
            "'80' has no unit, and is less than 1 MiB of bytes: add it, as in 80GiB",
            id="a lost unit",
        ),
        pytest.param(sizes.memory, "1048575", "'1048575' has no unit", id="a byte less than the least card"),
        pytest.param(sizes.fraction, "90", "'90' is not a part of the card above 0 and at most 1", id="a percent"),
        pytest.param(sizes.fraction, "0.0", "'0.0' is not a part of the card above 0", id="no part"),
        pytest.param(sizes.fraction, "1.01", "'1.01' is not a part of the card above 0", id="more than the card"),
        pytest.param(sizes.fraction, "", "'' is not a part of the card", id="an empty part"),
        pytest.param(sizes.count, "0", "'0' is not a whole number from 1 to 2,147,483,647", id="no GPU"),
        pytest.param(sizes.count, "1.5", "'1.5' is not a whole number from 1 to 2,147,483,647", id="half a GPU"),
        pytest.param(
            sizes.count_or_none, "-1", "'-1' is not a whole number from 0 to 2,147,483,647", id="fewer than none"
        ),
        pytest.param(
            sizes.count, "3000000000", "'3000000000' is not a whole number from 1 to 2,147,483,647", id="too many"
        ),
        pytest.param(
            sizes.length, "32k", "'32k' is read as thousands by some engines and as 1024s by others", id="32k tokens"
        ),
        pytest.param(
            sizes.length, "long", "'long' is not a whole number from 1 to 2,147,483,647", id="a length in words"
        ),
        pytest.param(sizes.contexts, "1k,8kb", "'8kb' is no length of a request: write tokens, with k", id="a unit"),
        pytest.param(sizes.contexts, "1k,,8k", "'' is no length of a request", id="a comma too many"),
        pytest.param(sizes.contexts, "1k,1024", "'1k,1024' has a length twice: keep one", id="a length twice"),
        pytest.param(
            sizes.contexts,
            ",".join(map(str, range(1, 34))),
            "33 lengths are more than the 32 that a table shows",
            id="too many lengths",
        ),
    ],
)
def test_what_cannot_be_read_or_has_two_meanings_is_refused(read: Callable[[str], Any], text: str, says: str) -> None:
    with pytest.raises(ArgumentTypeError) as raised:
        read(text)
    assert str(raised.value).startswith(says)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.9", Fraction(9, 10)), ("1", Fraction(1)), (".5", Fraction(1, 2)), ("0.8662", Fraction(8662, 10_000))],
)
def test_a_part_of_the_card_is_exact(text: str, expected: Fraction) -> None:
    assert sizes.fraction(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("131072", 131_072), ("auto", LONGEST), ("-1", LONGEST)])
def test_the_longest_request_is_tokens_or_what_fits(text: str, expected: int) -> None:
    assert sizes.length(text) == expected


def test_contexts_are_sorted_and_written_as_they_are_read() -> None:
    lengths = sizes.contexts("1m, 128K,8k,1000,1k")

    assert lengths == (1000, 1024, 8192, 131_072, 1_048_576)
    assert [sizes.short_length(each) for each in lengths] == ["1000", "1k", "8k", "128k", "1m"]


def test_a_card_or_a_cache_of_a_mebibyte_needs_no_unit() -> None:
    assert [sizes.memory(text) for text in ("1048576", "1KiB")] == [2**20, 2**10]
