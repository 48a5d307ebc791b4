"""Two versions side by side: whatever a later writer adds and an earlier one omits, a config means what it says."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract_versions import signed
from kvquota_api.pod_config import (
    MAX_UNKNOWN,
    DocumentError,
    PodConfig,
    TenantShare,
    decode_config,
    encode,
    known_part,
    sealed,
    unknown_fields,
)

OURS = decode_config((Path(__file__).parents[1] / "data" / "versions" / "0.1.0" / "config.json").read_bytes())
DEFAULTS = {
    field.encode_name: msgspec.to_builtins(field.default)
    for field in msgspec.structs.fields(TenantShare)
    if not field.required
}

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=6,
)
names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=9).map(lambda each: f"new-{each}")


def objects(value: Any, path: str = "config") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of a document and where it stands."""
    if isinstance(value, dict):
        yield path, value
        for name, inside in value.items():
            yield from objects(inside, f"{path}.{name}")
    if isinstance(value, list):
        for inside in value:
            yield from objects(inside, f"{path}[]")


@st.composite
def later(draw: st.DrawFn) -> tuple[bytes, set[str]]:
    """A config with fields of a later version, and where they are."""
    document = json.loads(encode(OURS))
    added: set[str] = set()
    for path, place in draw(st.lists(st.sampled_from(list(objects(document))), min_size=1, max_size=6)):
        name = draw(names)
        place[name] = draw(values)
        added.add(f"{path}.{name}")
    return signed(document), added


@given(later())
def test_what_is_known_of_a_later_config_is_in_force_and_what_is_new_is_named(given_: tuple[bytes, set[str]]) -> None:
    data, added = given_
    config = decode_config(data)

    assert known_part(config) == msgspec.structs.replace(OURS, digest=config.digest)
    assert unknown_fields(config) == tuple(sorted(added)[:MAX_UNKNOWN])
    assert encode(config) == data
    assert decode_config(encode(sealed(known_part(config)))) == OURS


@given(later(), st.data())
def test_a_later_config_that_was_edited_is_refused(given_: tuple[bytes, set[str]], data: st.DataObject) -> None:
    document = json.loads(given_[0])
    _, place = data.draw(st.sampled_from(list(objects(document))))
    place["new-by-hand"] = 1
    with pytest.raises(DocumentError, match="digest"):
        decode_config(json.dumps(document))


@given(st.sets(st.sampled_from(sorted(DEFAULTS))))
def test_what_an_earlier_writer_left_out_has_its_default(missing: set[str]) -> None:
    document = json.loads(encode(OURS))
    for tenant in document["tenants"]:
        for name in missing:
            del tenant[name]

    read = decode_config(signed(document))

    filled = [
        {**tenant, **{name: DEFAULTS[name] for name in missing}} for tenant in json.loads(encode(OURS))["tenants"]
    ]
    assert msgspec.to_builtins(read.tenants) == tuple(filled)
    assert isinstance(read, PodConfig)
    assert (encode(read), unknown_fields(read)) == (signed(document), ())
