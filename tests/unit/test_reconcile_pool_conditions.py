"""The conditions of a ModelPool, and the word for its column."""

from dataclasses import replace

import pytest

import reconcile_builders as make
from contract_inert import TRUNCATE
from kvquota_api.memory.plan import plan_pool
from kvquota_api.usage import MAX_BLOCKS, Counts, EngineRecent, InForce, Rejected
from kvquota_operator.reconcile.observed import PoolClaim
from kvquota_operator.reconcile.pool_conditions import HOW_TO_GOVERN

PLANNED = "the KV pool of one engine is 18,432 blocks (294,912 tokens, 36 GiB on one GPU)."
IDLE = make.pool_usage()


def status(**fields):
    return make.decided(**fields).pool_status


def condition(kind, **fields):
    return make.condition(status(**fields), kind)


def engine(**fields):
    return {"reports": make.reported(make.report(**fields))}


def rung(name):
    return {"reports": make.reported(make.report(pool=make.pool_usage(rung=name)))}


def test_a_plan_that_fits():
    status, reason, message = condition("PlanValid")
    assert (status, reason, message.startswith(PLANNED), "Assumed: " in message) == ("True", "Planned", True, True)


def test_a_plan_that_assumes_nothing_says_so_by_silence():
    plan = make.reconcile(
        make.observed(), make.NOW, make.WALL, lambda *given: replace(plan_pool(*given), assumptions=())
    )
    assert make.condition(plan.pool_status, "PlanValid") == ("True", "Planned", PLANNED)


@pytest.mark.parametrize(
    ("changes", "meanwhile"),
    [
        pytest.param(
            {"engine": {"type": "OpenAI"}},
            "A pod gets its config when its engine has reported its blocks",
            id="an engine of which nothing is known",
        ),
        pytest.param(
            {"engine__version": "latest"},
            "No plan was ever valid: pods get no config until this is corrected",
            id="a version that cannot be read",
        ),
    ],
)
def test_without_a_plan_it_is_said_when_a_pod_gets_its_config(changes, meanwhile):
    assert condition("PlanValid", pool=make.pool(**changes), reports={})[2].endswith(f". {meanwhile}")


def test_what_a_pool_asks_for_and_is_not_built_yet_is_told_beside_its_plan():
    status, reason, message = condition("PlanValid", pool=make.pool(engine__plugin="Measure"))
    assert (status, reason, message.startswith(PLANNED)) == ("True", "NotEnforcedYet", True)
    assert message.endswith(
        " Of what the pool asks for, accepted and not enforced yet: spec.engine.plugin: nothing runs inside the engine"
        " yet, quotas hold in the sidecar, by its own count"
    )


def asking(**changes):
    """A pool that asks for what is not built yet."""
    return make.pool(degradation__truncate=TRUNCATE, **changes)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param({"pool": asking(engine={"type": "OpenAI"})}, "UnknownArchitecture", id="a pool without a plan"),
        pytest.param({"pool": make.unread_pool()}, "InvalidSpec", id="a pool that cannot be read"),
        pytest.param({"pool": asking(memory__safetyMarginPercent=4)}, "SafetyMarginUnusual", id="an odd margin"),
    ],
)
def test_what_can_be_mended_now_is_told_before_what_is_not_built_yet(fields, reason):
    assert condition("PlanValid", **fields)[1] == reason


def test_a_plan_that_the_engine_would_not_take_as_it_is_warns():
    message = condition("PlanValid", pool=make.pool(model__maxModelLen=131_073))[2]
    assert ". Warning: max_model_len 131073 is longer than the 131072 positions" in message.replace(") ", "). ")


def test_a_model_of_several_groups_has_the_bytes_of_a_token_that_it_keeps():
    pool = make.pool(model__config={"preset": "gpt-oss-20b"}, model__weightDtype="auto")
    found = status(pool=pool, **engine())
    assert (found["kv"]["bytesPerToken"], found["kv"]["blockTokens"]) == (24_576, 16)


