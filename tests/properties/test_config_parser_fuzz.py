"""Whatever document the sidecar is sent: it is taken whole, and means the same when written again, or is refused."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookkeeping import config, share
from kvquota_api import usage
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import (
    ConfigOfAnotherVersion,
    DocumentError,
    JwtIssuer,
    KvPlan,
    MediaCost,
    PodConfig,
    PoolIdentity,
    TrustedPeer,
    content_digest,
    decode_config,
    decode_identity,
    encode,
    sealed,
)
from kvquota_api.usage import EngineUsage, InForce, SyncRequest, UsageReport, decode_report, decode_request

TENANT = "inference/a"
CONFIG = sealed(
    config(
        share("a", hard_blocks=9, max_context_tokens=99),
        share("b", priority=9, soft_blocks=8),
        generation=3,
        kv=KvPlan(
            cap_blocks=1024,
            null_blocks=1,
            block_tokens=16,
            bytes_per_block=2**21,
            max_model_len=4096,
            groups=(LayerGroup("Full", 16), LayerGroup("Sliding", 16, window_tokens=128)),
            ranks=2,
            batch_tokens=2048,
        ),
        anonymous_tenant=TENANT,
        media=MediaCost(image_tokens=100),
    )
)
IDENTITY = sealed(
    PoolIdentity(
        digest="",
        pepper="ab" * 32,
        api_keys={"0" * 64: TENANT},
        jwt=JwtIssuer(
            issuer="https://i", audience="kv", tenant_claim="team", namespace="inference", keys='{"keys":[]}'
        ),
        trusted_peer=TrustedPeer(name="x-tenant", secret="1" * 64, tenants={"a": TENANT}),
    )
)
REQUEST = SyncRequest(config_digest=CONFIG.digest, identity_digest=IDENTITY.digest, config=msgspec.Raw(encode(CONFIG)))
REPORT = UsageReport(epoch="e", sequence=1, started_at=1.5, in_force=InForce(), engine=EngineUsage(state="Ready"))

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, -0.5, 1e308, 2**31, 2**63 - 1, 2**63, -(2**70), 10**400]),
    st.text(max_size=5),
    st.sampled_from(["", "0" * 64, "x" * 254, "\x00", "\ud800", TENANT, "vLLM", "Enforce", "NaN"]),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """The document with one to three of its values changed, lost, doubled or put where others belong."""
    whole = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        place = whole
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], (dict, list)) and place[key] and draw(st.integers(0, 3)):
                place = place[key]
                continue
            _change(draw, place, key)
            break
    return whole


def _change(draw: st.DrawFn, place: Any, key: Any) -> None:
    what = draw(st.sampled_from(["put", "lose", "double", "add"]))
    if what == "put":
        place[key] = draw(ANYTHING)
    elif what == "lose":
        del place[key]
    elif isinstance(place, list):
        place.append(place[key] if what == "double" else draw(ANYTHING))
    else:
        place[draw(st.text(max_size=5))] = place[key] if what == "double" else draw(ANYTHING)


@st.composite
def torn(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with a few of them changed, lost, doubled, or cut off."""
    for _ in range(draw(st.integers(1, 3))):
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
        end = min(end, start + draw(st.integers(0, 6)))
        data = data[:start] + draw(st.one_of(st.binary(max_size=4), st.just(data[start:end] * 2))) + data[end:]
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 4)) == 0 else data


def as_json(document: Any) -> bytes:
    """Also what JSON has no right way to write."""
    return json.dumps(document).encode("utf-8", "surrogatepass")


def resealed(document: Any) -> bytes:
    """With the digest that its writer would have put in, as far as it can be told without knowing the shape."""
    if isinstance(document, dict):
        content = {name: value for name, value in document.items() if name not in ("generation", "digest")}
        try:
            canonical = msgspec.json.encode(content, order="deterministic")
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError):
            canonical = b""
        document = document | {"digest": hashlib.sha256(canonical).hexdigest()}
    return as_json(document)


def refused(decode: Callable[[bytes], object], data: bytes) -> object | None:
    """What it decodes to; None where it was refused, with a sentence."""
    try:
        return decode(data)
    except DocumentError as error:
        sentence = str(error)
    assert 0 < len(sentence) < 100_000
    return None


# Config


@given(st.one_of(mutated(msgspec.to_builtins(CONFIG)).map(resealed), torn(encode(CONFIG)), st.binary(max_size=40)))
def test_a_config_is_taken_whole_or_refused_in_words(data: bytes) -> None:
    taken = refused(decode_config, data)
    if taken is not None:
        assert isinstance(taken, PodConfig)
        assert isinstance(taken, ConfigOfAnotherVersion) or content_digest(taken) == taken.digest
        assert decode_config(encode(taken)) == taken
        assert taken.kv.cap_blocks > taken.kv.null_blocks


@given(st.data())
def test_a_config_of_other_values_that_is_sealed_by_its_writer_is_read_as_it_was_written(data: st.DataObject) -> None:
    document = data.draw(mutated(msgspec.to_builtins(CONFIG)))
    try:
        written = sealed(msgspec.convert(document, PodConfig))
    except (msgspec.ValidationError, DocumentError, UnicodeEncodeError):  # the last: half a character
        return
    taken = refused(decode_config, encode(written))
    assert taken is None or taken == written


# Identity


@given(st.one_of(mutated(msgspec.to_builtins(IDENTITY)).map(resealed), torn(encode(IDENTITY)), st.binary(max_size=40)))
def test_an_identity_is_taken_whole_or_refused_in_words(data: bytes) -> None:
    identity = refused(decode_identity, data)
    if identity is not None:
        assert isinstance(identity, PoolIdentity)
        assert decode_identity(encode(identity)) == identity


# The channel


@given(
    st.one_of(
        mutated(json.loads(usage.encode(REQUEST))).map(as_json), torn(usage.encode(REQUEST)), st.binary(max_size=40)
    )
)
def test_a_sync_is_taken_or_refused_in_words_and_so_is_the_config_in_it(data: bytes) -> None:
    request = refused(decode_request, data)
    if isinstance(request, SyncRequest):
        assert decode_request(usage.encode(request)) == request
        refused(decode_config, bytes(request.config))


@given(
    st.one_of(
        mutated(json.loads(usage.encode(REPORT))).map(as_json), torn(usage.encode(REPORT)), st.binary(max_size=40)
    )
)
def test_a_report_is_taken_or_refused_in_words(data: bytes) -> None:
    report = refused(decode_report, data)
    if report is not None:
        assert isinstance(report, UsageReport)
        assert decode_report(usage.encode(report)) == report


@pytest.mark.parametrize("decode", [decode_config, decode_identity, decode_request, decode_report])
@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"x":' + b"[" * 100_000,
        b'{"config":' + b'{"a":' * 100_000,
        b'{"version":' + b"9" * 5000 + b"}",
    ],
    ids=["a deep list", "a deep field", "a deep config", "an endless number"],
)
def test_what_is_deeper_or_longer_than_can_be_read_is_refused(decode: Callable[[bytes], object], data: bytes) -> None:
    assert refused(decode, data) is None
