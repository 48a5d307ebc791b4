"""The conditions of a TenantQuota, and the word for its column."""

import pytest

import reconcile_builders as make
from kvquota_api.usage import Counts
from kvquota_operator.reconcile.states import QUOTA_CODES, TOO_LONG
from kvquota_sidecar.refusals import Code


def status(**fields):
    return make.decided(**fields).quota_statuses["search"]


def condition(kind, **fields):
    return make.condition(status(**fields), kind)


def search(**spec):
    return make.seen(make.quota("search", **spec))


def usage(**fields):
    """Reports in which search is as `fields` say."""
    return make.reported(make.report(make.tenant_usage("search", **fields)))


TWO = {
    "quotas": make.seen(
        make.quota("search", kv={"soft": {"percent": 80}}), make.quota("batch", kv={"soft": {"percent": 40}})
    )
}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {"quotas": search()},
            ("True", "InForce", "the quota is in force on every governed pod of its pool"),
            id="in force",
        ),
        pytest.param(
            {"quotas": search(degradation={"allowSmallerModel": True})},
            (
                "True",
                "NotEnforcedYet",
                "the quota is in force on every governed pod of its pool; accepted and not enforced yet:"
                " spec.degradation.allowSmallerModel: no request is answered by less yet",
            ),
            id="in force, but for what is not built yet",
        ),
        pytest.param(
            {"pods": ()},
            (
                "True",
                "NoPods",
                "no governed pod of ModelPool llama-8b runs: the quota takes effect with the first",
            ),
            id="accepted, and waiting for a pod",
        ),
        pytest.param(
            {"quotas": search(enforcement="Shadow")},
            ("True", "Shadow", "the quota is counted and not enforced, since enforcement is Shadow"),
            id="its own shadow",
        ),
        pytest.param(
            {"pool": make.pool(enforcement="Shadow")},
            ("True", "Shadow", "the quota is counted and not enforced, since enforcement is Shadow"),
            id="the pool's shadow",
        ),
    ],
)
def test_ready(fields, expected):
    assert condition("Ready", **fields) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, ("True", "WithinCapacity", "soft and hard are given as they are stated"), id="as stated"),
        pytest.param(
            TWO,
            (
                "False",
                "Oversubscribed",
                "the softs of the tenants of ModelPool llama-8b sum to 22,116 blocks of one pod, more than the 15,666"
                " that degradation.shed.enterPercent (85 %) leaves of its 18,431: this soft is scaled down from 14,744"
                " to 10,444 blocks. Lower softs, or raise memory.kvPool",
            ),
            id="more promised than there is",
        ),
        pytest.param(
            TWO
            | {
                "pods": (make.pod("a"), make.pod("b")),
                "reports": make.reported(make.report(), name="a") | make.reported(make.report(blocks=1_001), name="b"),
            },
            (
                "False",
                "Oversubscribed",
                "the softs of the tenants of ModelPool llama-8b sum to 1,200 blocks of one pod, more than the 850 that"
                " degradation.shed.enterPercent (85 %) leaves of its 1,000: this soft is scaled down from 800 to 566"
                " blocks. Lower softs, or raise memory.kvPool",
            ),
            id="the numbers are those of the pod that gives least",
        ),
        pytest.param(
            {"quotas": search(kv={"soft": {"tokens": 3_200}, "hard": {"bytes": "200Mi"}})},
            (
                "False",
                "SoftAboveHard",
                "soft is 200 blocks (3,200 tokens) on each pod and hard 100 blocks (1,600 tokens): a guarantee ends at"
                " the ceiling. Lower soft or raise hard",
            ),
            id="a soft above hard in another unit",
        ),
        pytest.param(
            {"quotas": search(kv={"hard": {"bytes": "40Gi"}})},
            (
                "False",
                "HardAbovePool",
                "hard is 20,480 blocks (327,680 tokens) on each pod, which has 18,431 blocks (294,896 tokens): the"
                " tenant is limited by the pool. Lower hard, or raise memory.kvPool",
            ),
            id="a hard above the pool",
        ),
        pytest.param(
            {"pool": make.pool(model__maxModelLen=262_144), "quotas": search()},
            (
                "True",
                "HardAboveLending",
                "one request of more than 15,666 blocks (250,656 tokens) is refused for good even on an idle pod, since"
                " the guarantees of the others and the shed threshold leave no more: raise soft for such requests, or"
                " set maxContextTokens to what fits",
            ),
            id="a request that hard allows and no idle pod lends",
        ),
        pytest.param(
            {"pool": make.pool(model__maxModelLen=262_144), "quotas": search(maxContextTokens=250_656)},
            ("True", "WithinCapacity", "soft and hard are given as they are stated"),
            id="a context limit that fits what an idle pod lends",
        ),
        pytest.param(
            {
                "pool": make.pool(model__maxModelLen=262_144),
                "quotas": make.seen(
                    make.quota("search", maxContextTokens=250_656),
                    make.quota("batch", priority=9, kv={"soft": {"percent": 20}}),
                ),
            },
            (
                "True",
                "HardAboveLending",
                "one request of more than 14,745 blocks (235,920 tokens) is refused for good even on an idle pod, since"
                " the guarantees of the others and the shed threshold leave no more: raise soft for such requests, or"
                " set maxContextTokens to what fits",
            ),
            id="the guarantees of the others are not lent",
        ),
        pytest.param(
            {
                "pool": make.pool(model__maxModelLen=262_144, engine__parallelism__data=2, gpu__count=2),
                "quotas": search(),
                "reports": make.reported(make.report(blocks=10_001)),
            },
            (
                "True",
                "HardAboveLending",
                "one request of more than 8,499 blocks (135,984 tokens) is refused for good even on an idle pod, since"
                " the guarantees of the others and the shed threshold leave no more: raise soft for such requests, or"
                " set maxContextTokens to what fits",
            ),
            id="a request lives on one rank, below its shed threshold, however much the pod lends",
        ),
        pytest.param(
            TWO | {"pods": ()},
            (
                "False",
                "Oversubscribed",
                "the softs of the tenants of ModelPool llama-8b sum to 22,116 blocks of one pod, more than the 15,666"
                " that degradation.shed.enterPercent (85 %) leaves of its 18,431: this soft is scaled down from 14,744"
                " to 10,444 blocks. Lower softs, or raise memory.kvPool",
            ),
            id="before there is a pod, what a planned one would give",
        ),
    ],
)
def test_quota_within_capacity(fields, expected):
    assert condition("QuotaWithinCapacity", **fields) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {"reports": usage()}, ("True", "Reported", "every governed pod of the pool reports"), id="every pod reports"
        ),
        pytest.param({}, ("Unknown", "NotReportedYet", "no pod has reported on this tenant yet"), id="a new tenant"),
        pytest.param({"pods": ()}, ("Unknown", "NoPods", "no governed pod runs"), id="no pod"),
        pytest.param(
            {"pods": (make.pod(ready=False),), "reports": {}},
            ("Unknown", "PodsStarting", "the governed pods are starting and have not reported yet"),
            id="pods that start",
        ),
        pytest.param(
            {"reports": make.reported(make.report(make.tenant_usage("search")), age=60.0, error="timeout")},
            (
                "False",
                "PodsStale",
                "some pods do not report, their numbers are missing: see the condition UsageObserved of ModelPool"
                " llama-8b",
            ),
            id="a silent pod",
        ),
    ],
)
def test_usage_observed(fields, expected):
    assert condition("UsageObserved", **fields) == expected


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        pytest.param("GuaranteeKept", {}, ("Unknown", "NoReports"), id="nobody says whether guarantees were kept"),
        pytest.param("GuaranteeKept", {"reports": usage()}, ("True", "Kept"), id="guarantees were kept"),
        pytest.param(
            "GuaranteeKept",
            {"reports": usage(recent=Counts(guarantee_missed=1))},
            ("False", "GuaranteeMissed"),
            id="a guarantee was missed",
        ),
        pytest.param("Degraded", {}, ("Unknown", "NoReports"), id="nobody says whether something was ended"),
        pytest.param("Degraded", {"reports": usage()}, ("False", "NotDegraded"), id="nothing was ended"),
        pytest.param(
            "Degraded", {"reports": usage(recent=Counts(evicted=1))}, ("True", "Evicted"), id="something was ended"
        ),
        pytest.param(
            "Degraded",
            {"reports": usage(recent=Counts(degraded={"Truncate": 1}))},
            ("True", "ServedLess"),
            id="something was answered with less",
        ),
    ],
)
def test_guarantees_and_degradation(kind, fields, expected):
    assert condition(kind, **fields)[:2] == expected


