"""Pods that come before their pool has all that they need: in one `kubectl apply`, right after `helm install`."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from injected_pods import OPEN_POOL, Installed, deployment, installation, open_pool
from node_path import POOL, Object
from testcluster.helm import Helm
from testcluster.node import Node

pytestmark = pytest.mark.node

NAMESPACE = RELEASE = "early"
SECOND_LOOK_S = 60.0  # after which the kubelet asks again for a Secret that was not there, at the earliest
TRIES = 30  # one a second, until a leader is there (10 s) and has made the Secret


@pytest.fixture(scope="module")
def early(node: Node, helm: Helm, product: None) -> Iterator[Installed]:
    with installation(node, helm, RELEASE, (NAMESPACE,)) as found:
        yield found


def test_what_is_applied_at_once_right_after_helm_install_is_ready_at_the_kubelets_first_look(early: Installed) -> None:
    """No replica leads yet: the pods wait for the pool's Secret before they are let in, and not behind the kubelet."""
    pods, secret = early.pods(), _made(early.node, "secret", f"kvquota-{POOL}")
    waited = [(_made(early.node, "pod", each["metadata"]["name"]) - secret).total_seconds() for each in pods]
    ready = [_ready_s(each) for each in pods]
    tries = _refused(early.node, POOL)
    print(f"{tries} tries; pods made {waited} s after their pool's Secret, ready {ready} s later")  # noqa: T201
    assert min(waited) >= 0
    assert max(ready) < SECOND_LOOK_S
    assert tries <= TRIES


def test_a_pool_and_its_pods_in_one_apply_are_no_error_for_kubectl(early: Installed) -> None:
    """Also not of a pod that nobody would make again: kubectl waits as it is told, and tries again."""
    made = deployment(OPEN_POOL, 1, OPEN_POOL, NAMESPACE)
    template = made["spec"]["template"]
    metadata = {**template["metadata"], "name": "alone", "namespace": NAMESPACE}
    alone = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    early.apply(*open_pool(NAMESPACE), alone, made)
    early.wait_for(OPEN_POOL)
    early.node.kubectl("wait", "--for=condition=Ready", "pod/alone", "-n", NAMESPACE, "--timeout=60s")
    pods, secret = early.pods(OPEN_POOL), _made(early.node, "secret", f"kvquota-{OPEN_POOL}")
    assert len(pods) == 2
    assert all([each["name"] for each in pod["spec"]["initContainers"]] == ["kvquota"] for pod in pods)
    assert all(_made(early.node, "pod", pod["metadata"]["name"]) >= secret for pod in pods)
    tries = _refused(early.node, OPEN_POOL)
    print(f"{tries} tries, ready after {[_ready_s(each) for each in pods]} s")  # noqa: T201
    assert tries <= TRIES


def _made(node: Node, kind: str, name: str) -> datetime:
    made = node.kubectl("get", kind, name, "-n", NAMESPACE, "-o", "jsonpath={.metadata.creationTimestamp}")
    return _time(made)


def _time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def _ready_s(pod: Object) -> float:
    """From a pod's making until it was ready, in seconds."""
    [ready] = [each for each in pod["status"]["conditions"] if each["type"] == "Ready"]
    assert ready["status"] == "True"
    return (_time(ready["lastTransitionTime"]) - _time(pod["metadata"]["creationTimestamp"])).total_seconds()


def _refused(node: Node, pool: str) -> int:
    """How often a pod of a pool had to try again."""
    told = node.kubectl("logs", "-n", f"{RELEASE}-system", "-l", f"app.kubernetes.io/instance={RELEASE}", "--tail=-1")
    events = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    sentence = f"ModelPool {pool} is new and its Secret"
    return sum(each.get("event") == "pod_refused" and sentence in json.dumps(each) for each in events)
