"""Where top-level fields stand, and what two parsers could read in two ways."""

from __future__ import annotations

import pytest

from kvquota_sidecar.estimate.edit import Field, Fields, fields_of
from kvquota_sidecar.estimate.scan import (
    MAX_BRACKETS,
    MAX_DEPTH,
    ScanError,
    is_shallow,
    is_token_ids,
    is_token_lists,
    scan,
)


def values(text: bytes) -> dict[str, bytes]:
    scan(text)
    return {name: text[field.value : field.end] for name, field in fields_of(text).by_name.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(b"{}", {}, id="an empty object"),
        pytest.param(b" { } ", {}, id="an empty object between blanks"),
        pytest.param(b'{"a":1}', {"a": b"1"}, id="one field"),
        pytest.param(
            b'{"a" :\t1 ,\n"b": "x, \\"y\\": {" }', {"a": b"1", "b": b'"x, \\"y\\": {"'}, id="blanks and quotes"
        ),
        pytest.param(b'{"a":{"b":[1,{"a":2}]},"c":[]}', {"a": b'{"b":[1,{"a":2}]}', "c": b"[]"}, id="nested values"),
        pytest.param(b'{"\\u0061":true,"b":null}', {"a": b"true", "b": b"null"}, id="a key with escapes"),
        pytest.param(b'{"":0,"\xc3\xa4":-1e5}', {"": b"0", "ä": b"-1e5"}, id="an empty key and one beyond ASCII"),
        pytest.param(b'{"a":["b","c:","d"],"e":"f"}', {"a": b'["b","c:","d"]', "e": b'"f"'}, id="strings in a list"),
        pytest.param(b'{"a":"\\\\","b":"\\\\\\""}', {"a": b'"\\\\"', "b": b'"\\\\\\""'}, id="ends of strings"),
    ],
)
def test_the_values_of_the_top_level_fields(text: bytes, expected: dict[str, bytes]) -> None:
    assert values(text) == expected


def test_the_offsets_of_a_field() -> None:
    assert fields_of(b' {"a": 1 , "b":2 }') == Fields({"a": Field(2, 7, 8), "b": Field(11, 15, 16)}, close=17)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        pytest.param(b'{"a":1,"a":2}', "a", id="at the top"),
        pytest.param(b'{"a":1,"\\u0061":2}', "a", id="once written with escapes"),
        pytest.param(b'{"x":[{"y":{"a":1,"b":2,"a":3}}]}', "a", id="deep inside"),
        pytest.param(b'{"a":{},"b":{},"a":{}}', "a", id="with objects between"),
    ],
)
def test_a_key_that_is_named_twice_is_found(text: bytes, key: str) -> None:
    with pytest.raises(ScanError, match=f"names '{key}' twice") as error:
        scan(text)
    assert error.value.key == key


def test_the_same_key_in_two_objects_is_fine() -> None:
    assert list(values(b'{"a":{"a":[{"a":1},{"a":2}]},"b":{"a":3}}')) == ["a", "b"]


def test_nesting_is_bounded() -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)

    scan(nested(MAX_DEPTH))
    with pytest.raises(ScanError, match=f"more than {MAX_DEPTH} levels") as error:
        scan(nested(MAX_DEPTH + 1))
    assert error.value.key == ""


@pytest.mark.parametrize("text", [b'"[[{{"', b"[1,2]", b'{"a":[],"b":{}}'], ids=["brackets in a text", "a list", "two"])
def test_levels_are_counted_without_a_look_at_each_bracket(text: bytes) -> None:
    def nested(depth: int) -> bytes:
        return b"[" + b"[{}]," * MAX_DEPTH + b'[{"a":' * depth + text + b"}]" * depth + b"]"

    deepest = (MAX_DEPTH - 1 - (text[:1] in b"[{") - (b"[]" in text)) // 2
    assert [is_shallow(nested(deepest)), is_shallow(nested(deepest + 1))] == [True, False]


@pytest.mark.parametrize(
    ("text", "is_ids", "is_lists"),
    [
        pytest.param(b"[1, 23\n,4]", True, True, id="token ids"),
        pytest.param(b"[[1,2],[3],[]]", False, True, id="lists of them"),
        pytest.param(b"[]", False, True, id="nothing"),
        pytest.param(b"[1,-2]", False, False, id="a number below 0"),
        pytest.param(b"[1.5]", False, False, id="half a number"),
        pytest.param(b'["1"]', False, False, id="a text"),
        pytest.param(b'"[1]"', False, False, id="a text of it"),
        pytest.param(b"12", False, False, id="one number"),
        pytest.param(b"[" + b"[]," * MAX_BRACKETS + b"[]]", False, False, id="more lists than are taken"),
    ],
)
def test_what_is_a_list_of_token_ids(text: bytes, is_ids: bool, is_lists: bool) -> None:
    assert (is_token_ids(text), is_token_lists(text)) == (is_ids, is_lists)


def test_lists_count_as_levels() -> None:
    with pytest.raises(ScanError, match="levels deep"):
        scan(b'{"a":' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b"}")


def test_a_name_in_an_error_is_short() -> None:
    name = b"n" * 10_000
    with pytest.raises(ScanError) as error:
        scan(b'{"%s":1,"%s":2}' % (name, name))
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b'{"a":1}' + b" " * 300_000, id="after the object"),
        pytest.param(b" " * 300_000 + b'{"a":1}', id="before it"),
        pytest.param(b'{"a"' + b" " * 300_000 + b":1}", id="before a colon"),
        pytest.param(b'{"a":' + b" " * 300_000 + b"1}", id="before a value"),
        pytest.param(b'{"a":1' + b" " * 300_000 + b"}", id="after a value"),
        pytest.param(b'{"a":1' + b" " * 300_000 + b',"b":2}', id="between fields"),
        pytest.param(b'{"a":["' + b'","' * 15_000 + b'"],"b":[' + b"1," * 15_000 + b'"x"]}', id="or long lists"),
    ],
)
def test_blanks_without_end_do_not_hold_it_up(text: bytes) -> None:
    """Each would take hours if a byte were looked at once for each byte before it."""
    assert values(text)["a"] in {b"1", b'["' + b'","' * 15_000 + b'"]'}
