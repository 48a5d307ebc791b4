"""The pool and the quotas of examples/, decided as a whole: the numbers of the worked example."""

from dataclasses import replace

import reconcile_builders as make
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import (
    KvPlan,
    Ladder,
    PodConfig,
    PodRef,
    PoolRef,
    TenantShare,
    Threshold,
    decode_config,
    encode,
    key_digest,
    sealed,
)
from kvquota_api.usage import Counts, Refusal

SEARCH = TenantShare(
    id="inference/search",
    quota="search",
    priority=100,
    soft_blocks=7_372,
    hard_blocks=11_058,
    max_concurrent_requests=32,
    max_context_tokens=32_768,
    whole_hard_blocks=11_058,
    whole_concurrent_requests=32,
)
BATCH = TenantShare(
    id="inference/batch",
    quota="batch",
    priority=10,
    soft_blocks=1_250,
    hard_blocks=4_096,
    max_concurrent_requests=8,
    max_context_tokens=8_192,
)


def test_the_config_of_one_pod():
    (config,) = make.decided().configs
    assert config == sealed(
        PodConfig(
            generation=1,
            digest="",
            pod=PodRef(namespace="inference", name="llama-8b-0", uid="uid-llama-8b-0"),
            pool=PoolRef(namespace="inference", name="llama-8b"),
            model="llama-3.1-8b-instruct",
            engine_type="vLLM",
            kv=KvPlan(
                cap_blocks=18_432,
                null_blocks=1,
                block_tokens=16,
                bytes_per_block=2 * 2**20,
                max_model_len=32_768,
                groups=(LayerGroup(kind="Full", block_tokens=16),),
                batch_tokens=8_192,
                shares_prefixes=True,
            ),
            ladder=Ladder(
                guarantee_reserve_percent=20,
                eviction_wait_seconds=2.0,
                min_dwell_seconds=10.0,
                shed=Threshold(enter_percent=85, exit_percent=80),
                evict=Threshold(enter_percent=92, exit_percent=86),
            ),
            tenants=(BATCH, SEARCH),
            anonymous_tenant="",
            api_key_header="Authorization",
            authorization="Forward",
            enforcement="Enforce",
            plan=make.plan_hash(make.pool()),
        )
    )


def test_the_config_is_one_that_a_sidecar_accepts():
    (config,) = make.decided().configs
    assert decode_config(encode(config)) == config


def test_the_identity_has_digests_of_the_keys():
    keys = make.example_keys()
    expected = {
        key_digest(make.PEPPER, keys["search-api-key", "key"].value): "inference/search",
        key_digest(make.PEPPER, keys["batch-api-key", "key"].value): "inference/batch",
    }
    wanted = make.decided().secret
    assert (wanted.token, wanted.pepper, wanted.identity.pepper) == (make.TOKEN, make.PEPPER, make.PEPPER)
    assert wanted.identity.api_keys == expected
    assert sealed(wanted.identity) == wanted.identity


def test_two_pods_share_a_pool_limit_of_both_and_each_has_the_soft():
    pods = (make.pod("llama-8b-0"), make.pod("llama-8b-1"))
    reports = make.reported(make.report()) | make.reported(make.report(), name="llama-8b-1")
    first, second = make.decided(pods=pods, reports=reports).configs
    assert (make.softs(first), make.softs(second)) == ({"batch": 1_250, "search": 7_372},) * 2
    assert (make.hards(first), make.hards(second)) == (
        {"batch": 4_096, "search": 11_059},
        {"batch": 4_096, "search": 11_058},
    )
    assert [config.tenants[1].max_concurrent_requests for config in (first, second)] == [16, 16]


MOMENT = "2026-11-01T12:00:00Z"
SEARCH_STATUS = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "InForce",
            "message": "the quota is in force on every governed pod of its pool",
            "lastTransitionTime": MOMENT,
            "observedGeneration": 1,
        },
        {
            "type": "QuotaWithinCapacity",
            "status": "True",
            "reason": "WithinCapacity",
            "message": "soft and hard are given as they are stated",
            "lastTransitionTime": MOMENT,
            "observedGeneration": 1,
        },
        {
            "type": "UsageObserved",
            "status": "True",
            "reason": "Reported",
            "message": "every governed pod of the pool reports",
            "lastTransitionTime": MOMENT,
            "observedGeneration": 1,
        },
        {
            "type": "GuaranteeKept",
            "status": "True",
            "reason": "Kept",
            "message": "every request inside soft found room in the last ten minutes",
            "lastTransitionTime": MOMENT,
            "observedGeneration": 1,
        },
        {
            "type": "Degraded",
            "status": "False",
            "reason": "NotDegraded",
            "message": "nothing was ended or answered with less in the last ten minutes",
            "lastTransitionTime": MOMENT,
            "observedGeneration": 1,
        },
    ],
    "state": "Refusing",
    "priority": 100,
    "soft": {"blocks": 7_372, "tokens": 117_952},
    "hard": {"blocks": 11_058, "tokens": 176_928},
    "planHash": make.plan_hash(make.pool()),
    "reserved": {"blocks": 11_000, "tokens": 176_000},
    "used": {"blocks": 9_000, "tokens": 144_000},
    "overSoft": {"blocks": 4_000, "tokens": 64_000},
    "inFlight": 22,
    "recent": {
        "admitted": 40,
        "rejectedTotal": 2,
        "rejected": {"tenant_kv_quota_exceeded": 2},
        "evicted": 0,
    },
    "prefixHitRatePercent": 33,
    "lastRefusal": {
        "code": "tenant_kv_quota_exceeded",
        "message": "would pass hard",
        "time": MOMENT,
    },
}


