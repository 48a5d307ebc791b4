"""Whatever a client sends and is refused for, the report that says so is read, and holds next to nothing of it."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from bookkeeping import open_books, share
from kvquota_api import usage
from kvquota_api.quoting import MAX_QUOTED
from kvquota_sidecar.estimate.shape import ROUTES, read_shape
from kvquota_sidecar.ledger.books import Books
from kvquota_sidecar.refusals import Code, Refusal, refuse

TENANT = "inference/search"
LONG = st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=3), st.integers(1, 20_000))
KIND = st.builds(lambda kind: {"type": kind}, LONG)
BODIES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(lambda tool: {"messages": [], "tools": [tool]}, KIND),
    st.builds(lambda part: {"messages": [{"role": "user", "content": [part]}]}, KIND),
    st.builds(lambda item: {"messages": [{"role": "user", **item}]}, KIND),
    st.builds(lambda name: {"messages": [{"role": "user", "content": [{"type": "text", "text": {name: 1}}]}]}, LONG),
    st.builds(lambda name: {"messages": [], "max_tokens": name}, LONG),
    st.builds(lambda name: {"messages": [], "tools": {name: 1}}, LONG),
)


def report_of(books: Books) -> bytes:
    return usage.encode(
        usage.UsageReport(
            epoch="e",
            sequence=1,
            started_at=0.0,
            in_force=usage.InForce(),
            engine=usage.EngineUsage(),
            tenants=books.tenant_usage(1.0, 1.0),
        )
    )


def reported(refusal: Refusal) -> usage.Refusal:
    """The refusal of one request, as the operator reads it."""
    books = open_books(share())
    books.count_refusal(TENANT, refusal, 0.0)
    last = usage.decode_report(report_of(books)).tenants[0].last_refusal
    assert last is not None
    return last


@given(st.sampled_from(sorted(ROUTES)), BODIES)
def test_a_report_is_read_whatever_was_refused(route: str, body: dict[str, Any]) -> None:
    told = read_shape(route, json.dumps(body).encode())
    assume(isinstance(told, Refusal))
    assert isinstance(told, Refusal)
    assert len(told.message) <= 1024
    assert len(told.param or "") <= 2 * MAX_QUOTED
    assert reported(told).message == told.message


@given(LONG)
def test_a_key_that_is_named_twice_is_not_quoted_at_length(name: str) -> None:
    key = json.dumps(name)
    told = read_shape("/v1/completions", f'{{"prompt":"x",{key}:1,{key}:2}}'.encode())
    assert isinstance(told, Refusal)
    assert len(told.message) <= 1024
    assert len(told.param or "") <= 2 * MAX_QUOTED
    assert reported(told).message == told.message


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600"])
def test_a_message_of_any_length_is_cut_for_the_report(letter: str) -> None:
    message = letter * 5000
    assert reported(refuse(Code.MALFORMED_REQUEST, message)).message == message[:1024]