def test_a_silent_pods_numbers_are_missing_from_the_status():
    silent = status(reports=make.reported(make.report(make.tenant_usage("search", used=5)), age=60.0))
    assert not {"used", "reserved", "overSoft", "inFlight", "recent", "lastRefusal"} & set(silent)


def test_numbers_are_those_of_the_pods_that_report():
    reports = make.reported(make.report(make.tenant_usage("search", used=5)), name="a") | make.reported(
        make.report(make.tenant_usage("search", used=900)), name="b", age=60.0
    )
    found = status(pods=(make.pod("a"), make.pod("b")), reports=reports)
    assert (found["used"]["blocks"], make.condition(found, "UsageObserved")[0]) == (5, "False")


@pytest.mark.parametrize(
    ("usables", "spec", "soft", "hard"),
    [
        pytest.param((), {}, 7_372, 11_058, id="without a pod what a planned one would give"),
        pytest.param((18_432, 9_001), {}, 3_600, 5_400, id="per replica what every pod gives at least"),
        pytest.param((18_432, 18_432), {"scope": "Pool"}, 7_372, 22_117, id="pool: soft on each, hard of all together"),
        pytest.param(
            (18_432, 18_432),
            {"scope": "Pool", "kv": {"soft": {"tokens": 160}, "hard": {"tokens": 16_000}}},
            10,
            1_000,
            id="pool: a pod without a part of hard does not lower the soft of the others",
        ),
        pytest.param(
            (18_432, 18_432),
            {"scope": "Pool", "kv": {"hard": {"tokens": 80_000}}},
            2_500,
            5_000,
            id="pool: also where the parts are alike",
        ),
        pytest.param((18_432,), {"kv": {"hard": {"percent": 0}}}, 0, 0, id="a tenant that may hold nothing"),
    ],
)
def test_soft_and_hard_of_the_status(usables, spec, soft, hard):
    pods = tuple(make.pod(f"pod-{place}") for place in range(len(usables)))
    reports = {}
    for place, blocks in enumerate(usables):
        reports |= make.reported(make.report(blocks=blocks), name=f"pod-{place}")
    found = status(pods=pods, reports=reports, quotas=search(**{"tier": "gold"} | spec))
    assert (found["soft"]["blocks"], found["hard"]["blocks"]) == (soft, hard)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        pytest.param({"quotas": search(tier="none"), "reports": usage()}, "NotReady", id="not in force as written"),
        pytest.param({"pods": ()}, "NoPods", id="no pod runs"),
        pytest.param({}, "Unobserved", id="no pod reports on the tenant"),
        pytest.param(
            {"quotas": search(enforcement="Shadow"), "reports": usage(over_soft=5)}, "Shadow", id="only counted"
        ),
        *(
            pytest.param(
                {"reports": usage(over_soft=5, recent=Counts(rejected={code: 1}))}, word, id=f"refused: {code}"
            )
            for code, word in [
                ("tenant_concurrency_exceeded", "Refusing"),
                ("tenant_kv_quota_exceeded", "Refusing"),
                ("kv_pool_contended", "Refusing"),
                ("kv_pool_exhausted", "Refusing"),
                ("request_exceeds_kv_quota", "Refusing"),
                ("malformed_request", "OverSoft"),
                ("unknown_tenant", "OverSoft"),
                ("draining", "OverSoft"),
                ("engine_error", "OverSoft"),
            ]
        ),
        pytest.param(
            {
                "quotas": search(maxContextTokens=1_000),
                "reports": usage(recent=Counts(rejected={"context_length_exceeded": 1})),
            },
            "Refusing",
            id="too long for the quota's own limit",
        ),
        pytest.param(
            {"quotas": search(), "reports": usage(recent=Counts(rejected={"context_length_exceeded": 1}))},
            "Ready",
            id="too long for the model",
        ),
        pytest.param({"reports": usage(recent=Counts(ended=1))}, "Refusing", id="ended past its own hard"),
        pytest.param({"reports": usage(over_soft=5, recent=Counts(evicted=1))}, "Degraded", id="ended lately"),
        pytest.param(
            {"reports": usage(over_soft=5, recent=Counts(degraded={"Truncate": 1}))},
            "Degraded",
            id="served less lately",
        ),
        pytest.param({"reports": usage(over_soft=5)}, "OverSoft", id="holds more than its guarantee"),
        pytest.param({"reports": usage(used=5)}, "Ready", id="otherwise"),
    ],
)
def test_the_word_of_a_quota(fields, word):
    assert status(**fields)["state"] == word


def test_the_codes_of_the_quota_are_codes_of_the_sidecar():
    assert {*QUOTA_CODES, TOO_LONG} <= {str(code) for code in Code}
