"""What a client may not say to the engine, and what this program says in its place."""

import json
from itertools import pairwise

import pytest

from identities import head
from kvquota_sidecar.estimate.edit import edited
from kvquota_sidecar.estimate.salt import derived_salt, engine_salt
from kvquota_sidecar.estimate.steering import HIGHEST_PRIORITY, WITHOUT_STEERING, engine_priority
from kvquota_sidecar.proxy.forwarding import engine_request

KEY = b"key of the pool"
LATEST = 2**20 - 1
FIRST = engine_priority(protected=True, tenant_priority=HIGHEST_PRIORITY)

ORDER = [
    {"protected": True, "tenant_priority": 1000},
    {"protected": True, "tenant_priority": 1000, "asked": b"1"},
    {"protected": True, "tenant_priority": 1000, "asked": b"999999999999"},
    {"protected": True, "tenant_priority": 999},
    {"protected": True, "tenant_priority": 0, "asked": b"9223372036854775807"},
    {"protected": False, "tenant_priority": 1000},
    {"protected": False, "tenant_priority": 1000, "asked": b"5"},
    {"protected": False, "tenant_priority": 999},
    {"protected": False, "tenant_priority": 0},
    {"protected": False, "tenant_priority": 0, "asked": b"1000"},
]


def test_what_is_guaranteed_comes_first_then_the_tenants_priority_then_the_clients_wish():
    numbers = [engine_priority(**each) for each in ORDER]
    assert all(earlier < later for earlier, later in pairwise(numbers))
    assert (numbers[0], numbers[-1] < 2**63) == (0, True)


PUT_BACK = {
    "nothing": (b"", 0),
    "none": (b"null", 0),
    "zero": (b"0", 0),
    "one": (b"1", 1),
    "the last step": (b"1048575", LATEST),
    "beyond the last step": (b"1048576", LATEST),
    "a larger number of as many digits": (b"9999999", LATEST),
    "a number of 64 bits": (b"9223372036854775807", LATEST),
    "a number without end": (b"1" * 100_000, LATEST),
    "earlier": (b"-1", 0),
    "much earlier": (b"-9223372036854775808", 0),
    "a fraction": (b"1.5", 0),
    "an exponent": (b"1e3", 0),
    "text": (b'"5"', 0),
    "a word": (b"true", 0),
    "a list": (b"[5]", 0),
}


@pytest.mark.parametrize(("asked", "steps"), PUT_BACK.values(), ids=PUT_BACK)
def test_a_client_can_only_make_its_request_later(asked, steps):
    assert engine_priority(protected=True, tenant_priority=HIGHEST_PRIORITY, asked=asked) == FIRST + steps


def test_what_a_client_says_of_engine_fields_is_taken_out():
    body = (
        b'{"model": "m", "priority": -5, "vllm_xargs": {"kvq_tenant": "a"}, "cache_salt": "x", "session_id": "s",'
        b' "stream_interval": 100000, "request_id": "r", "rid": "r", "data_parallel_rank": 1, "routed_dp_rank": 1,'
        b' "data_parallel_rank_decode": 1, "disagg_prefill_dp_rank": 1, "extra_key": "k"}'
    )
    assert json.loads(edited(body, json.loads(body).keys(), dict(WITHOUT_STEERING))) == {"model": "m"}


def test_where_tenants_are_kept_apart_every_request_has_a_salt():
    salts = {engine_salt(KEY, "Tenant", tenant, salt) for tenant in ("a", "b") for salt in ("", "x", "a", "b")}
    assert (len(salts), None in salts) == (8, False)
    assert engine_salt(KEY, "Tenant", "a") == derived_salt(KEY, "a")


def test_where_the_cache_is_shared_a_client_may_still_keep_to_itself_and_never_gets_at_another():
    assert engine_salt(KEY, "Shared", "a") is None
    own = {engine_salt(KEY, "Shared", tenant, salt) for tenant in ("a", "b") for salt in ("x", "y")}
    assert len(own) == 4
    guessed = str(engine_salt(KEY, "Shared", "a", "x"))
    assert engine_salt(KEY, "Shared", "b", guessed) not in own


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, [], id="nothing is said where nothing is given"),
        pytest.param({"rank": 0}, ["x-data-parallel-rank: 0"], id="the first rank"),
        pytest.param({"priority": 7}, ["x-vllm-priority: 7"], id="a priority"),
        pytest.param({"rank": 3, "priority": 0}, ["x-data-parallel-rank: 3", "x-vllm-priority: 0"], id="both"),
    ],
)
def test_rank_and_priority_are_this_programs_alone(given, expected):
    request = head(
        b"X-Data-Parallel-Rank: 9", b"x_data_parallel_rank: 9", b"X-Vllm-Priority: -9", b"x_vllm-priority: 1"
    )
    lines = engine_request(request, b"", b"engine", "id", frozenset(), **given).decode().split("\r\n")
    assert [line for line in lines if line.startswith("x") and "request" not in line] == expected


def test_a_head_that_comes_again_is_sent_anew_for_every_request():
    request = head(b"Authorization: Bearer k", b"X-Mine: 1")
    first = engine_request(request, b"a", b"engine", "id-1", frozenset(), rank=1)
    second = engine_request(request, b"bc", b"engine", "id-2", frozenset({b"authorization"}))
    third = engine_request(request, b"bc", b"engine", "id-2", frozenset({b"authorization"}))
    start = b"POST /v1/completions HTTP/1.1\r\nhost: engine\r\n"
    assert first == (
        start + b"authorization: Bearer k\r\nx-mine: 1\r\nx-request-id: id-1\r\nx-data-parallel-rank: 1\r\n"
        b"content-length: 1\r\n\r\na"
    )
    assert second == third == start + b"x-mine: 1\r\nx-request-id: id-2\r\ncontent-length: 2\r\n\r\nbc"
