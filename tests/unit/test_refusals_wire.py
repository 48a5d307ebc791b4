"""How refusals are told: the table, the error objects, the final events, the headers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.memory.worth import Worth
from kvquota_sidecar.refusals import Code, Refusal, refuse
from kvquota_sidecar.refusals.codes import TABLE
from kvquota_sidecar.refusals.headers import admitted_fields, allowance_of, refused_fields
from kvquota_sidecar.refusals.room import Room
from kvquota_sidecar.refusals.wire import body, final_event

WANTED = {
    "tenant_concurrency_exceeded": (429, True),
    "tenant_kv_quota_exceeded": (429, True),
    "kv_pool_contended": (429, True),
    "kv_pool_exhausted": (503, True),
    "kv_evicted": (503, True),
    "receiving_too_much": (503, True),
    "starting": (503, True),
    "draining": (503, True),
    "not_configured": (503, True),
    "request_exceeds_kv_quota": (400, False),
    "context_length_exceeded": (400, False),
    "unknown_tenant": (401, False),
    "ambiguous_identity": (400, False),
    "route_not_allowed": (404, False),
    "not_supported_under_quota": (400, False),
    "malformed_request": (400, False),
    "request_timeout": (408, False),
    "request_too_large": (413, False),
    "unsupported_encoding": (415, False),
    "expectation_failed": (417, False),
    "headers_too_large": (431, False),
    "engine_error": (502, True),
    "engine_timeout": (504, True),
}
ADVICE = ("Send", "Retry", "Wait", "Shorten", "Leave", "Use", "Correct")
WORTH = Worth((LayerGroup("Full", 16),), Tokens(32_768))
ROOM = Room(
    allowance_of(Blocks(15), Blocks(40), WORTH, 3),
    reserved=Blocks(10),
    in_flight=2,
    rung="Shed",
    pressure_percent=86.0,
)


def test_every_code_has_its_status_and_whether_a_retry_helps() -> None:
    assert {code.value: (entry.status, entry.retryable) for code, entry in TABLE.items()} == WANTED
    assert set(TABLE) == set(Code)


@pytest.mark.parametrize("code", list(Code))
def test_every_message_says_what_to_do(code: Code) -> None:
    assert any(word in TABLE[code].message for word in ADVICE)


@pytest.mark.parametrize(
    ("code", "asked", "expected"),
    [
        pytest.param(Code.DRAINING, 7.5, 7.5, id="as asked"),
        pytest.param(Code.DRAINING, 0.0, 1.0, id="at least a second"),
        pytest.param(Code.DRAINING, 3600.0, 60.0, id="at most a minute"),
        pytest.param(Code.UNKNOWN_TENANT, 7.5, None, id="none where no retry helps"),
    ],
)
def test_retry_after(code: Code, asked: float, expected: float | None) -> None:
    assert refuse(code, retry_after=asked).retry_after == expected


def test_a_refusal_takes_the_tables_message_or_its_own() -> None:
    assert refuse(Code.DRAINING).message == TABLE[Code.DRAINING].message
    assert refuse(Code.DRAINING, "Own.") == Refusal(Code.DRAINING, 503, "Own.", 1.0, True)


@pytest.mark.parametrize(
    ("refusal", "route", "expected"),
    [
        pytest.param(
            refuse(Code.TENANT_KV_QUOTA_EXCEEDED, "Full."),
            "/v1/chat/completions",
            {
                "error": {
                    "message": "Full.",
                    "type": "rate_limit_error",
                    "param": None,
                    "code": "tenant_kv_quota_exceeded",
                }
            },
            id="OpenAI's error object",
        ),
        pytest.param(
            refuse(Code.MALFORMED_REQUEST, "Bad.", param="n"),
            "/v1/responses",
            {"error": {"message": "Bad.", "type": "invalid_request_error", "param": "n", "code": "malformed_request"}},
            id="with the field that is to blame",
        ),
        pytest.param(
            refuse(Code.KV_POOL_EXHAUSTED, "Full."),
            "/v1/messages",
            {"type": "error", "error": {"type": "overloaded_error", "message": "Full.", "code": "kv_pool_exhausted"}},
            id="Anthropic's error object",
        ),
        pytest.param(
            refuse(Code.UNKNOWN_TENANT, "Who?"),
            "/v1/messages",
            {"type": "error", "error": {"type": "authentication_error", "message": "Who?", "code": "unknown_tenant"}},
            id="Anthropic's, for good",
        ),
    ],
)
def test_bodies(refusal: Refusal, route: str, expected: dict[str, Any]) -> None:
    assert json.loads(body(refusal, route)) == expected


@pytest.mark.parametrize(
    ("route", "name", "expected"),
    [
        pytest.param(
            "/v1/chat/completions",
            b"",
            {"error": {"message": "Gone.", "type": "server_error", "param": None, "code": "kv_evicted",
                       "retryable": True, "retry_after_ms": 2500}},
            id="OpenAI's",
        ),
        pytest.param(
            "/v1/responses",
            b"event: error\n",
            {"error": {"message": "Gone.", "type": "server_error", "param": None, "code": "kv_evicted",
                       "retryable": True, "retry_after_ms": 2500}},
            id="of a stream with names",
        ),
        pytest.param(
            "/v1/messages",
            b"event: error\n",
            {"type": "error", "error": {"type": "overloaded_error", "message": "Gone.", "code": "kv_evicted",
                                        "retryable": True, "retry_after_ms": 2500}},
            id="Anthropic's",
        ),
    ],
)  # fmt: skip
def test_final_events(route: str, name: bytes, expected: dict[str, Any]) -> None:
    event = final_event(refuse(Code.KV_EVICTED, "Gone.", retry_after=2.5), route)
    assert event.startswith(name + b"data: ")
    assert event.endswith(b"}\n\n")
    assert json.loads(event.removeprefix(name + b"data: ")) == expected


def test_a_final_event_for_good_names_no_time_and_no_event_ends_a_stream_well() -> None:
    event = final_event(refuse(Code.REQUEST_EXCEEDS_KV_QUOTA, "Two\nlines."), "/v1/chat/completions")
    assert json.loads(event.removeprefix(b"data: "))["error"]["retryable"] is False
    assert b"retry_after_ms" not in event
    assert b"[DONE]" not in event
    assert event.count(b"\n") == 2


ROOM_HEADERS = {
    "ratelimit-policy": '"kv";q=640;qu="kv-tokens", "concurrency";q=3;qu="concurrent-requests"',
    "ratelimit": '"kv";r=480, "concurrency";r=1',
    "x-kvquota-used-tokens": "160",
    "x-kvquota-soft-tokens": "240",
    "x-kvquota-hard-tokens": "640",
    "x-kvquota-in-flight": "2",
    "x-kvquota-rung": "Shed",
}


def told(fields: bytes) -> dict[str, str]:
    """Header lines by name, each of which ends as lines do."""
    lines = fields.decode().split("\r\n")
    assert lines.pop() == ""
    return dict(line.split(": ", 1) for line in lines)


def test_an_admitted_answer_carries_the_room() -> None:
    assert told(admitted_fields(ROOM)) == ROOM_HEADERS


def test_nothing_is_told_of_nobody() -> None:
    assert admitted_fields(None) == b""
    assert told(refused_fields(refuse(Code.UNKNOWN_TENANT), None)) == {
        "x-kvquota-code": "unknown_tenant",
        "x-should-retry": "false",
        "www-authenticate": "Bearer",
    }


def test_a_refusal_that_can_be_retried_says_when_and_carries_the_room() -> None:
    assert told(refused_fields(refuse(Code.KV_POOL_CONTENDED, retry_after=2.3), ROOM)) == {
        **ROOM_HEADERS,
        "x-kvquota-code": "kv_pool_contended",
        "x-should-retry": "true",
        "retry-after": "3",
        "retry-after-ms": "2300",
        "ratelimit": '"kv";r=480;t=3, "concurrency";r=1;t=3',
    }


def test_a_refusal_for_good_has_no_retry_after() -> None:
    fields = refused_fields(refuse(Code.CONTEXT_LENGTH_EXCEEDED), ROOM)
    assert set(told(fields)) == {*ROOM_HEADERS, "x-kvquota-code", "x-should-retry"}


def test_without_a_limit_of_concurrency_only_kv_is_told() -> None:
    room = Room(allowance_of(Blocks(0), Blocks(40), WORTH, None), Blocks(50), 9, "Normal", 50.0)
    headers = told(admitted_fields(room))
    assert headers["ratelimit-policy"] == '"kv";q=640;qu="kv-tokens"'
    assert headers["ratelimit"] == '"kv";r=0'