@pytest.mark.parametrize(
    ("percent", "reason"),
    [
        pytest.param(4, "SafetyMarginUnusual", id="4 percent is little"),
        pytest.param(5, "Planned", id="5 percent is enough"),
        pytest.param(10, "Planned", id="10 percent is not too much"),
        pytest.param(11, "SafetyMarginUnusual", id="11 percent is much"),
    ],
)
def test_an_unusual_safety_margin_is_a_warning(percent, reason):
    assert condition("PlanValid", pool=make.pool(memory__safetyMarginPercent=percent))[:2] == ("True", reason)


def test_the_warning_says_what_to_do():
    assert condition("PlanValid", pool=make.pool(memory__safetyMarginPercent=3))[2] == (
        "spec.memory.safetyMarginPercent is 3: less than 5 leaves nothing for what nobody plans, more than 10 wastes"
        " memory; set a value between them"
    )


@pytest.mark.parametrize(
    ("tenant", "fields", "reason"),
    [
        pytest.param("search", {}, "Planned", id="a tenant with a quota"),
        pytest.param("nobody", {}, "AnonymousTenantUnknown", id="a tenant without a quota"),
        pytest.param("nobody", {"pods": ()}, "Planned", id="nothing is said while there is no pod"),
    ],
)
def test_an_anonymous_tenant_needs_a_quota(tenant, fields, reason):
    found = condition("PlanValid", pool=make.pool(sidecar__anonymousTenant=tenant), **fields)
    assert found[:2] == ("True", reason)


def test_the_pages_that_messages_name_are_there():
    assert (make.EXAMPLES.parent / HOW_TO_GOVERN).is_file()


def other_pool(name):
    return PoolClaim("2027-01-01T00:00:00Z", name)


MANY = tuple(make.pod(f"p{number}", governed=False) for number in range(7))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {}, ("True", "AllGoverned", "every pod that the selector matches carries the sidecar"), id="all governed"
        ),
        pytest.param({"pods": ()}, ("Unknown", "NoPods", "no pod matches the selector"), id="no pod"),
        pytest.param(
            {"pods": (make.pod(), make.pod("bare", governed=False))},
            (
                "False",
                "NotInjected",
                'pod bare carries no sidecar and no quota holds there: set the label kvquota.dev/inject: "true" in the'
                " pod template, or add the container named kvquota by hand, see"
                " docs/how-to/put-a-pod-under-quota.md",
            ),
            id="a pod without the sidecar",
        ),
        pytest.param(
            {"pods": (make.pod(), make.pod("bare", governed=False, asks=True))},
            (
                "False",
                "NotInjected",
                "pod bare carries no sidecar and no quota holds there: the label kvquota.dev/inject asks for it, and"
                " came after the pod, or the pool did: delete what has it, so that it is made again",
            ),
            id="a pod that asked too early",
        ),
        pytest.param(
            {"pods": MANY},
            (
                "False",
                "NotInjected",
                "pods p0, p1, p2, p3, p4 and 2 more carry no sidecar and no quota holds there: set the label"
                ' kvquota.dev/inject: "true" in the pod template, or add the container named kvquota by hand, see'
                " docs/how-to/put-a-pod-under-quota.md",
            ),
            id="many pods without the sidecar",
        ),
        pytest.param(
            {"pods": (make.pod("a", others=(other_pool("x"),)), make.pod("b", others=(other_pool("y"),)))},
            (
                "False",
                "SelectorConflict",
                "pods a, b are selected by ModelPool x, y too; the oldest pool governs them: make the selectors differ",
            ),
            id="pods of two pools",
        ),
        pytest.param(
            {"pods": (make.pod("a", others=(other_pool("x"),)),)},
            (
                "False",
                "SelectorConflict",
                "pod a is selected by ModelPool x too; the oldest pool governs it: make the selectors differ",
            ),
            id="a pod of two pools",
        ),
        pytest.param(
            {"pods": (make.pod(), replace(make.pod("x", deleting=True), left=True))},
            (
                "False",
                "PodLeft",
                "pod x has lost the labels of the pool and is still there: no edit reaches it, and its parts of limits"
                " over all pods are kept for it. Give it the labels back, or delete it",
            ),
            id="a pod that left the selector",
        ),
        pytest.param(
            {"pods": (make.pod(), *(replace(make.pod(name, deleting=True), left=True) for name in "xy"))},
            (
                "False",
                "PodLeft",
                "pods x, y have lost the labels of the pool and are still there: no edit reaches them, and their parts"
                " of limits over all pods are kept for them. Give them the labels back, or delete them",
            ),
            id="pods that left the selector",
        ),
    ],
)
def test_pods_governed(fields, expected):
    assert condition("PodsGoverned", **fields) == expected


