"""Changes in the text of a body: what is named changes, every other byte stays."""

from __future__ import annotations

import pytest

from kvquota_sidecar.estimate.edit import edited
from kvquota_sidecar.estimate.reading import read_object

BODY = b' {\n  "a" : 1,\n  "b":{"c": "x"} , "d":[ 1 ,2 ]\n}\n'


@pytest.mark.parametrize(
    ("body", "changes", "expected"),
    [
        pytest.param(BODY, {}, BODY, id="nothing to change"),
        pytest.param(BODY, {"b": b"7"}, b' {\n  "a" : 1,\n  "b":7 , "d":[ 1 ,2 ]\n}\n', id="set in place"),
        pytest.param(BODY, {"d": b"7"}, b' {\n  "a" : 1,\n  "b":{"c": "x"} , "d":7\n}\n', id="set the last"),
        pytest.param(BODY, {"a": None}, b' {\n  "b":{"c": "x"} , "d":[ 1 ,2 ]\n}\n', id="remove the first"),
        pytest.param(BODY, {"b": None}, b' {\n  "a" : 1,\n  "d":[ 1 ,2 ]\n}\n', id="remove one between"),
        pytest.param(BODY, {"d": None}, b' {\n  "a" : 1,\n  "b":{"c": "x"}\n}\n', id="remove the last"),
        pytest.param(BODY, {"b": None, "d": None}, b' {\n  "a" : 1\n}\n', id="remove the last two"),
        pytest.param(BODY, {"a": None, "b": None, "d": None}, b" {\n  \n}\n", id="remove all"),
        pytest.param(BODY, {"e": b'"y"'}, BODY[:-2] + b',"e":"y"}\n', id="add at the end"),
        pytest.param(BODY, {"z": None}, BODY, id="remove what is not there"),
        pytest.param(
            BODY, {"a": None, "b": None, "d": None, "e": b"1", "f": b"2"}, b' {\n  "e":1,"f":2\n}\n', id="replace all"
        ),
        pytest.param(b"{ }", {"e": b"1", "f": b"2"}, b'{ "e":1,"f":2}', id="add to an empty object"),
        pytest.param(b'{"\\u0061":1}', {"a": b"2"}, b'{"\\u0061":2}', id="a key with escapes keeps them"),
        pytest.param(b"{}", {'q"ä': b"1"}, '{"q\\"ä":1}'.encode(), id="a name that needs quoting"),
    ],
)
def test_edited(body: bytes, changes: dict[str, bytes | None], expected: bytes) -> None:
    assert edited(body, read_object(body).keys(), changes) == expected
