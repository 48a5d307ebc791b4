"""Another version of the product under load: from its chart, with two replicas, on a real node with injected pods."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from injected_pods import HOME, SIDECAR, Installed, failures
from node_path import NEXT_TAG, POOL, TAG, Object
from testcluster.node import Node
from wholepath import BATCH, SEARCH, eventually, usage_columns

pytestmark = pytest.mark.node

LIMIT = 6800  # tokens of the one long stream; the clients beside it take up to 832 of the tenant's 8,192
GOVERNED = {"PlanValid": "True Planned", "PartitionApplied": "True Applied", "PodsGoverned": "True AllGoverned"}


def operators(node: Node) -> dict[str, str]:
    """The image of each replica that is not leaving, by its pod's uid."""
    found = json.loads(node.kubectl("get", "pods", "-n", HOME, "-o", "json"))["items"]
    staying = [each for each in found if "deletionTimestamp" not in each["metadata"]]
    return {each["metadata"]["uid"]: each["spec"]["containers"][0]["image"] for each in staying}


def sidecars(installed: Installed) -> dict[str, tuple[str, int]]:
    """Image and restarts of each pod's sidecar, by the pod's uid."""

    def of(pod: Object) -> tuple[str, int]:
        [container] = [each for each in pod["spec"]["initContainers"] if each["name"] == SIDECAR]
        [status] = [each for each in pod["status"]["initContainerStatuses"] if each["name"] == SIDECAR]
        return container["image"], status["restartCount"]

    return {pod["metadata"]["uid"]: of(pod) for pod in installed.pods()}


def test_an_upgrade_and_then_a_rollout_fail_no_request(installed: Installed) -> None:
    """Old pods stay as they are and are governed by the new operator; the rollout gives them the new sidecar."""
    node = installed.node
    before, old = operators(node), sidecars(installed)
    assert (set(before.values()), {image for image, _ in old.values()}) == (
        {f"kvquota/operator:{TAG}"},
        {f"kvquota/sidecar:{TAG}"},
    )
    with (
        installed.clients(2) as clients,
        ThreadPoolExecutor(1) as reading,
        installed.stream(installed.addresses()[0], SEARCH, prompt=8, limit=LIMIT) as stream,
    ):
        rest = reading.submit(stream.read)
        installed.upgrade(NEXT_TAG)
        eventually("only new operators are left", lambda: set(operators(node)).isdisjoint(before))
        assert list(operators(node).values()) == [f"kvquota/operator:{NEXT_TAG}"] * 2
        assert sidecars(installed) == old
        _governs(installed, 512)
        text = rest.result(60).decode()
        node.kubectl("rollout", "restart", f"deployment/{POOL}", "-n", installed.namespace)
        installed.wait_for()
        eventually("only new pods are left", lambda: set(sidecars(installed)).isdisjoint(old))
    assert (text.count("data: {") >= LIMIT - 100, text.rstrip()[-12:]) == (True, "data: [DONE]")
    assert failures(clients) == []
    assert sum(client.ended for client in clients) >= 10
    assert list(sidecars(installed).values()) == [(f"kvquota/sidecar:{NEXT_TAG}", 0)] * 2
    _governs(installed, BATCH.hard)


def test_the_version_before_takes_over_again_without_a_failure(installed: Installed) -> None:
    """A rollback by helm: the older operator governs the newer pods."""
    installed.upgrade(NEXT_TAG)
    before, newer = operators(installed.node), sidecars(installed)
    with installed.clients(2) as clients:
        installed.upgrade(TAG)
        eventually("only old operators are left", lambda: set(operators(installed.node)).isdisjoint(before))
        _governs(installed, 512)
        _governs(installed, BATCH.hard)
    assert failures(clients) == []
    assert sidecars(installed) == newer


def _governs(installed: Installed, hard: int) -> None:
    """Whoever leads puts an edit into force in every pod, refuses by it, and says so."""
    installed.set_hard(BATCH, hard)
    for each in installed.addresses():
        eventually("it is refused", partial(_refuses, installed, each, hard + 512))
        eventually("what fits is served", lambda each=each: installed.complete(each, BATCH, prompt=4).status == 200)
    eventually("the conditions are right", lambda: GOVERNED.items() <= installed.conditions().items())
    eventually("kubectl shows it", partial(_shows, installed, hard))


def _refuses(installed: Installed, address: str, prompt: int) -> bool:
    return installed.refusal(address, BATCH, prompt=prompt) == "request_exceeds_kv_quota"


def _shows(installed: Installed, hard: int) -> bool:
    return usage_columns(installed.node, installed.namespace)[BATCH.name]["HARD"] == str(hard)
