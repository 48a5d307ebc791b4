"""Pods under quota by a label alone, on a real node: a Deployment as users have it, applied together with its pool."""

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from generated_workloads import NAMES as GENERATED
from generated_workloads import pool_spec, workload
from node_path import (
    MODEL,
    POOL,
    ROOT,
    SAFE,
    Answer,
    Door,
    Object,
    any_certificate,
    load_images,
    pool,
    without_operator,
)
from testcluster.helm import Helm
from testcluster.node.single_node import Node
from wholepath import BATCH, SEARCH, Tenant, api_key, documents, eventually, quota, usage_columns

pytestmark = pytest.mark.node

HOME, NAMESPACE, TAG = "injecting-system", "injected", "injected"


def deployment(name: str = POOL, replicas: int = 2) -> Object:
    """Without a word about sidecars but the label."""
    engine = {
        "name": "engine",
        "image": f"kvquota/fakeengine:{TAG}",
        "args": [
            *("--host", "0.0.0.0", "--port", "8000", "--model", MODEL),
            *("--kv-bytes-per-token", str(128 * 1024), "--decode-rate", "400", "--answer-tokens", "4"),
        ],
        "ports": [{"name": "http", "containerPort": 8000}],
        "startupProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1, "failureThreshold": 60},
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1},
        "livenessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 5},
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "100m", "memory": "128Mi"}},
        "securityContext": SAFE,
    }
    labels = {"app": POOL, "deployment": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas,
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": {**labels, "kvquota.dev/inject": "true"}},
                "spec": {"containers": [engine], "terminationGracePeriodSeconds": 40},
            },
        },
    }


@dataclass(frozen=True, slots=True)
class Installed:
    """The product on the node and a Deployment under quota; requests go to a pod's address, from outside the pod.

    `upgrade` installs the same once more.
    """

    node: Node
    upgrade: Callable[[], str]

    def pods(self, name: str = POOL) -> list[Object]:
        """Those that are not leaving."""
        found = self.node.kubectl("get", "pods", "-n", NAMESPACE, "-l", f"deployment={name}", "-o", "json")
        return [each for each in json.loads(found)["items"] if "deletionTimestamp" not in each["metadata"]]

    def addresses(self) -> list[str]:
        """Of the pods in the Service's slices, as clients see them."""
        found = self.node.kubectl("get", "endpointslices", "-n", NAMESPACE, "-o", "json")
        endpoints = [end for each in json.loads(found)["items"] for end in each.get("endpoints") or []]
        return [end["addresses"][0] for end in endpoints if end["conditions"]["ready"]]

    def complete(self, address: str, tenant: Tenant, *, prompt: int) -> Answer:
        return Door(self.node, address).send(tenant, "/v1/completions", {"prompt": [7] * prompt, "max_tokens": 4})

    def conditions(self, namespace: str = NAMESPACE) -> dict[str, str]:
        found = json.loads(self.node.kubectl("get", "kvmp", POOL, "-n", namespace, "-o", "json"))
        listed = found.get("status", {}).get("conditions", [])
        return {each["type"]: f"{each['status']} {each['reason']}" for each in listed}