def rejecting(config_digest, identity_digest, age=0.0):
    """Reports of the example's pod that refuses something, with these digests in force."""
    wanted = make.decided()
    in_force = InForce(
        generation=3,
        config_digest=wanted.configs[0].digest if config_digest == "wanted" else config_digest,
        identity_digest=wanted.secret.identity.digest if identity_digest == "wanted" else identity_digest,
    )
    rejected = Rejected(generation=4, reason="Invalid", message="tenants: too many")
    return make.reported(make.report(in_force=in_force, rejected=rejected), age=age)


@pytest.mark.parametrize(
    ("config_digest", "identity_digest", "age", "reason"),
    [
        pytest.param("older", "wanted", 0.0, "ConfigRejected", id="the config is refused"),
        pytest.param("wanted", "older", 0.0, "ConfigRejected", id="the identity is refused"),
        pytest.param("wanted", "wanted", 0.0, "AllGoverned", id="what was refused is not wanted any more"),
        pytest.param("older", "wanted", 60.0, "AllGoverned", id="an old report says nothing of today"),
    ],
)
def test_a_refused_document(config_digest, identity_digest, age, reason):
    assert condition("PodsGoverned", reports=rejecting(config_digest, identity_digest, age))[1] == reason


def test_a_refused_config_is_told_with_the_sidecars_own_words():
    assert condition("PodsGoverned", reports=rejecting("older", "wanted"))[2] == (
        "the sidecar of pod llama-8b-0 refuses generation 4 of its config and keeps the last good one (Invalid):"
        " tenants: too many. Correct what it names, or run the same version of operator and sidecar"
    )


def test_a_pod_that_refuses_nothing_but_is_behind_is_no_refusal():
    behind = make.report(in_force=InForce(generation=1, config_digest="older"))
    assert condition("PodsGoverned", reports=make.reported(behind))[1] == "AllGoverned"


def test_without_identity_and_config_a_refusal_is_old():
    refusing = make.report(rejected=Rejected(generation=1, reason="Invalid", message="m"))
    too_large = make.pool(memory__kvPool={"percent": 95})
    fields = {"pool": too_large, "secret": None, "reports": make.reported(refusing)}
    assert condition("PodsGoverned", **fields)[1] == "AllGoverned"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, ("True", "Reported", "every governed pod reports"), id="every pod reports"),
        pytest.param({"pods": ()}, ("Unknown", "NoPods", "no governed pod runs"), id="no pod"),
        pytest.param(
            {"reports": make.reported(None, error="connection refused")},
            (
                "False",
                "PodsStale",
                "no recent report from llama-8b-0 (connection refused): their numbers are in no sum. Check that the"
                " operator reaches the admin port of these pods and that their container kvquota runs",
            ),
            id="a silent pod, and why",
        ),
        pytest.param(
            {"reports": make.reported(make.report(), age=60.0)},
            (
                "False",
                "PodsStale",
                "no recent report from llama-8b-0: their numbers are in no sum. Check that the operator reaches the"
                " admin port of these pods and that their container kvquota runs",
            ),
            id="a silent pod that nobody tried lately",
        ),
    ],
)
def test_usage_observed(fields, expected):
    assert condition("UsageObserved", **fields) == expected


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        pytest.param("GuaranteeKept", {"pods": ()}, ("Unknown", "NoReports"), id="nobody says"),
        pytest.param("GuaranteeKept", {}, ("True", "Kept"), id="all guarantees were kept"),
        pytest.param(
            "GuaranteeKept",
            {"reports": make.reported(make.report(make.tenant_usage("batch", recent=Counts(guarantee_missed=2))))},
            ("False", "GuaranteeMissed"),
            id="one was missed",
        ),
        pytest.param("Degraded", {"pods": ()}, ("Unknown", "NoReports"), id="nobody says where on the ladder"),
        pytest.param("Degraded", {}, ("False", "Normal"), id="not on the ladder"),
        pytest.param("Degraded", rung("Truncate"), ("True", "Truncate"), id="on the ladder"),
        pytest.param(
            "Degraded",
            {"pool": make.pool(memory__kvPool={"percent": 95})},
            ("Unknown", "NoReports"),
            id="no plan, no numbers",
        ),
    ],
)
def test_guarantees_and_ladder(kind, fields, expected):
    assert condition(kind, **fields)[:2] == expected


