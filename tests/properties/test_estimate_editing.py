"""Edits of arbitrary bodies: the parsed result is the edited dictionary, and untouched bytes are untouched."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from kvquota_sidecar.estimate.edit import edited, fields_of

BLANK = st.text(alphabet=" \t\r\n", max_size=3)
NAMES = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def written(draw: st.DrawFn, content: dict[str, Any]) -> bytes:
    """The object as some client may write it: blanks anywhere, escapes or not."""

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))

    fields = [
        f"{draw(BLANK)}{text(name)}{draw(BLANK)}:{draw(BLANK)}{text(value)}{draw(BLANK)}"
        for name, value in content.items()
    ]
    return f"{draw(BLANK)}{{{','.join(fields)}{draw(BLANK)}}}{draw(BLANK)}".encode()


@given(st.data(), st.dictionaries(NAMES, VALUES, max_size=5), st.dictionaries(NAMES, st.none() | VALUES, max_size=3))
def test_edits_change_what_is_named_and_nothing_else(
    data: st.DataObject, content: dict[str, Any], wanted: dict[str, Any]
) -> None:
    for name in data.draw(st.lists(st.sampled_from([*content]), max_size=3)) if content else []:
        wanted[name] = data.draw(st.none() | VALUES)
    body = data.draw(written(content))
    changes = {name: None if value is None else json.dumps(value).encode() for name, value in wanted.items()}
    fields = fields_of(body)
    result = edited(body, content.keys(), changes)

    kept = {name: value for name, value in content.items() if name not in wanted}
    given_values = {name: value for name, value in wanted.items() if value is not None}
    assert json.loads(result) == {**kept, **given_values}
    assert [name for name in json.loads(result) if name in content] == [
        name for name in content if name not in wanted or name in given_values
    ]
    for name in kept:
        field = fields.by_name[name]
        assert body[field.key : field.end] in result
    if not changes.keys() & content.keys() and not given_values:
        assert result == body
    if changes.keys() <= content.keys() and None not in changes.values():
        assert _without(result, changes.keys()) == _without(body, changes.keys())


def _without(body: bytes, names: Any) -> list[bytes]:
    """The bytes around the values of `names`."""
    pieces, at = [], 0
    for name, field in fields_of(body).by_name.items():
        if name in names:
            pieces.append(body[at : field.value])
            at = field.end
    return [*pieces, body[at:]]


@given(st.data(), st.dictionaries(NAMES, VALUES, max_size=5))
def test_the_fields_that_are_found_are_the_values_of_the_object(data: st.DataObject, content: dict[str, Any]) -> None:
    body = data.draw(written(content))
    found = {name: json.loads(body[field.value : field.end]) for name, field in fields_of(body).by_name.items()}
    assert found == content
    assert list(found) == list(content)
