"""The operator killed, or away: from its chart, with two replicas, on a real node with injected pods."""

import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from injected_pods import (
    ADMIN_PORT,
    ENGINE,
    HOME,
    NAMESPACE,
    OPEN_POOL,
    OPERATOR,
    OPERATOR_PORT,
    SIDECAR,
    Installed,
    deployment,
    failures,
    fetched,
    open_pool,
)
from node_path import Object, without_operator
from testcluster.node import Node
from testcluster.processes import wait_until
from testcluster.programs import ProgramError
from wholepath import BATCH, SEARCH, eventually, gauge

pytestmark = pytest.mark.node

FAILOVER_S = 15.0


def lease_holder(node: Node) -> str:
    """The pod of the leader."""
    holder = node.kubectl("get", "lease", OPERATOR, "-n", HOME, "-o", "jsonpath={.spec.holderIdentity}")
    return holder.rpartition("_")[0]


def replicas(node: Node) -> list[Object]:
    found: list[Object] = json.loads(node.kubectl("get", "pods", "-n", HOME, "-o", "json"))["items"]
    return found


def leading(node: Node) -> dict[str, bool | None]:
    """What each replica says of itself; None where it says nothing."""

    def says(pod: Object) -> bool | None:
        try:
            told = fetched(node, pod["status"]["podIP"], OPERATOR_PORT, "/metrics")
        except (OSError, KeyError, http.client.HTTPException):
            return None
        return gauge(told, "kvquota_operator_leader") == 1

    return {pod["metadata"]["name"]: says(pod) for pod in replicas(node)}


@contextmanager
def nobody_leading(node: Node) -> Iterator[None]:
    """One that does not write any more holds the Lease: the replicas answer the webhook, and none of them leads."""

    def say(**spec: Any) -> None:
        node.kubectl("patch", "lease", OPERATOR, "-n", HOME, "--type=merge", "-p", json.dumps({"spec": spec}))

    say(holderIdentity="gone", leaseDurationSeconds=60)
    try:
        eventually("nobody leads", lambda: list(leading(node).values()) == [False, False])
        yield
    finally:
        say(holderIdentity="")


def test_a_killed_leader_is_followed_within_15_seconds(installed: Installed) -> None:
    node = installed.node
    eventually("one of two leads", lambda: sorted(leading(node).values(), key=str) == [False, True])
    leader, address = lease_holder(node), installed.addresses()[0]
    restarts = node.container(leader, "operator", HOME)["restartCount"]
    with (
        installed.clients(1) as clients,
        ThreadPoolExecutor(1) as reading,
        installed.stream(address, SEARCH, prompt=8, limit=7500) as stream,
    ):
        rest = reading.submit(stream.read)
        began = time.monotonic()
        node.kill_container(leader, "operator", HOME)
        installed.set_hard(BATCH, 512)
        assert wait_until(lambda: lease_holder(node) not in ("", leader), timeout_s=FAILOVER_S)
        led_s = time.monotonic() - began
        for each in installed.addresses():
            eventually("the edit is in force", lambda each=each: installed.refusal(each, BATCH, prompt=1000) != "")
        in_force_s = time.monotonic() - began
        text = rest.result(60).decode()
    print(f"another replica led after {led_s:.1f} s, the edit was in force everywhere after {in_force_s:.1f} s")  # noqa: T201
    assert led_s < FAILOVER_S
    assert (text.count("data: {") >= 7400, text.rstrip()[-12:]) == (True, "data: [DONE]")
    assert failures(clients) == []
    eventually("the killed one stands by", lambda: leading(node).get(leader) is False)
    assert node.container(leader, "operator", HOME)["restartCount"] == restarts + 1
    assert lease_holder(node) != leader
    installed.set_hard(BATCH, BATCH.hard)
    for each in installed.addresses():
        eventually("the old hard is in force", lambda each=each: installed.refusal(each, BATCH, prompt=1000) == "")


def test_a_pod_that_starts_again_while_the_operator_is_away_keeps_its_quota(installed: Installed) -> None:
    node, pod = installed.node, installed.pods()[1]
    name, address = pod["metadata"]["name"], pod["status"]["podIP"]
    node.kubectl("annotate", "pod", name, "-n", NAMESPACE, "--overwrite", "kubelet=look")  # now, not within 90 s
    eventually("the copy is on its disk", lambda: installed.report(address).in_force.source == "File")
    before = installed.report(address)
    with without_operator(node, HOME):
        counts = {each: node.container(name, each, NAMESPACE)["restartCount"] for each in (ENGINE, SIDECAR)}
        for each in counts:
            node.kill_container(name, each, NAMESPACE)
        for each, count in counts.items():
            eventually(
                f"{each} starts again",
                lambda each=each, count=count: node.container(name, each, NAMESPACE)["restartCount"] > count,
            )
        node.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "-n", NAMESPACE, "--timeout=60s")
        assert installed.complete(address, SEARCH, prompt=4).status == 200
        assert installed.refusal(address, BATCH, prompt=4000) == "request_exceeds_kv_quota"
        after = installed.report(address)
    assert (after.in_force, after.epoch == before.epoch) == (before.in_force, False)
    eventually("the operator is back", lambda: True in leading(node).values())


