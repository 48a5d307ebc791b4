"""The objects that the operator stores, and what is believed of stored ones."""

import base64
import json

import pytest

import reconcile_builders as make
from contract_objects import ABSENT, changed
from kvquota_api.pod_config import encode
from kvquota_operator.reconcile.manifests import (
    Unreadable,
    config_from_configmap,
    config_map,
    config_map_name,
    is_config_map_name,
    is_ours,
    pool_label,
    pool_secret,
    pool_secret_name,
    secret_from,
)
from kvquota_operator.reconcile.observed import PoolKey, SecretSeen

CONFIG = make.decided().configs[0]
WANTED = make.decided().secret


def stored_config(**changes):
    return changed(config_map(CONFIG), {path.replace("__", "."): changes[path] for path in changes})


def stored_secret(**changes):
    whole = pool_secret(make.KEY, "uid-pool", WANTED)
    return changed(whole, {path.replace("__", "."): changes[path] for path in changes})


def in_base64(text):
    return base64.b64encode(text.encode()).decode()


def test_a_config_map():
    assert config_map(CONFIG) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map_name("inference", "uid-llama-8b-0"),
            "namespace": "inference",
            "labels": {"kvquota.dev/pool": "llama-8b", "app.kubernetes.io/managed-by": "kvquota-operator"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "llama-8b-0", "uid": "uid-llama-8b-0"}],
        },
        "data": {"config.json": encode(CONFIG).decode()},
    }


def test_a_config_map_has_the_name_that_the_pod_mounts():
    mounted = config_map(CONFIG, f"kvq-{'a' * 32}")
    assert (mounted["metadata"]["name"], config_from_configmap(mounted)) == (f"kvq-{'a' * 32}", CONFIG)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(f"kvq-{'0f' * 16}", True, id="32 hexadecimal digits"),
        pytest.param(f"kvq-{'0f' * 15}", False, id="fewer"),
        pytest.param(f"kvq-{'0f' * 17}", False, id="more"),
        pytest.param("kube-root-ca.crt", False, id="somebody else's"),
    ],
)
def test_which_names_may_be_ours(name, expected):
    assert is_config_map_name(name) is expected


def test_a_config_map_is_read_back():
    assert config_from_configmap(json.loads(json.dumps(config_map(CONFIG)))) == CONFIG


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"data": ABSENT}, "has no config.json", id="no data"),
        pytest.param({"data": {"config.json": 7}}, "has no config.json", id="data that is no text"),
        pytest.param({"data": {"config.json": "{"}}, "not a valid PodConfig", id="text that is no config"),
        pytest.param(
            {"data": {"config.json": encode(CONFIG).decode().replace("11058", "18000")}},
            "digest: does not match the content",
            id="a config that somebody edited",
        ),
        pytest.param({"metadata__name": "kvq-0"}, "config of another pod, llama-8b-0", id="another name"),
        pytest.param({"metadata__namespace": "other"}, "config of another pod, llama-8b-0", id="another namespace"),
        pytest.param(
            {"metadata__ownerReferences": [{"uid": "uid-other"}]},
            "config of another pod, llama-8b-0",
            id="another owner",
        ),
        pytest.param({"metadata__ownerReferences": ABSENT}, "config of another pod, llama-8b-0", id="no owner"),
        pytest.param(
            {"metadata__ownerReferences": ["x"]}, "config of another pod, llama-8b-0", id="an owner that is none"
        ),
        pytest.param({"metadata": "x"}, "config of another pod, llama-8b-0", id="metadata that are none"),
    ],
)
def test_a_config_map_that_is_not_read(changes, reason):
    found = config_from_configmap(stored_config(**changes))
    assert isinstance(found, Unreadable)
    assert reason in found.reason


def test_a_config_map_that_is_not_read_is_named():
    found = config_from_configmap(stored_config(metadata__name="kvq-0", data=ABSENT))
    assert found == Unreadable("ConfigMap inference/kvq-0 has no config.json")


def test_ours_is_the_config_map_of_that_pod_only():
    assert (is_ours(config_map(CONFIG), CONFIG.pod), is_ours(stored_config(metadata__name="x"), CONFIG.pod)) == (
        True,
        False,
    )


def test_names_do_not_clash():
    names = {config_map_name(namespace, uid) for namespace in ("a", "b") for uid in ("1", "2")}
    assert (len(names), {len(name) for name in names}) == (4, {36})


@pytest.mark.parametrize(
    ("pool", "secret", "label"),
    [
        pytest.param("llama-8b", "kvquota-llama-8b", "llama-8b", id="a plain name"),
        pytest.param("p" * 63, f"kvquota-{'p' * 63}", "p" * 63, id="the longest label"),
        pytest.param("p" * 245, f"kvquota-{'p' * 245}", None, id="the longest name"),
        pytest.param("p" * 246, None, None, id="a name that is too long for both"),
    ],
)
def test_names_of_a_pool(pool, secret, label):
    names = (pool_secret_name(pool), pool_label(pool))
    assert (len(names[0]) <= 253, len(names[1]) <= 63) == (True, True)
    assert (secret in (None, names[0]), label in (None, names[1])) == (True, True)
    assert names != (pool_secret_name(f"{pool}x"), pool_label(f"{pool}x"))


def test_a_secret():
    assert pool_secret(make.KEY, "uid-pool", WANTED) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kvquota.dev/pool",
        "metadata": {
            "name": "kvquota-llama-8b",
            "namespace": "inference",
            "labels": {"kvquota.dev/pool": "llama-8b", "app.kubernetes.io/managed-by": "kvquota-operator"},
            "ownerReferences": [
                {
                    "apiVersion": "kvquota.dev/v1alpha1",
                    "kind": "ModelPool",
                    "name": "llama-8b",
                    "uid": "uid-pool",
                }
            ],
        },
        "data": {
            "token": in_base64(make.TOKEN),
            "pepper": in_base64(make.PEPPER),
            "identity.json": in_base64(encode(WANTED.identity).decode()),
        },
    }


def test_a_secret_is_read_back():
    assert secret_from(pool_secret(PoolKey("a", "b"), "u", WANTED)) == SecretSeen(
        make.TOKEN, make.PEPPER, WANTED.identity
    )


@pytest.mark.parametrize(
    "identity",
    [
        pytest.param(ABSENT, id="none"),
        pytest.param(in_base64("{}"), id="one that is not valid"),
        pytest.param("*", id="one that is no base64"),
    ],
)
def test_an_identity_that_cannot_be_read_is_made_anew(identity):
    data = changed(stored_secret()["data"], {})
    if identity is ABSENT:
        del data["identity.json"]
    else:
        data["identity.json"] = identity
    assert secret_from(stored_secret(data=data)) == SecretSeen(make.TOKEN, make.PEPPER, None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"type": "Opaque"}, "is not of the type kvquota.dev/pool", id="another type"),
        pytest.param({"type": ABSENT}, "is not of the type kvquota.dev/pool", id="no type"),
        pytest.param({"data": ABSENT}, "lacks token or pepper", id="no data"),
        pytest.param({"data__token": 5}, "lacks token or pepper", id="a token that is no text"),
        pytest.param({"data__token": "*"}, "lacks token or pepper", id="a token that is no base64"),
        pytest.param({"data__pepper": "/w=="}, "lacks token or pepper", id="a pepper that is no text"),
        pytest.param({"data__pepper": in_base64("short")}, "lacks token or pepper", id="a pepper that is short"),
    ],
)
def test_a_secret_that_is_not_read(changes, reason):
    found = secret_from(stored_secret(**changes))
    assert isinstance(found, Unreadable)
    assert reason in found.reason
