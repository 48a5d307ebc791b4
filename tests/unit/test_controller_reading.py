"""From stored objects to what a reconcile observes: pods, selectors, keys, pools and quotas."""

import base64
from typing import Any

import pytest

from kvquota_api.model_pool import LabelRequirement, ModelPool, PodSelector
from kvquota_operator.reading.objects import read_model_config, read_pool, read_quota
from kvquota_operator.reading.pods import PodRecord, query, read_pod, selects
from kvquota_operator.reading.secrets import KeySecret, keep_key_secret, read_key
from kvquota_operator.reconcile.observed import InvalidSeen, KeyFound, KeyProblem, PodSeen, PoolKey, QuotaSeen
from operator_world import pool, quota

Object = dict[str, Any]


def stored_pod(**status: Any) -> Object:
    return {
        "metadata": {"namespace": "inference", "name": "llama-0", "uid": "u-1", "labels": {"app": "llama"}},
        "spec": {"containers": [{"name": "vllm"}], "initContainers": [{"name": "kvquota"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", **status},
    }


def seen(**changes: Any) -> PodSeen:
    values: Object = {"ip": "10.0.0.1", "ready": False, "deleting": False, "governed": True, **changes}
    return PodSeen("inference", "llama-0", "u-1", **values)


def changed(body: Object, **metadata: Any) -> Object:
    return {**body, "metadata": {**body["metadata"], **metadata}}


NO_SIDECAR = {**stored_pod(), "spec": {"containers": [{"name": "vllm"}]}}
IN_CONTAINERS = {**stored_pod(), "spec": {"containers": [{"name": "vllm"}, {"name": "kvquota"}]}}


def mounting(volume: str, config_map: str) -> Object:
    volumes = [{"name": "data", "emptyDir": {}}, {"name": volume, "configMap": {"name": config_map}}]
    return {**stored_pod(), "spec": {**stored_pod()["spec"], "volumes": volumes}}


OURS = "kvq-" + "0f" * 16
READY = [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        pytest.param(stored_pod(), seen(), id="a native sidecar governs a pod"),
        pytest.param(IN_CONTAINERS, seen(), id="an ordinary container named kvquota governs a pod"),
        pytest.param(NO_SIDECAR, seen(governed=False), id="a pod without it is not governed"),
        pytest.param(stored_pod(conditions=READY), seen(ready=True), id="a ready pod is ready"),
        pytest.param(
            stored_pod(conditions=[{"type": "Ready", "status": "False"}]), seen(), id="an unready pod is not ready"
        ),
        pytest.param(stored_pod(podIP=None), seen(ip=None), id="a pod without an address has none"),
        pytest.param(stored_pod(podIP=""), seen(ip=None), id="an empty address is none"),
        pytest.param(
            mounting("kvquota-config", OURS),
            seen(config_map=OURS),
            id="the config that a pod mounts is its durable copy",
        ),
        pytest.param(mounting("other", OURS), seen(), id="another volume of the pod is not ours"),
        pytest.param(
            mounting("kvquota-config", "app-settings"), seen(), id="a name that may be a person's ConfigMap is not used"
        ),
        pytest.param(
            changed(stored_pod(), deletionTimestamp="2026-11-01T12:00:00Z"), seen(deleting=True), id="a pod that ends"
        ),
        pytest.param(
            changed(stored_pod(), annotations={"kvquota.dev/plan": "0123456789abcdef"}),
            seen(plan="0123456789abcdef"),
            id="the plan that its engine was started with",
        ),
        pytest.param(changed(stored_pod(), annotations={"kvquota.dev/plan": ""}), seen(), id="no plan"),
    ],
)
def test_what_is_kept_of_a_pod(body: Object, wanted: PodSeen) -> None:
    assert read_pod(body) == PodRecord(wanted, {"app": "llama"})


@pytest.mark.parametrize(
    ("value", "asks"), [pytest.param("true", True, id="it asks"), pytest.param("false", False, id="it does not")]
)
def test_a_pod_asks_for_the_sidecar_by_its_label(value: str, asks: bool) -> None:
    labels = {"app": "llama", "kvquota.dev/inject": value}
    assert read_pod(changed(stored_pod(), labels=labels)) == PodRecord(seen(asks=asks), labels)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_is_left_out(phase: str) -> None:
    assert read_pod(stored_pod(phase=phase)) is None


def test_a_pod_that_was_just_created_has_no_status_and_may_have_no_labels() -> None:
    body = {"metadata": {"namespace": "inference", "name": "llama-0", "uid": "u-1"}, "spec": {"containers": []}}
    assert read_pod(body) == PodRecord(seen(ip=None, governed=False), {})


def needs(operator: Any, *values: str, key: str = "tier") -> PodSelector:
    return PodSelector(match_expressions=(LabelRequirement(key=key, operator=operator, values=values),))


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        pytest.param(PodSelector(match_labels={"app": "a"}), {"app": "a", "x": "y"}, True, id="a label that is there"),
        pytest.param(PodSelector(match_labels={"app": "a"}), {"app": "b"}, False, id="a label with another value"),
        pytest.param(PodSelector(match_labels={"app": "a", "x": "y"}), {"app": "a"}, False, id="one of two labels"),
        pytest.param(needs("In", "gold", "free"), {"tier": "free"}, True, id="In: one of the values"),
        pytest.param(needs("In", "gold"), {"tier": "free"}, False, id="In: none of the values"),
        pytest.param(needs("In", "gold"), {}, False, id="In: a missing label is no value"),
        pytest.param(needs("NotIn", "gold"), {"tier": "free"}, True, id="NotIn: another value"),
        pytest.param(needs("NotIn", "gold"), {"tier": "gold"}, False, id="NotIn: that value"),
        pytest.param(needs("NotIn", "gold"), {}, True, id="NotIn: a missing label is not in, as in Kubernetes"),
        pytest.param(needs("Exists"), {"tier": ""}, True, id="Exists: even an empty label"),
        pytest.param(needs("Exists"), {}, False, id="Exists: a missing label"),
        pytest.param(needs("DoesNotExist"), {}, True, id="DoesNotExist: a missing label"),
        pytest.param(needs("DoesNotExist"), {"tier": "x"}, False, id="DoesNotExist: a label that is there"),
    ],
)
def test_which_pods_a_selector_matches(selector: PodSelector, labels: dict[str, str], matches: bool) -> None:
    assert selects(selector, labels) is matches


