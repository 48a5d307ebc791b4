"""The sync request and the usage report."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import get_args

import msgspec
import pytest

from kvquota_api.pod_config import DocumentError
from kvquota_api.usage import (
    LONGEST_WORD,
    MAX_ACCOUNTS,
    MAX_BLOCK_TOKENS,
    MAX_BLOCKS,
    MAX_CODES,
    Counts,
    EngineUsage,
    InForce,
    PoolUsage,
    Refusal,
    Rejected,
    Rung,
    SyncRequest,
    TenantUsage,
    UsageReport,
    decode_report,
    decode_request,
    encode,
)
from kvquota_sidecar.refusals import Code

REPORT = UsageReport(
    epoch="e-1",
    sequence=7,
    started_at=1.5,
    in_force=InForce(generation=3, config_digest="c", identity_digest="i", source="Channel"),
    rejected=Rejected(generation=4, reason="Invalid", message="kv: missing"),
    engine=EngineUsage(
        state="Ready", blocks=18432, block_tokens=16, used_blocks=3, running=1, waiting=0, age_seconds=0.5
    ),
    pool=PoolUsage(
        usable=18431, free=-5, reserved=500, used=250, unattributed=0, pressure_percent=100.02, rung="Evict"
    ),
    tenants=(
        TenantUsage(
            id="inference/search",
            reserved=500,
            used=250,
            over_soft=0,
            in_flight=3,
            total=Counts(admitted=5, rejected={"tenant_kv_quota_exceeded": 2}),
            recent=Counts(evicted=1),
            last_refusal=Refusal(code="tenant_kv_quota_exceeded", message="shorten the input", at=1.5),
        ),
    ),
)


def test_a_report_is_read_as_it_was_written() -> None:
    assert decode_report(encode(REPORT)) == REPORT


def test_a_report_of_a_sidecar_that_knows_nothing_yet_is_read() -> None:
    empty = UsageReport(epoch="e-1", sequence=0, started_at=0.0, in_force=InForce(), engine=EngineUsage())

    assert decode_report(encode(empty)) == empty
    assert json.loads(encode(empty))["engine"]["blocks"] is None


def test_a_report_of_a_later_sidecar_is_read_as_far_as_known() -> None:
    assert decode_report(json.dumps({**json.loads(encode(REPORT)), "invented": 1}).encode()) == REPORT


def test_a_request_without_news_carries_the_digests_only() -> None:
    request = SyncRequest(config_digest="c", identity_digest="i")

    assert encode(request) == b'{"configDigest":"c","identityDigest":"i"}'
    assert decode_request(encode(request)) == request
    assert not decode_request(encode(request)).config


def test_a_request_carries_a_document_as_it_is() -> None:
    request = SyncRequest(config_digest="c", identity_digest="i", config=msgspec.Raw(b'{"broken": [1,  2]}'))

    read = decode_request(encode(request))

    assert bytes(read.config) == b'{"broken": [1,  2]}'
    assert not read.identity


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(b"{", "not a valid SyncRequest: Input data was truncated", id="half a request"),
        pytest.param(b"{}", "not a valid SyncRequest: Object missing required field `configDigest`", id="no digest"),
        pytest.param(b'"\xff"', "not a valid SyncRequest", id="no text"),
    ],
)
def test_refuses_a_request_and_names_the_field(data: bytes, says: str) -> None:
    with pytest.raises(DocumentError, match=says):
        decode_request(data)


def test_refuses_a_report_and_names_the_field() -> None:
    negative = json.dumps({**json.loads(encode(REPORT)), "sequence": -1}).encode()

    with pytest.raises(DocumentError, match=r"not a valid UsageReport: Expected `int` >= 0 - at `\$.sequence`"):
        decode_report(negative)


def altered(path: str, value: object) -> bytes:
    """The report with one field of it another; `path` with dots, a list's place as a number."""
    document = json.loads(encode(REPORT))
    *way, last = path.split(".")
    found = document
    for step in way:
        found = found[int(step)] if isinstance(found, list) else found[step]
    found[last] = value
    return json.dumps(document).encode()


def tenants(count: int) -> list[object]:
    return [json.loads(encode(REPORT))["tenants"][0]] * count


def table(count: int) -> dict[str, int]:
    return {f"code_{place}": 1 for place in range(count)}


_BOUNDS = [
    pytest.param("tenants", tenants, MAX_ACCOUNTS, id="tenants"),
    pytest.param("tenants.0.total.rejected", table, MAX_CODES, id="codes of refusals"),
    pytest.param("tenants.0.recent.wouldReject", table, MAX_CODES, id="codes of what would be refused"),
    pytest.param("tenants.0.recent.degraded", table, MAX_CODES, id="rungs"),
    pytest.param(
        "tenants.0.recent.rejected", lambda n: {"c" * n: 1}, LONGEST_WORD, id="characters of a code in a table"
    ),
    pytest.param("tenants.0.lastRefusal.code", "c".__mul__, LONGEST_WORD, id="characters of a code"),
    pytest.param("tenants.0.lastRefusal.message", "m".__mul__, 1024, id="characters of a refusal"),
    pytest.param("tenants.0.id", "t".__mul__, 253, id="characters of a tenant"),
    pytest.param("rejected.reason", "R".__mul__, LONGEST_WORD, id="characters of a reason"),
    pytest.param("inForce.configDigest", "d".__mul__, 64, id="characters of a config's digest"),
    pytest.param("inForce.identityDigest", "d".__mul__, 64, id="characters of an identity's digest"),
    pytest.param("epoch", "e".__mul__, 253, id="characters of an epoch"),
    pytest.param("engine.blocks", int, MAX_BLOCKS, id="blocks of an engine"),
    pytest.param("engine.blockTokens", int, MAX_BLOCK_TOKENS, id="tokens of a block"),
    pytest.param("pool.free", int, 2**63 - 1, id="blocks that are free"),
]


@pytest.mark.parametrize(("path", "of", "most"), _BOUNDS)
def test_a_report_is_bounded_in_everything(path: str, of: Callable[[int], object], most: int) -> None:
    assert decode_report(altered(path, of(most)))
    with pytest.raises(DocumentError, match=r"not a valid UsageReport: Expected .* <= \d+"):
        decode_report(altered(path, of(most + 1)))


def test_every_code_and_rung_fits_its_table() -> None:
    words = [*Code, *get_args(Rung)]
    assert max(map(len, words)) <= LONGEST_WORD
    assert len(words) <= MAX_CODES


_READ_BY_A_SIDECAR = ("kvquota_api.usage", "kvquota_api.pod_config", "kvquota_api.amounts", "kvquota_api.meta")


@pytest.mark.parametrize("module", _READ_BY_A_SIDECAR)
def test_a_sidecar_reads_its_documents_without_pydantic(module: str) -> None:
    """It is started in every pod, and its start is waited for."""
    program = f"import sys, {module}; sys.exit('pydantic' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
