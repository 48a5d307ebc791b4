"""What is said of fields that sidecars of another version do not know."""

import pytest

import reconcile_builders as make
from kvquota_api.usage import InForce


def governed(**fields):
    return make.condition(make.decided(**fields).pool_status, "PodsGoverned")


def understanding(*unknown, name="llama-8b-0", age=0.0):
    """A pod whose sidecar does not know these fields of what it has in force."""
    in_force = InForce(generation=3, config_digest="newer", unknown_fields=unknown)
    return make.reported(make.report(in_force=in_force), age=age, name=name)


def test_fields_that_a_sidecar_does_not_know_are_told_with_its_pod():
    reports = understanding("config.tenants[].requestsPerMinute")
    assert governed(reports=reports) == (
        "False",
        "ConfigPartlyUnderstood",
        "not known to the sidecar of pod llama-8b-0, and not enforced there: config.tenants[].requestsPerMinute. All"
        " else of the config is in force. Roll these pods out again (kubectl rollout restart) with the sidecar of the"
        " operator's version",
    )
    assert make.decided(reports=reports).pool_status["state"] == "Faulty"


def test_fields_that_several_sidecars_do_not_know_are_told_once():
    pods = tuple(make.pod(f"llama-8b-{number}") for number in range(2))
    reports = understanding("config.b", "config.a") | understanding("config.a", "identity.c", name="llama-8b-1")
    assert governed(pods=pods, reports=reports)[2].startswith(
        "not known to the sidecar of pods llama-8b-0, llama-8b-1, and not enforced there: config.a, config.b,"
        " identity.c. All else"
    )


@pytest.mark.parametrize(
    ("unknown", "age", "reason"),
    [
        pytest.param((), 0.0, "AllGoverned", id="it knows all"),
        pytest.param(("config.a",), 60.0, "AllGoverned", id="an old report says nothing of today"),
        pytest.param(("config.plan", "config.earlier[].x"), 0.0, "AllGoverned", id="the operator's own notes"),
        pytest.param(("config.planned",), 0.0, "ConfigPartlyUnderstood", id="a field with a name like a note's"),
    ],
)
def test_when_a_config_is_partly_understood(unknown, age, reason):
    assert governed(reports=understanding(*unknown, age=age))[1] == reason
