"""The pools deleted and the product uninstalled while its pods serve: from its chart, on a real node."""

import http.client
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from injected_pods import (
    ADMIN_PORT,
    ENGINE,
    OPEN_POOL,
    SIDECAR,
    Installed,
    deployment,
    fetched,
    installation,
    open_pool,
)
from node_path import POOL, Object, pool
from testcluster.helm import Helm
from testcluster.node import Node
from testcluster.programs import ProgramError
from wholepath import BATCH, SEARCH, eventually, gauge

pytestmark = pytest.mark.node

NAMESPACE = RELEASE = "leaving"
IDENTITY = "/etc/kvquota/identity/identity.json"


@pytest.fixture(scope="module")
def leaving(node: Node, helm: Helm, product: None) -> Iterator[Installed]:
    """An installation of its own: two pods of a pool that is Closed, and one of a pool that is Open."""
    with installation(node, helm, RELEASE, (NAMESPACE,)) as found:
        found.apply(*open_pool(NAMESPACE), deployment(OPEN_POOL, 1, OPEN_POOL, NAMESPACE))
        found.wait_for(OPEN_POOL)
        yield found


def test_a_pool_that_comes_back_governs_its_pods_again(leaving: Installed) -> None:
    """Also the one whose sidecar started again meanwhile, and that the operator could not be let in by."""
    pods = leaving.pods()
    names, addresses = _names(pods), [each["status"]["podIP"] for each in pods]
    _until_on_disk(leaving, pods, [])
    leaving.node.kubectl("delete", "kvmp", POOL, "-n", NAMESPACE)
    for name in names:
        _until_forgotten(leaving.node, name)
    leaving.node.kill_container(names[1], SIDECAR, NAMESPACE)  # the other one below: a second time has to wait
    eventually("it serves by its policy", partial(_is_unconfigured, leaving, addresses[1]))
    _is_governed(leaving, addresses[0])
    leaving.apply(pool(NAMESPACE))
    secret = ("get", "secret", f"kvquota-{POOL}", "-n", NAMESPACE, "--ignore-not-found", "--output=name")
    eventually("the pool has a Secret again", lambda: leaving.node.kubectl(*secret) != "")
    for name, address in zip(names, addresses, strict=True):
        eventually("the operator is let in", partial(_lets_in, leaving, name, address))
        _is_governed(leaving, address)


def test_deleting_all_and_uninstalling_harms_nothing_that_runs(leaving: Installed) -> None:
    """What runs goes on by its last config; what starts again obeys its policy; what is rolled out is free."""
    closed, opened = leaving.pods(), leaving.pods(OPEN_POOL)
    pods, address = _names(closed, opened), closed[0]["status"]["podIP"]
    _until_on_disk(leaving, closed, opened)
    before = _containers(leaving.node, pods)
    with (
        ThreadPoolExecutor(1) as reading,
        leaving.stream(address, SEARCH, prompt=8, limit=7500) as stream,
    ):
        rest = reading.submit(stream.read)
        _delete_all(leaving)
        _is_governed(leaving, address)
        assert not rest.done()
        text = rest.result(60).decode()
    assert (text.count("data: {") >= 7400, text.rstrip()[-12:]) == (True, "data: [DONE]")
    for pod in pods:
        _until_forgotten(leaving.node, pod)
    assert _containers(leaving.node, pods) == before
    assert sorted(leaving.addresses()) == sorted(each["status"]["podIP"] for each in closed)
    _restarted_ones_obey_their_policy(leaving, closed, opened)
    _is_governed(leaving, closed[1]["status"]["podIP"])
    engines = {key: value for key, value in before.items() if key[1] == ENGINE}
    assert {key: value for key, value in _containers(leaving.node, pods).items() if key[1] == ENGINE} == engines
    _rolled_out_they_are_free(leaving)


def _lets_in(leaving: Installed, pod: str, address: str) -> bool:
    """Who has the token of the pool's Secret; and it knows who the clients are."""
    _look(leaving.node, pod)
    try:
        return leaving.report(address).in_force.identity_digest != ""
    except (OSError, http.client.HTTPException):
        return False


def _names(*pods: list[Object]) -> list[str]:
    return [each["metadata"]["name"] for some in pods for each in some]