def test_a_pod_that_starts_before_it_has_a_config_obeys_the_failure_policy(installed: Installed) -> None:
    """It was let in by the webhook, and then there was nobody who would have written its config."""
    node = installed.node
    installed.apply(*open_pool())
    eventually("there is a plan", lambda: installed.conditions(name=OPEN_POOL).get("PlanValid") == "True Planned")
    with nobody_leading(node):
        installed.apply(deployment("early", replicas=1), deployment("early-open", replicas=1, app=OPEN_POOL))
        eventually("they are let in", lambda: all(installed.pods(each) for each in ("early", "early-open")))
        with without_operator(node, HOME):
            _both_have_started(installed)
            closed, opened = (_address(installed, each) for each in ("early", "early-open"))
            _refuses_as_closed(installed, closed)
            _passes_as_open(installed, opened)
    for each in ("early", "early-open"):
        installed.wait_for(each)
        address = _address(installed, each)
        eventually(
            "its quota is in force",
            lambda address=address: installed.refusal(address, BATCH, prompt=4000) == "request_exceeds_kv_quota",
        )
        assert _config_map(installed, each) != ""
    node.kubectl("delete", "deployment", "early", "early-open", "-n", NAMESPACE)
    node.kubectl("delete", "tq/open", f"kvmp/{OPEN_POOL}", "-n", NAMESPACE)


def _both_have_started(installed: Installed) -> None:
    for each in ("early", "early-open"):
        pod = installed.pods(each)[0]["metadata"]["name"]
        started = "jsonpath={.status.containerStatuses[0].started}=true"
        installed.node.kubectl("wait", f"--for={started}", f"pod/{pod}", "-n", NAMESPACE, "--timeout=60s")
        assert _config_map(installed, each) == ""


def _address(installed: Installed, name: str) -> str:
    return str(installed.pods(name)[0]["status"]["podIP"])


def _config_map(installed: Installed, name: str) -> str:
    """The durable copy of the only pod of a Deployment, as kubectl names it; "" where there is none."""
    [volume] = [each for each in installed.pods(name)[0]["spec"]["volumes"] if each["name"] == "kvquota-config"]
    wanted = ("get", "configmap", volume["configMap"]["name"], "-n", NAMESPACE)
    return installed.node.kubectl(*wanted, "--ignore-not-found", "--output=name")


def _refuses_as_closed(installed: Installed, address: str) -> None:
    assert installed.report(address).in_force.generation == 0
    answer = installed.complete(address, SEARCH, prompt=4)
    assert (answer.status, answer.body["error"]["code"]) == (503, "not_configured")
    assert int(answer.headers["retry-after"]) >= 1
    assert address not in installed.addresses()


def _passes_as_open(installed: Installed, address: str) -> None:
    for prompt in (4, 4000):
        assert installed.complete(address, BATCH, prompt=prompt).status == 200
    told = fetched(installed.node, address, ADMIN_PORT, "/metrics")
    assert gauge(told, "kvquota_passed_unconfigured_total") == 2


def test_while_the_operator_is_away_pods_that_ask_wait_for_it(installed: Installed) -> None:
    """The ReplicaSet says why, and tries again by itself. Who applies a pod is told; pods that do not ask come."""
    node = installed.node
    late = deployment("late", replicas=1)
    events = ("get", "events", "-n", NAMESPACE, "--field-selector=reason=FailedCreate", "-o", "jsonpath={..message}")
    with without_operator(node, HOME):
        installed.apply(late)
        eventually(
            "the ReplicaSet says why", lambda: 'failed calling webhook "inject.kvquota.dev"' in node.kubectl(*events)
        )
        assert installed.pods("late") == []
        template = late["spec"]["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"]}
        asking = {"name": "asks", "namespace": NAMESPACE, "labels": template["metadata"]["labels"]}
        with pytest.raises(ProgramError, match=r'failed calling webhook "inject\.kvquota\.dev"'):
            installed.apply({**pod, "metadata": asking})
        installed.apply({**pod, "metadata": {"name": "does-not-ask", "namespace": NAMESPACE}})
    installed.wait_for("late")
    assert [[each["name"] for each in pod["spec"]["initContainers"]] for pod in installed.pods("late")] == [[SIDECAR]]
    node.kubectl("delete", "deployment/late", "pod/does-not-ask", "-n", NAMESPACE, "--wait=false")
