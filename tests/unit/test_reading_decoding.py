"""JSON from an API server: one object that is too deep hides no other."""

import msgspec
import pytest

from kvquota_operator.reading.decoding import LEVELS, decode
from kvquota_operator.reading.objects import read_pool
from kvquota_operator.reconcile.observed import InvalidSeen


def nested(levels: int, opening: str = '{"a":', inside: str = "1", closing: str = "}") -> str:
    return opening * levels + inside + closing * levels


def depth(value: object) -> int:
    deepest = 0
    while isinstance(value, dict | list) and value:
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
        deepest += 1
    return deepest


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"a": [1, "x]}{[", null, {"b": "\\"}"}]}', id="an answer as usual"),
        pytest.param(nested(LEVELS + 50), id="deep, and within what Python reads"),
        pytest.param("7", id="a number"),
    ],
)
def test_what_python_reads_is_read_as_it_is(text: str) -> None:
    assert decode(text.encode()) == msgspec.json.decode(text)


@pytest.mark.parametrize("levels", [1_100, 9_990])
@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        pytest.param('{"a":', "}", id="objects"),
        pytest.param("[", "]", id="arrays"),
        pytest.param('[{"}\\"]": ', "}]", id="both, with brackets in strings"),
    ],
)
def test_what_is_too_deep_is_cut_and_the_others_are_whole(levels: int, opening: str, closing: str) -> None:
    deep = nested(levels, opening, '"in"', closing)
    first, found, last = decode(f'[{{"a": "}}"}}, {deep}, {{"b": ["\\\\"]}}]'.encode())
    assert (first, last) == ({"a": "}"}, {"b": ["\\"]})
    assert depth(found) == LEVELS - 2


@pytest.mark.parametrize("text", [b"", b"{", b'{"a": }', nested(1_100, inside="").encode()[:-3], b'"' + b"[" * 9_990])
def test_what_is_no_json_is_an_error(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(text)


def test_a_pool_that_was_cut_says_what_is_wrong_with_it() -> None:
    kind = '"apiVersion": "kvquota.dev/v1alpha1", "kind": "ModelPool"'
    text = f'{{{kind}, "metadata": {{"name": "p"}}, "spec": {{"model": {{"config": {{"inline": {nested(5_000)}}}}}}}}}'
    seen = read_pool(decode(text.encode())).pool
    assert isinstance(seen, InvalidSeen)
    assert seen.message == "is nested more than 64 levels deep: take out what is"
