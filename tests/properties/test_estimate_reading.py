"""Bodies that could be read in two ways: the fast look at a text finds what a slow look at each key finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import example, given

from kvquota_sidecar.estimate import reading
from kvquota_sidecar.estimate.reading import read_object
from kvquota_sidecar.estimate.scan import MAX_DEPTH, ScanError, scan

BLANK = st.text(alphabet=" \t\r\n", max_size=2)
# Quotes and backslashes, written plainly or as escapes, are what could make up for a key that a parser drops.
LETTERS = st.text(alphabet='ab"\\\u00e4/\n0', max_size=4)
NAMES = st.text(alphabet='ab"', max_size=2)


@st.composite
def quoted(draw: st.DrawFn, text: str) -> str:
    return '"' + "".join(draw(st.sampled_from(_ways(letter))) for letter in text) + '"'


def _ways(letter: str) -> list[str]:
    return [json.dumps(letter, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)] + [
        f"\\u{ord(letter):04x}"
    ]


@st.composite
def fields(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    """An object that may name a key twice."""
    pairs = draw(st.lists(st.tuples(NAMES, inner), max_size=4))
    texts = [f"{draw(BLANK)}{draw(quoted(name))}{draw(BLANK)}:{draw(BLANK)}{value}" for name, value in pairs]
    return "{" + ",".join(texts) + draw(BLANK) + "}"


@st.composite
def listed(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    return "[" + ",".join(draw(st.lists(inner, max_size=3))) + "]"


SCALARS = st.sampled_from(["null", "true", "-1.50", "1e3", "12345678901234567890123"]) | LETTERS.flatmap(quoted)
VALUES = st.recursive(SCALARS, lambda inner: fields(inner) | listed(inner), max_leaves=8)
DEEP = st.integers(MAX_DEPTH - 6, MAX_DEPTH + 6).flatmap(
    lambda depth: st.sampled_from(
        [
            '{"a":' * depth + "1" + "}" * depth,
            '{"a":' + "[" * depth + "]" * depth + "}",
            '{"a":' + '[{"b":1},[' * (depth // 2) + "]]" * (depth // 2) + "}",
        ]
    )
)


def fault(read: Callable[[bytes], object], text: bytes) -> str:
    """What is wrong with a text by one of its readers, "" where nothing is."""
    try:
        read(text)
    except ScanError as error:
        return str(error)
    return ""


def read_as_long(text: bytes) -> dict[str, Any]:
    """What is read where every text counts as long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "SMALL", 0)
        return read_object(text)


@given(fields(VALUES) | DEEP)
@example(r'{"a":"\u0022\u0022","b":1,"b":2}')
@example(r'{"\u0022\"":1,"b":1,"b":2}')
@example('{"a":1,"a":1}')
@example('{"a":[{"b":"","b":""}],"c":"\\"\\""}')
@example('{"a":' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}")
def test_a_short_text_is_refused_where_a_key_is_named_twice_or_it_is_too_deep(text: str) -> None:
    assert fault(read_object, text.encode()) == fault(scan, text.encode())


@given(fields(VALUES) | DEEP)
@example('{"a":[[[[1]]]],"a":2}')
@example('{"a":"{","b":"{","b":1}')
@example('{"a":"{"}')
def test_and_so_is_a_long_one(text: str) -> None:
    assert fault(read_as_long, text.encode()) == fault(scan, text.encode())


@pytest.mark.interpreted
@given(fields(VALUES))
@example(r'{"a":"\u0022\u0022","b":1,"b":2}')
@example(r'{"\u0022\"":1,"b":1}')
def test_where_there_is_too_much_to_look_at_each_key_a_second_one_is_found_too(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "FEW", -1)
        found = fault(read_object, text.encode()), fault(read_as_long, text.encode())
    expected = "an object names a key twice" if fault(scan, text.encode()) else ""
    assert found == (expected, expected)


@given(fields(VALUES))
def test_what_is_accepted_is_read_as_any_parser_reads_it(text: str) -> None:
    raw = text.encode()
    if fault(scan, raw):
        return

    def plain(value: Any) -> Any:
        return json.loads(bytes(value)) if type(value) is msgspec.Raw else value

    long = {name: plain(value) for name, value in read_as_long(raw).items()}
    assert long == read_object(raw) == json.loads(text)
