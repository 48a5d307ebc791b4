"""When a quota may be called in force, by what pods have."""

import pytest

import reconcile_builders as make
from kvquota_api.usage import InForce
from kvquota_operator.reconcile.observed import QuotaSeen

OTHERS = InForce(generation=1, config_digest="older")
IN_FORCE = "the quota is in force on every governed pod of its pool"


def ready(before=None, **fields):
    """The condition Ready of search, where it was `before` (status and reason) so far."""
    stored = {} if before is None else {"conditions": [stored_ready(*before)]}
    quotas = tuple(QuotaSeen(each.quota, stored) for each in make.example_quotas())
    return make.condition(make.decided(quotas=quotas, **fields).quota_statuses["search"], "Ready")


def stored_ready(status, reason):
    fields = {"type": "Ready", "status": status, "reason": reason, "message": "m"}
    return fields | {"lastTransitionTime": "2026-11-01T11:00:00Z", "observedGeneration": 1}


def behind(seconds, *names):
    return {f"uid-{name}": make.NOW - seconds for name in names or ("llama-8b-0",)}


def said(*found):
    return (
        f"the quota is not in force, or not as it is written, on pods of ModelPool llama-8b ({'; '.join(found)}). See"
        " the conditions PodsGoverned and UsageObserved of the pool for why, or the logs of the container kvquota of"
        " these pods"
    )


@pytest.mark.parametrize(
    ("before", "seconds", "expected"),
    [
        pytest.param(("True", "InForce"), 9.9, ("True", "InForce"), id="an edit has its time"),
        pytest.param(("True", "InForce"), 10.0, ("False", "NotInForce"), id="and no longer"),
        pytest.param(("False", "NotInForce"), 0.1, ("False", "NotInForce"), id="what was said stands after a restart"),
        pytest.param(("Unknown", "NotInForce"), 0.1, ("False", "NotInForce"), id="and is said of a pod that reports"),
        pytest.param(None, 0.1, ("Unknown", "NotInForceYet"), id="a new quota is not in force at once"),
        pytest.param(("False", "NoPlan"), 0.1, ("Unknown", "NotInForceYet"), id="nor one that was corrected"),
        pytest.param(None, 10.0, ("False", "NotInForce"), id="a new quota that the pod does not take"),
    ],
)
def test_what_is_said_of_a_pod_that_has_another_config(before, seconds, expected):
    fields = {"behind": behind(seconds), "reports": make.reported(make.report(in_force=OTHERS))}
    assert ready(before, **fields)[:2] == expected


def test_a_pod_that_says_nothing_is_unknown():
    expected = said("llama-8b-0: nobody knows what is in force there, since no report comes")
    assert ready(behind=behind(60.0), reports=make.reported(error="refused")) == ("Unknown", "NotInForce", expected)


def test_the_pods_are_named_by_what_is_known_of_them():
    expected = said(
        "a, c: another config is in force there, or none",
        "b: nobody knows what is in force there, since no report comes",
    )
    reports = make.reported(make.report(in_force=OTHERS), name="a") | make.reported(make.report(), name="c")
    fields = {"pods": tuple(make.pod(name) for name in "abc"), "reports": reports, "behind": behind(11.0, *"abc")}
    assert ready(**fields) == ("False", "NotInForce", expected)


def test_pods_to_which_a_config_is_on_its_way_are_named():
    assert ready(behind=behind(0.1)) == (
        "Unknown",
        "NotInForceYet",
        "the config of these pods is on its way to them: llama-8b-0",
    )


def test_what_is_not_in_force_is_no_shadow_either():
    fields = {"pool": make.pool(enforcement="Shadow"), "behind": behind(11.0)}
    assert ready(("True", "Shadow"), **fields)[:2] == ("False", "NotInForce")


def test_a_pod_that_has_what_it_should_by_now_is_not_behind():
    [config] = make.decided().configs
    reports = make.reported(make.report(in_force=make.in_force(config)))
    assert ready(behind=behind(60.0), reports=reports, configs={config.pod.uid: config}) == (
        "True",
        "InForce",
        IN_FORCE,
    )


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(
            {"pods": (make.pod(ready=False),), "reports": make.reported(error="refused"), "behind": behind(60.0)},
            id="a pod that is starting",
        ),
        pytest.param({"behind": behind(60.0, "gone")}, id="a pod that is gone"),
    ],
)
def test_pods_that_enforce_for_nobody_are_not_waited_for(fields):
    assert ready(**fields) == ("True", "InForce", IN_FORCE)


def test_a_pod_that_is_not_ready_for_want_of_a_config_and_says_so_is_behind():
    assert ready(pods=(make.pod(ready=False),), behind=behind(11.0))[:2] == ("False", "NotInForce")


def test_a_pod_whose_first_config_is_too_large_has_none_of_it():
    assert ready(("True", "InForce"), max_config_bytes=10)[:2] == ("False", "NotInForce")


@pytest.mark.parametrize(
    ("reports", "word"),
    [
        pytest.param(
            make.reported(make.report(make.tenant_usage("search"), in_force=OTHERS)), "NotReady", id="it is not"
        ),
        pytest.param(make.reported(error="refused"), "Unobserved", id="nobody knows"),
    ],
)
def test_the_word_of_a_quota_that_is_not_in_force(reports, word):
    plan = make.decided(reports=reports, behind=behind(60.0))
    assert plan.quota_statuses["search"]["state"] == word


def test_a_quota_of_which_one_pod_says_nothing_is_not_ready():
    reports = make.reported(make.report(make.tenant_usage("search")), name="a") | make.reported(error="e", name="b")
    fields = {"pods": (make.pod("a"), make.pod("b")), "reports": reports, "behind": behind(60.0, "b")}
    assert make.decided(**fields).quota_statuses["search"]["state"] == "NotReady"