@pytest.fixture(scope="module")
def installed(node: Node, helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    load_images(node, tmp_path_factory.mktemp("images"), TAG)
    served = [NAMESPACE, *GENERATED]
    for namespace in served:
        node.kubectl("create", "namespace", namespace)
    node.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    values = (f"image.tag={TAG}", f"webhook.sidecar.image.tag={TAG}", f"namespaces={{{','.join(served)}}}")
    release = ("injecting", "--kubeconfig", node.kubeconfig, "--namespace", HOME)
    sets = [part for value in values for part in ("--set", value)]
    chart = (*release, ROOT / "charts" / "kvquota", *sets, "--wait")
    helm("install", *chart, "--create-namespace")
    keys = [api_key(NAMESPACE, tenant) for tenant in (SEARCH, BATCH)]
    quotas = [quota(NAMESPACE, tenant, POOL) for tenant in (SEARCH, BATCH)]
    ports = [{"port": 80, "targetPort": "http"}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": POOL, "namespace": NAMESPACE}}
    service["spec"] = {"selector": {"app": POOL}, "ports": ports}
    node.kubectl("apply", "-f", "-", input=documents(pool(NAMESPACE), *keys, *quotas, service, deployment()))
    node.kubectl("rollout", "status", f"deployment/{POOL}", "-n", NAMESPACE, "--timeout=120s")
    yield Installed(node, lambda: helm("upgrade", *chart))
    helm("uninstall", *release)
    node.kubectl("delete", "namespace", *served, "--wait=false")


def test_pods_of_a_plain_deployment_are_under_quota(installed: Installed) -> None:
    pods = installed.pods()
    assert [[each["name"] for each in pod["spec"]["initContainers"]] for pod in pods] == [["kvquota"]] * 2
    assert [pod["status"]["qosClass"] for pod in pods] == ["Guaranteed"] * 2
    wanted = {"PlanValid": "True Planned", "PartitionApplied": "True Applied", "PodsGoverned": "True AllGoverned"}
    eventually("every condition is as it should be", lambda: wanted.items() <= installed.conditions().items())


def test_they_serve_refuse_and_report(installed: Installed) -> None:
    eventually("the Service has both pods", lambda: len(installed.addresses()) == 2)
    for address in installed.addresses():
        for tenant in (SEARCH, BATCH):
            eventually(
                f"{tenant.name} is served",
                lambda address=address, tenant=tenant: installed.complete(address, tenant, prompt=4).status == 200,
            )
        refusal = installed.complete(address, BATCH, prompt=4000)
        assert (refusal.status, refusal.body["error"]["code"]) == (400, "request_exceeds_kv_quota")
        with pytest.raises(OSError, match="refused"):
            installed.node.connect(address, 18000)

    def reported() -> bool:
        return int(usage_columns(installed.node, NAMESPACE)[BATCH.name]["REJECTED-10M"] or 0) >= 2

    eventually("kubectl shows the refusals", reported)


def test_each_pod_has_a_durable_copy_that_it_mounts(installed: Installed) -> None:
    names = {
        volume["configMap"]["name"]: pod["metadata"]["name"]
        for pod in installed.pods()
        for volume in pod["spec"]["volumes"]
        if volume["name"] == "kvquota-config"
    }
    found = json.loads(installed.node.kubectl("get", "configmaps", "-n", NAMESPACE, "-o", "json"))["items"]
    owners = {each["metadata"]["name"]: each["metadata"].get("ownerReferences") for each in found}
    assert {name: owners[name][0]["name"] for name in names} == names


def test_the_sidecar_has_no_credentials_of_kubernetes(installed: Installed) -> None:
    folder = "/var/run/secrets/kubernetes.io/serviceaccount"
    pod = installed.pods()[0]["metadata"]["name"]
    inside = ("exec", pod, "-n", NAMESPACE, "-c", "kvquota", "--", "python3", "-c")
    assert installed.node.kubectl(*inside, f"import os; print(os.listdir({folder!r}))").strip() == "[]"


@dataclass(eq=False)
class Client(threading.Thread):
    """Streams of about a second, one after the other, to whatever the Service had a moment ago."""

    installed: Installed
    stop: threading.Event
    ended: int = 0
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def run(self) -> None:
        while not self.stop.is_set():
            for address in self.installed.addresses():
                try:
                    self._stream(address)
                except (OSError, http.client.HTTPException) as error:
                    self.failures.append(repr(error))

    def _stream(self, address: str) -> None:
        body = {"prompt": [8] * 8, "max_tokens": 400, "ignore_eos": True, "stream": True}
        with Door(self.installed.node, address).answered(SEARCH, "/v1/completions", body) as answer:
            text = answer.read().decode()
        if answer.status != 200 or not text.rstrip().endswith("data: [DONE]"):
            self.failures.append(f"{answer.status}: {text[-200:]}")
        self.ended += 1


def test_a_rolling_restart_fails_no_request(installed: Installed) -> None:
    stop = threading.Event()
    clients = [Client(installed, stop) for _ in range(3)]
    for client in clients:
        client.start()
    try:
        installed.node.kubectl("rollout", "restart", f"deployment/{POOL}", "-n", NAMESPACE)
        installed.node.kubectl("rollout", "status", f"deployment/{POOL}", "-n", NAMESPACE, "--timeout=180s")
    finally:
        stop.set()
        for client in clients:
            client.join(60)
    assert [each for client in clients for each in client.failures] == []
    assert sum(client.ended for client in clients) >= 10


def test_an_upgrade_keeps_what_the_operator_has_made(installed: Installed) -> None:
    def made() -> tuple[str, str]:
        secret = installed.node.kubectl("get", "secret", "injecting-webhook", "-n", HOME, "-o", "jsonpath={.data}")
        bundle = "jsonpath={.webhooks[0].clientConfig.caBundle}"
        of = ("get", "mutatingwebhookconfiguration", f"{HOME}-injecting-webhook", "-o", bundle)
        return secret, installed.node.kubectl(*of)

    before = made()
    assert "ca.key" in before[0]
    installed.upgrade()
    assert made() == before


def test_while_the_operator_is_away_pods_that_ask_wait_for_it(installed: Installed) -> None:
    """The ReplicaSet says why, and tries again by itself."""
    node = installed.node
    events = ("get", "events", "-n", NAMESPACE, "--field-selector=reason=FailedCreate", "-o", "jsonpath={..message}")
    with without_operator(node, HOME):
        node.kubectl("apply", "-f", "-", input=documents(deployment("late", replicas=1)))
        eventually(
            "the ReplicaSet says why", lambda: 'failed calling webhook "inject.kvquota.dev"' in node.kubectl(*events)
        )
        assert installed.pods("late") == []
    node.kubectl("rollout", "status", "deployment/late", "-n", NAMESPACE, "--timeout=120s")
    assert [[each["name"] for each in pod["spec"]["initContainers"]] for pod in installed.pods("late")] == [["kvquota"]]
    node.kubectl("delete", "deployment", "late", "-n", NAMESPACE)


REFUSED = {"vLLM": "request_exceeds_kv_quota", "LlamaCpp": "context_length_exceeded"}
"""What 5,000 tokens of batch meet: its hard of 2,048; in llama.cpp, where a request has a slot, the 4,096 of that."""

APPLIED = {"vLLM": "True Applied", "LlamaCpp": "Unknown NotMeasured"}
"""llama.cpp does not say how large its cache is."""


@pytest.mark.parametrize("name", GENERATED)
def test_what_other_projects_generate_starts_serves_refuses_and_reports(installed: Installed, name: str) -> None:
    node, spec = installed.node, pool_spec(name)
    model, port = spec["model"]["name"], spec["engine"].get("port", 8000)
    own = {**pool(name), "spec": spec}
    keys = [api_key(name, tenant) for tenant in (SEARCH, BATCH)]
    quotas = [quota(name, tenant, POOL) for tenant in (SEARCH, BATCH)]
    objects = workload(name, name, f"kvquota/fakeengine:{TAG}")
    node.kubectl("apply", "-f", "-", input=documents(own, *keys, *quotas, *objects))
    deployed = f"deployment/{objects[-1]['metadata']['name']}"
    node.kubectl("rollout", "status", deployed, "-n", name, "--timeout=120s")
    address = node.kubectl("get", "pods", "-n", name, "-o", "jsonpath={.items[0].status.podIP}")
    door = Door(node, address, port, any_certificate() if name.endswith("-tls") else None)

    def asked(tenant: Tenant, prompt: int) -> Answer:
        body = {"model": model, "prompt": [7] * prompt, "max_tokens": 4}
        return door.send(tenant, "/v1/completions", body)

    eventually("the tenant is served", lambda: asked(SEARCH, 4).status == 200)
    refusal = asked(BATCH, 5000)
    assert refusal.status == 400, refusal.body
    assert refusal.body["error"]["code"] == REFUSED[spec["engine"]["type"]]
    with pytest.raises(OSError, match="refused"):
        node.connect(address, 18000)
    wanted = {"PartitionApplied": APPLIED[spec["engine"]["type"]], "PodsGoverned": "True AllGoverned"}
    eventually("the conditions say so", lambda: wanted.items() <= installed.conditions(name).items())
    eventually("kubectl shows it", lambda: int(usage_columns(node, name)[BATCH.name]["REJECTED-10M"] or 0) >= 1)
    node.kubectl("delete", deployed, "-n", name, "--wait=false")