def test_a_selector_is_written_as_the_api_server_reads_it() -> None:
    selector = PodSelector(
        match_labels={"b": "2", "a": "1"},
        match_expressions=(
            LabelRequirement(key="c", operator="In", values=("x", "y")),
            LabelRequirement(key="d", operator="NotIn", values=("z",)),
            LabelRequirement(key="e", operator="Exists"),
            LabelRequirement(key="f", operator="DoesNotExist"),
        ),
    )
    assert query(selector) == "a=1,b=2,c in (x,y),d notin (z),e,!f"


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


KEYS = KeySecret("kvquota.dev/api-key", {"key": encoded(b"kvq-1234\n"), "empty": "", "binary": encoded(b"\xff\xfe")})


@pytest.mark.parametrize(
    ("secret", "key", "found"),
    [
        pytest.param(KEYS, "key", KeyFound("kvq-1234"), id="a key is read without the line break that echo leaves"),
        pytest.param(
            None,
            "key",
            KeyProblem("APIKeyNotFound", "Secret s does not exist: create it with type kvquota.dev/api-key"),
            id="a Secret that is not there",
        ),
        pytest.param(
            KEYS,
            "other",
            KeyProblem("APIKeyNotFound", "Secret s has no key other: add it, or name another one"),
            id="a key that is not in the Secret",
        ),
        pytest.param(
            KeySecret("Opaque", {}),
            "key",
            KeyProblem(
                "WrongSecretType",
                "Secret s has type Opaque, and keys are only read from type kvquota.dev/api-key:"
                " create a new Secret of that type (the type of a Secret cannot be changed)",
            ),
            id="a Secret of another type",
        ),
        pytest.param(
            KEYS,
            "empty",
            KeyProblem("APIKeyUnreadable", "key empty of Secret s is empty or no text: write the API key into it"),
            id="an empty key",
        ),
        pytest.param(
            KEYS,
            "binary",
            KeyProblem("APIKeyUnreadable", "key binary of Secret s is empty or no text: write the API key into it"),
            id="a key that is no text",
        ),
    ],
)
def test_how_a_key_is_read(secret: KeySecret | None, key: str, found: KeyFound | KeyProblem) -> None:
    assert read_key(secret, "s", key) == found


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        pytest.param(
            {"type": "kvquota.dev/api-key", "data": {"key": "YQ=="}},
            KeySecret("kvquota.dev/api-key", {"key": "YQ=="}),
            id="the entries of a Secret with keys",
        ),
        pytest.param(
            {"type": "Opaque", "data": {"password": "YQ=="}},
            KeySecret("Opaque", {}),
            id="nothing of a Secret of another type",
        ),
        pytest.param({"data": {"password": "YQ=="}}, KeySecret("Opaque", {}), id="nothing of a Secret without a type"),
        pytest.param(
            {"type": "kvquota.dev/api-key"}, KeySecret("kvquota.dev/api-key", {}), id="a Secret without entries"
        ),
    ],
)
def test_what_is_kept_of_a_secret(body: Object, kept: KeySecret) -> None:
    assert keep_key_secret(body) == kept