def _containers(node: Node, pods: list[str]) -> dict[tuple[str, str], str]:
    """The runs of all containers, by pod and name."""
    return {
        (pod, each): node.container(pod, each, NAMESPACE)["containerID"] for pod in pods for each in (ENGINE, SIDECAR)
    }


def _until_on_disk(leaving: Installed, closed: list[Object], opened: list[Object]) -> None:
    """Until a restart would find config and identity."""
    for of, pods in ((POOL, closed), (OPEN_POOL, opened)):
        for pod in pods:
            _look(leaving.node, pod["metadata"]["name"])
            eventually("the copy is on its disk", partial(_is_on_disk, leaving, pod["status"]["podIP"], of))


def _is_on_disk(leaving: Installed, address: str, of: str) -> bool:
    return leaving.report(address, of).in_force.source == "File"


def _look(node: Node, pod: str) -> None:
    """Let the kubelet look at a pod now, not within 90 s."""
    node.kubectl("annotate", "pod", pod, "-n", NAMESPACE, "--overwrite", f"kubelet=look-{time.monotonic_ns()}")


def _delete_all(leaving: Installed) -> None:
    leaving.node.kubectl("delete", "kvmp,tq", "--all", "-n", NAMESPACE)
    leaving.uninstall()
    secrets = ("get", "secrets", "-n", NAMESPACE, "-l", "kvquota.dev/pool", "--output=name")
    eventually("the Secrets of the pools are collected", lambda: leaving.node.kubectl(*secrets) == "")


def _until_forgotten(node: Node, pod: str) -> None:
    """Until the kubelet has taken the identity from the pod's disk; the config stays."""

    def there(file: str) -> bool:
        try:
            node.kubectl("exec", pod, "-n", NAMESPACE, "-c", SIDECAR, "--", "python3", "-c", f"open({file!r})")
        except ProgramError:
            return False
        return True

    def forgotten() -> bool:
        _look(node, pod)  # each time: the Secret may be collected a moment later
        return not there(IDENTITY)

    eventually("the identity is gone from the disk", forgotten)
    assert there("/etc/kvquota/config/config.json")


def _is_governed(leaving: Installed, address: str) -> None:
    assert leaving.complete(address, SEARCH, prompt=4).status == 200
    assert leaving.refusal(address, BATCH, prompt=4000) == "request_exceeds_kv_quota"


def _restarted_ones_obey_their_policy(leaving: Installed, closed: list[Object], opened: list[Object]) -> None:
    for pod in (closed[0], opened[0]):
        leaving.node.kill_container(pod["metadata"]["name"], SIDECAR, NAMESPACE)
    for pod in (closed[0], opened[0]):
        address = pod["status"]["podIP"]
        eventually("it serves by its policy", partial(_is_unconfigured, leaving, address))
    answer = leaving.complete(closed[0]["status"]["podIP"], SEARCH, prompt=4)
    assert (answer.status, answer.body["error"]["code"]) == (503, "not_configured")
    eventually("it gets no traffic", lambda: leaving.addresses() == [closed[1]["status"]["podIP"]])
    address = opened[0]["status"]["podIP"]
    assert leaving.complete(address, BATCH, prompt=4000).status == 200
    assert gauge(fetched(leaving.node, address, ADMIN_PORT, "/metrics"), "kvquota_passed_unconfigured_total") == 1
    leaving.wait_for(OPEN_POOL)


def _is_unconfigured(leaving: Installed, address: str) -> bool:
    """Although it has found its config."""
    try:
        told = fetched(leaving.node, address, ADMIN_PORT, "/metrics")
    except (OSError, http.client.HTTPException):
        return False
    return gauge(told, "kvquota_configured") == 0 and gauge(told, "kvquota_config_generation") >= 1


def _rolled_out_they_are_free(leaving: Installed) -> None:
    """The label is still there, and nobody heeds it."""
    leaving.node.kubectl("rollout", "restart", f"deployment/{POOL}", "-n", NAMESPACE)
    leaving.wait_for()
    eventually("only new pods are left", lambda: not any("initContainers" in each["spec"] for each in leaving.pods()))
    for pod in leaving.pods():
        assert leaving.complete(pod["status"]["podIP"], BATCH, prompt=4000).status == 200
