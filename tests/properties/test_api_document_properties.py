"""Documents and conditions: what is written is read again, and what is damaged is refused whole."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvquota_api.conditions import Condition, set_condition
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import (
    DocumentError,
    KvPlan,
    Ladder,
    PodConfig,
    PodRef,
    PoolRef,
    TenantShare,
    Threshold,
    content_digest,
    decode_config,
    encode,
    sealed,
)
from kvquota_api.validation import InvalidObjectError, parse_model_pool, parse_tenant_quota, validate

RELAXED = settings(deadline=None)
"""No time limit: a busy machine is not a defect."""

names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12)
naturals = st.integers(0, 2**40)
positives = st.integers(1, 2**40)
rungs = st.tuples(st.integers(0, 99), st.integers(1, 100)).filter(lambda pair: pair[0] < pair[1])
thresholds = rungs.map(lambda pair: Threshold(exit_percent=pair[0], enter_percent=pair[1]))
shares = st.builds(
    TenantShare,
    id=names,
    quota=names,
    priority=st.integers(0, 1000),
    soft_blocks=naturals,
    hard_blocks=naturals,
    max_concurrent_requests=st.none() | positives,
    max_context_tokens=st.none() | positives,
    enforcement=st.sampled_from(["Enforce", "Shadow"]),
)
configs = st.builds(
    PodConfig,
    generation=positives,
    digest=st.just(""),
    pod=st.builds(PodRef, namespace=names, name=names, uid=names),
    pool=st.builds(PoolRef, namespace=names, name=names),
    model=names,
    engine_type=st.sampled_from(["vLLM", "SGLang"]),
    kv=st.builds(
        KvPlan,
        cap_blocks=st.integers(2, 2**40),
        null_blocks=st.integers(0, 1),
        block_tokens=positives,
        bytes_per_block=positives,
        max_model_len=positives,
        groups=st.just((LayerGroup(kind="Full", block_tokens=16),)),
    ),
    ladder=st.builds(
        Ladder,
        eviction_wait_seconds=st.one_of(st.integers(0, 60), st.floats(0, 60)),
        min_dwell_seconds=st.one_of(st.integers(0, 3600), st.floats(0, 3600)),
        shed=thresholds,
        evict=thresholds,
    ),
    tenants=st.lists(shares, max_size=4, unique_by=lambda share: share.id).map(tuple),
)


@RELAXED
@given(configs)
def test_a_sealed_config_is_read_as_it_is(config: PodConfig) -> None:
    written = sealed(config)

    read = decode_config(encode(written))

    assert read == written
    assert read.digest == content_digest(read) == content_digest(config)


@RELAXED
@given(configs, positives)
def test_two_generations_of_one_content_have_one_digest(config: PodConfig, generation: int) -> None:
    raw = {**json.loads(encode(sealed(config))), "generation": generation}

    assert decode_config(json.dumps(raw)).digest == sealed(config).digest


@RELAXED
@given(configs, st.data())
def test_a_damaged_config_is_refused_whole(config: PodConfig, data: st.DataObject) -> None:
    whole = encode(sealed(config))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DocumentError, match=r"^not a valid PodConfig: "):
        decode_config(whole[:cut])


@RELAXED
@given(st.binary(max_size=200))
def test_anything_else_is_refused_as_a_document(data: bytes) -> None:
    with pytest.raises(DocumentError, match=r"^not a valid PodConfig: "):
        decode_config(data)


TIMES = [datetime(2026, 11, day, tzinfo=UTC) for day in range(1, 29)]
changes = st.lists(
    st.tuples(st.sampled_from(["Ready", "Degraded"]), st.sampled_from(["True", "False", "Unknown"]), st.integers(1, 3)),
    max_size=len(TIMES),
)


@RELAXED
@given(changes)
def test_a_condition_says_since_when_its_status_holds(steps: list[tuple[str, Any, int]]) -> None:
    conditions: tuple[Condition, ...] = ()
    since: dict[str, tuple[str, datetime]] = {}
    for now, (kind, status, word) in zip(TIMES, steps, strict=False):
        wanted = Condition(type=kind, status=status, reason=f"Reason{word}", last_transition_time=now)
        conditions = set_condition(conditions, wanted)
        since[kind] = since[kind] if kind in since and since[kind][0] == status else (status, now)

    assert {each.type: (each.status, each.last_transition_time) for each in conditions} == since
    assert len(conditions) == len(since)


user_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(
                st.sampled_from(
                    ["spec", "metadata", "name", "tenant", "kv", "soft", "percent", "identity", "gpu", "tiers", "kind"]
                ),
                st.text(max_size=3),
                st.integers(),
            ),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=12,
)


@RELAXED
@given(user_values, st.sampled_from(["ModelPool", "TenantQuota"]))
def test_nothing_that_a_user_writes_raises_anything_else(value: Any, kind: str) -> None:
    raw = {"apiVersion": "kvquota.dev/v1alpha1", "metadata": {"name": "a"}, "spec": value, "kind": kind}

    assert validate(raw)
    for parse in (parse_model_pool, parse_tenant_quota):
        for each in (raw, value):
            with pytest.raises(InvalidObjectError):
                parse(each)