@pytest.mark.parametrize(
    ("name", "what"),
    [
        pytest.param("Shed", "new work beyond soft is refused, lowest priority first", id="shed"),
        pytest.param(
            "Evict",
            "work beyond soft is refused, and ended where a request inside soft waits for its memory",
            id="evict",
        ),
        pytest.param("Truncate", "long requests of tenants that allow it get less than they asked for", id="truncate"),
        pytest.param(
            "Fallback", "requests of tenants that allow it are answered by the pool's fallback", id="fallback"
        ),
    ],
)
def test_a_rung_says_what_it_does_and_what_helps(name, what):
    assert condition("Degraded", **rung(name))[2] == (
        f"the pool is short of KV memory and on the rung {name} of its ladder: {what}. If that lasts, add replicas,"
        " raise spec.memory.kvPool, or lower what tenants may borrow (hard)"
    )


def test_a_missed_guarantee_names_the_tenant():
    missed = make.tenant_usage("batch", recent=Counts(guarantee_missed=2))
    assert condition("GuaranteeKept", reports=make.reported(make.report(missed)))[2].startswith(
        "requests inside soft of inference/batch found no room"
    )


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        pytest.param({"pool": make.pool(memory__kvPool={"percent": 95})}, "NotReady", id="no plan in force"),
        pytest.param(engine(blocks=5_000), "Faulty", id="not as planned"),
        pytest.param({"pods": ()}, "NoPods", id="no pod"),
        pytest.param({"pods": (make.pod(ready=False),), "reports": {}}, "Unobserved", id="no report yet"),
        pytest.param({"pool": make.pool(enforcement="Shadow")}, "Shadow", id="only counted"),
        pytest.param(engine(recent=EngineRecent(finished=20, foreign=20)), "Faulty", id="what went past the sidecar"),
        pytest.param(engine(state="Down"), "Faulty", id="a dead engine"),
        pytest.param(rung("Evict"), "Evict", id="on the ladder"),
        pytest.param({}, "Ready", id="otherwise"),
    ],
)
def test_the_word_of_a_pool(fields, word):
    assert status(**fields)["state"] == word


def test_the_pods_are_counted():
    pods = (make.pod("a"), make.pod("b"), make.pod("c", ready=False), make.pod("d", governed=False))
    reports = make.reported(make.report(), name="a") | make.reported(make.report(), name="b", age=60.0)
    assert status(pods=pods, reports=reports)["pods"] == {
        "expected": 3,
        "reporting": 1,
        "stale": 1,
        "summary": "1/3",
    }


def test_a_card_without_end_is_no_reason_to_fail():
    huge = make.pool(gpu__memory="7Ei", memory__kvPool={"percent": 90}, memory__activation="1Gi")
    kv = status(pool=huge)["kv"]
    assert (kv["cap"]["tokens"] <= 2**53, kv["cap"]["blocks"]) == (True, MAX_BLOCKS)