def test_the_status_of_a_quota_in_use():
    recent = Counts(
        admitted=40, rejected={"tenant_kv_quota_exceeded": 2}, degraded={}, prompt_tokens=900, cached_tokens=300
    )
    refusal = Refusal(code="tenant_kv_quota_exceeded", message="would pass hard", at=1_793_534_400.75)
    usage = make.tenant_usage(
        "search", reserved=11_000, used=9_000, over_soft=4_000, in_flight=22, recent=recent, refusal=refusal
    )
    plan = make.decided(reports=make.reported(make.report(usage)))
    assert plan.quota_statuses["search"] == SEARCH_STATUS


REST_OF_POOL_STATUS = {
    "observedGeneration": 3,
    "state": "Shed",
    "kv": {
        "bytesPerToken": 131_072,
        "blockTokens": 16,
        "bytesPerBlock": 2_097_152,
        "cap": {"blocks": 18_432, "tokens": 294_912},
        "measured": {"blocks": 18_432, "tokens": 294_912},
        "reserved": {"blocks": 4_000, "tokens": 64_000},
        "used": {"blocks": 3_500, "tokens": 56_000},
        "unattributed": {"blocks": 10, "tokens": 160},
        "accounting": "Estimated",
    },
    "pressurePercent": 22,
    "rung": "Shed",
    "recent": {"admitted": 9, "rejectedTotal": 0, "evicted": 1},
    "capacity": [
        {"contextTokens": 1_024, "requests": 287},
        {"contextTokens": 8_192, "requests": 35},
        {"contextTokens": 32_768, "requests": 8},
    ],
    "pods": {"expected": 1, "reporting": 1, "stale": 0, "summary": "1/1"},
    "advice": [
        {
            "reason": "QuantiseKvCache",
            "message": "quantise the KV cache (spec.model.kvCacheDtype: fp8): 65,536 B per token instead of 131,072"
            " B, then 17 requests of 32,768 tokens fit into 36 GiB of KV cache",
        }
    ],
}


def test_the_status_of_a_pool_in_use():
    usage = make.tenant_usage("batch", reserved=4_000, used=3_500, recent=Counts(admitted=9, evicted=1))
    engine = make.pool_usage(reserved=4_000, used=3_500, unattributed=10, pressure_percent=21.7, rung="Shed")
    status = make.decided(reports=make.reported(make.report(usage, pool=engine))).pool_status
    plan_hash = status.pop("planHash")
    conditions = status.pop("conditions")
    assert (plan_hash, {each["type"]: each["status"] for each in conditions}) == (
        make.plan_hash(make.pool()),
        {
            "PlanValid": "True",
            "PartitionApplied": "True",
            "PodsGoverned": "True",
            "TrafficGoverned": "Unknown",
            "UsageObserved": "True",
            "GuaranteeKept": "True",
            "QuotaReviewed": "True",
            "Degraded": "True",
        },
    )
    planned = status.pop("memory")["planned"]
    assert (planned["kvPool"], planned["activation"], planned["safetyMargin"], set(planned)) == (
        "36Gi",
        "6Gi",
        "6553Mi",
        {"weights", "activation", "kvPool", "other", "safetyMargin"},
    )
    assert status == REST_OF_POOL_STATUS


def test_a_quota_that_is_edited_changes_the_config_and_its_generation():
    before = make.observed()
    first = make.reconcile(before, make.NOW, make.WALL)
    stored = make.carried_out(before, first)
    edited = make.seen(
        make.quota("search", age=0, kv={"hard": {"percent": 50}}, identity=make.key_of("search-api-key"))
    )
    (config,) = make.reconcile(replace(stored, quotas=(*edited, stored.quotas[1])), make.NOW, make.WALL).configs
    assert (config.generation, make.hards(config)) == (2, {"batch": 4_096, "search": 9_215})
