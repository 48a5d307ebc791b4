"""What is said of objects that the API server does not store."""

import pytest

import reconcile_builders as make

MEANWHILE = (
    ". A sidecar that starts anew gets what was stored before, and parts of a quota with scope Pool are given to no pod"
    " before they are stored. Let the operator write it: change the policy, quota or right that stands in the way, and"
    " delete an object that is immutable or somebody else's, so that it is made anew"
)
PODS = (make.pod("a"), make.pod("b"))


def governed(**fields):
    return make.condition(make.decided(pods=PODS, **fields).pool_status, "PodsGoverned")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        pytest.param({"refused": {"uid-a": "422: no"}}, "the config of pod a: 422: no", id="one copy"),
        pytest.param(
            {"refused": {"uid-b": "403: b", "uid-a": "422: a"}}, "the config of pods a, b: 422: a", id="several copies"
        ),
        pytest.param({"secret_refused": "422: s"}, "the Secret kvquota-llama-8b: 422: s", id="the Secret"),
        pytest.param(
            {"refused": {"uid-b": "403: b"}, "secret_refused": "422: s"},
            "the Secret kvquota-llama-8b: 422: s; and the config of pod b: 403: b",
            id="both",
        ),
        pytest.param(
            {"refused": {"uid-a": "x" * 401}}, f"the config of pod a: {'x' * 399}…", id="a long sentence is cut"
        ),
        pytest.param({"refused": {"uid-a": "x" * 400}}, f"the config of pod a: {'x' * 400}", id="a shorter one is not"),
    ],
)
def test_what_is_refused_is_told_in_the_api_servers_words(fields, told):
    assert governed(**fields) == ("False", "CopyRefused", f"the cluster refuses to store {told}{MEANWHILE}")


def test_what_is_refused_for_a_pod_that_is_gone_is_not_told():
    assert governed(refused={"uid-gone": "422: no"})[1] == "AllGoverned"


def test_it_is_an_event_of_the_pool():
    [event] = [each for each in make.decided(refused={"uid-llama-8b-0": "no"}).events if each.kind == "ModelPool"]
    assert (event.type, event.reason) == ("Warning", "CopyRefused")