def test_a_key_written_as_text_in_a_file_is_read_as_one_from_the_cluster() -> None:
    secret = keep_key_secret({"type": "kvquota.dev/api-key", "stringData": {"key": "kvq-1234"}})
    assert read_key(secret, "s", "key") == KeyFound("kvq-1234")


def test_a_key_does_not_show_in_a_printed_secret() -> None:
    assert "kvq-1234" not in repr(KEYS) + repr(KeyFound("kvq-1234"))


def as_stored(body: Object, **status: Any) -> Object:
    metadata = {"namespace": "inference", "uid": "u-1", "resourceVersion": "7", "generation": 3}
    return {**body, "metadata": {**body["metadata"], **metadata}, "status": status}


def test_a_pool_that_parses() -> None:
    stored = read_pool(as_stored(pool("llama"), rung="Normal"))
    assert isinstance(stored.pool, ModelPool)
    assert (stored.key, stored.uid, stored.generation) == (PoolKey("inference", "llama"), "u-1", 3)
    assert (stored.status, stored.labels, stored.version) == ({"rung": "Normal"}, {"app": "llama"}, "7")
    assert stored.pool.status is None  # it is kept as it is stored


def test_a_pool_that_does_not_parse_keeps_what_can_be_read() -> None:
    stored = read_pool(as_stored(pool("llama", engine={"type": "Unknown"}), rung="Normal"))
    assert isinstance(stored.pool, InvalidSeen)
    assert stored.pool.message.startswith("spec.engine.type: ")
    assert (stored.pool.kind, stored.pool.name, stored.pool.uid, stored.generation) == ("ModelPool", "llama", "u-1", 3)
    assert (stored.status, stored.labels) == ({"rung": "Normal"}, {"app": "llama"})


@pytest.mark.parametrize("spec", [None, [], {"selector": None}, {"selector": {"matchLabels": {"app": 3}}}])
def test_a_pool_that_says_nothing_of_its_pods(spec: object) -> None:
    assert read_pool({**as_stored(pool("llama")), "spec": spec}).labels == {}


def test_a_quota_that_parses() -> None:
    stored = read_quota(as_stored(quota("search"), state="Ready"))
    assert isinstance(stored.quota, QuotaSeen)
    assert (stored.namespace, stored.name, stored.pool) == ("inference", "search", PoolKey("inference", "llama"))
    assert (stored.status, stored.generation, stored.version) == ({"state": "Ready"}, 3, "7")
    assert stored.quota.quota.status is None  # it is kept as it is stored


def test_a_quota_that_does_not_parse_still_belongs_to_its_pool() -> None:
    stored = read_quota(as_stored(quota("search", priority=-1), state="Ready"))
    assert isinstance(stored.quota, InvalidSeen)
    assert stored.quota.message.startswith("spec.priority: ")
    assert (stored.pool, stored.status, stored.generation) == (PoolKey("inference", "llama"), {"state": "Ready"}, 3)


@pytest.mark.parametrize("reference", [None, "llama", {"name": 3}, {}])
def test_a_quota_whose_pool_cannot_be_read_belongs_to_none(reference: object) -> None:
    assert read_quota(as_stored(quota("search", modelPoolRef=reference))).pool is None


@pytest.mark.parametrize(
    ("config_map", "content"),
    [
        pytest.param({"data": {"config.json": '{"a": 1}'}}, {"a": 1}, id="a JSON object"),
        pytest.param({"data": {"config.json": "[1]"}}, None, id="JSON that is no object"),
        pytest.param({"data": {"config.json": "{"}}, None, id="no JSON"),
        pytest.param({"data": {"other": "{}"}}, None, id="another key"),
        pytest.param({"data": None}, None, id="a ConfigMap without entries"),
        pytest.param(None, None, id="no ConfigMap"),
    ],
)
def test_a_models_config_from_a_config_map(config_map: Object | None, content: object) -> None:
    assert read_model_config(config_map, "config.json") == content
