"""The whole path on a real node: images built from the tree, helm, ConfigMap and Secret mounted by the kubelet."""

import contextlib
import http.client
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from node_path import BLOCKS, MODEL, POOL, ROOT, SAFE, TAG, Answer, Door, pool, without_operator
from testcluster.helm import Helm
from testcluster.node.single_node import Node
from testcluster.processes import wait_until
from testcluster.programs import ProgramError
from wholepath import BATCH, SEARCH, Tenant, api_key, documents, eventually, quota, usage_columns

pytestmark = pytest.mark.node

NAMESPACE, HOME = "inference", "kvquota-system"
POD = "llama-0"
CONFIG_MAP = "kvq-00112233445566778899aabbccddeeff"
KUBELET_S = 120.0  # an untouched pod sees a changed ConfigMap after up to 90 s
RESTRICTED = {**SAFE, "readOnlyRootFilesystem": True}


def sidecar_container() -> dict[str, Any]:
    """As docs/how-to/put-a-pod-under-quota.md says."""
    return {
        "name": "kvquota",
        "image": f"kvquota/sidecar:{TAG}",
        "restartPolicy": "Always",
        "args": [
            *("--listen", "0.0.0.0:8000", "--engine", "http://127.0.0.1:18000", "--admin", "0.0.0.0:9600"),
            *("--config", "/etc/kvquota/config/config.json", "--identity", "/etc/kvquota/identity"),
        ],
        "env": [
            {"name": "KVQUOTA_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            {"name": "KVQUOTA_NODE_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
            {"name": "KVQUOTA_DRAIN_SECONDS", "value": "15"},
        ],
        "ports": [{"name": "kvquota", "containerPort": 9600}],
        "startupProbe": {"httpGet": {"path": "/healthz", "port": 9600}, "periodSeconds": 1, "failureThreshold": 30},
        "resources": {"requests": {"cpu": "200m", "memory": "256Mi"}, "limits": {"cpu": "200m", "memory": "256Mi"}},
        "securityContext": RESTRICTED,
        "volumeMounts": [
            {"name": "kvquota-config", "mountPath": "/etc/kvquota/config", "readOnly": True},
            {"name": "kvquota-identity", "mountPath": "/etc/kvquota/identity", "readOnly": True},
        ],
    }


def engine_container() -> dict[str, Any]:
    return {
        "name": "vllm",
        "image": f"kvquota/fakeengine:{TAG}",
        "args": [
            *("--host", "127.0.0.1", "--port", "18000", "--model", MODEL),
            *("--num-gpu-blocks-override", str(BLOCKS), "--block-size", "16", "--max-model-len", "8192"),
            *("--decode-rate", "400", "--answer-tokens", "4"),
        ],
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1},
        "livenessProbe": {"httpGet": {"path": "/engine/health", "port": 9600}, "periodSeconds": 5},
        "lifecycle": {"preStop": {"httpGet": {"path": "/drain/wait", "port": 9600}}},
        "resources": {"requests": {"cpu": "200m", "memory": "128Mi"}, "limits": {"cpu": "200m", "memory": "128Mi"}},
        "securityContext": RESTRICTED,
    }


def pod() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD, "namespace": NAMESPACE, "labels": {"app": POOL}},
        "spec": {
            "terminationGracePeriodSeconds": 25,
            "initContainers": [sidecar_container()],
            "containers": [engine_container()],
            "volumes": [
                {"name": "kvquota-config", "configMap": {"name": CONFIG_MAP, "optional": True}},
                {"name": "kvquota-identity", "secret": {"secretName": f"kvquota-{POOL}", "optional": True}},
            ],
        },
    }


@dataclass(frozen=True, slots=True)
class Installed:
    """The product on the node, with one pod under quota; requests go to the pod's address, from outside the pod."""

    node: Node

    def ask(self, tenant: Tenant, *, limit: int) -> Answer:
        """A chat request that the engine answers in a few tokens, whatever the limit."""
        return self.send(
            tenant, "/v1/chat/completions", messages=[{"role": "user", "content": "hello"}], max_tokens=limit
        )

    def complete(self, tenant: Tenant, *, prompt: int) -> Answer:
        """A completion of a prompt of exactly `prompt` tokens."""
        return self.send(tenant, "/v1/completions", prompt=[7] * prompt, max_tokens=4)

    def send(self, tenant: Tenant, path: str, **body: Any) -> Answer:
        return self.door.send(tenant, path, body)

    @contextlib.contextmanager
    def stream(self, tenant: Tenant, *, prompt: int, limit: int) -> Iterator[http.client.HTTPResponse]:
        """A stream of `limit` tokens that has begun."""
        body = {"prompt": [8] * prompt, "max_tokens": limit, "ignore_eos": True, "stream": True}
        with self.door.answered(tenant, "/v1/completions", body) as answer:
            assert answer.status == 200, answer.read()
            assert answer.readline().startswith(b"data: ")
            yield answer

    @property
    def door(self) -> Door:
        return Door(self.node, self.node.pod_ip(POD, NAMESPACE))

    def columns(self, tenant: Tenant) -> dict[str, str]:
        return usage_columns(self.node, NAMESPACE)[tenant.name]

    def is_idle(self, tenant: Tenant) -> bool:
        row = self.columns(tenant)
        return (row["USED"], row["INFLIGHT"]) == ("0", "0")

    def set_hard(self, tenant: Tenant, tokens: int) -> None:
        self.node.kubectl("apply", "-f", "-", input=documents(quota(NAMESPACE, tenant, POOL, hard=tokens)))


@pytest.fixture(scope="module")
def installed(node: Node, helm: Helm, product: None) -> Iterator[Installed]:
    release = ("kvquota", ROOT / "charts" / "kvquota", "--kubeconfig", node.kubeconfig)
    node.kubectl("create", "namespace", NAMESPACE)
    values = ("--set", f"image.tag={TAG}", "--set", f"namespaces={{{NAMESPACE}}}")
    helm("install", *release, *values, "--namespace", HOME, "--create-namespace", "--wait")
    node.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    keys = [api_key(NAMESPACE, tenant) for tenant in (SEARCH, BATCH)]
    quotas = [quota(NAMESPACE, tenant, POOL) for tenant in (SEARCH, BATCH)]
    node.kubectl("apply", "-f", "-", input=documents(pool(NAMESPACE), *keys, *quotas))
    secret = ("get", "secret", f"kvquota-{POOL}", "--namespace", NAMESPACE, "--ignore-not-found", "--output=name")
    eventually("the pool has its Secret", lambda: node.kubectl(*secret) != "")
    eventually("the default account exists", lambda: _applied(node, pod()))
    node.kubectl("wait", "--for=condition=Ready", f"pod/{POD}", "--namespace", NAMESPACE, "--timeout=60s")
    yield Installed(node)
    node.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def _applied(node: Node, found: Mapping[str, Any]) -> bool:
    try:
        node.kubectl("apply", "-f", "-", input=documents(found))
    except ProgramError:
        return False
    return True


def test_from_apply_to_refusal_to_kubectl(installed: Installed) -> None:
    """The story in one: two tenants are served, one passes its hard and is refused, the other is not; kubectl tells."""
    for tenant in (SEARCH, BATCH):
        eventually(f"{tenant.name} is served", lambda tenant=tenant: installed.ask(tenant, limit=4).status == 200)
    with installed.stream(BATCH, prompt=1000, limit=900):
        refusal = installed.complete(BATCH, prompt=1500)
        assert (refusal.status, refusal.body["error"]["code"]) == (429, "tenant_kv_quota_exceeded")
        assert 1 <= int(refusal.headers["retry-after"]) <= 60
        assert "Shorten the input by about" in refusal.body["error"]["message"]
        assert installed.complete(SEARCH, prompt=1500).status == 200
    with installed.stream(SEARCH, prompt=1000, limit=6000):
        eventually("kubectl shows what runs", lambda: int(installed.columns(SEARCH)["USED"] or 0) >= 1000)
        assert installed.columns(SEARCH)["INFLIGHT"] == "1"
    for tenant in (SEARCH, BATCH):
        eventually(f"kubectl shows that nothing of {tenant.name} runs", lambda tenant=tenant: installed.is_idle(tenant))
    eventually("kubectl shows the refusal", lambda: int(installed.columns(BATCH)["REJECTED-10M"] or 0) >= 1)
    shown = {tenant.name: installed.columns(tenant) for tenant in (SEARCH, BATCH)}
    assert {name: (row["SOFT"], row["HARD"], row["USED"]) for name, row in shown.items()} == {
        "search": ("4096", "8192", "0"),
        "batch": ("0", "2048", "0"),
    }


def test_what_can_never_fit_is_refused_for_good(installed: Installed) -> None:
    refusal = installed.ask(BATCH, limit=4000)
    assert (refusal.status, refusal.body["error"]["code"]) == (400, "request_exceeds_kv_quota")
    assert "retry-after" not in refusal.headers


def test_the_engine_is_not_reached_past_the_sidecar(installed: Installed) -> None:
    with pytest.raises(OSError, match="refused"):
        installed.node.connect(installed.node.pod_ip(POD, NAMESPACE), 18000)


def test_the_kubelet_mounts_the_durable_copy(installed: Installed) -> None:
    """The kubelet brings the ConfigMap of an untouched pod within 90 s."""
    found = json.loads(installed.node.kubectl("get", "configmap", CONFIG_MAP, "-n", NAMESPACE, "-o", "json"))
    assert [owner["name"] for owner in found["metadata"]["ownerReferences"]] == [POD]
    wanted = json.loads(found["data"]["config.json"])["generation"]
    in_sidecar = ("exec", POD, "--namespace", NAMESPACE, "--container=kvquota", "--")

    def mounted() -> bool:
        try:
            config = json.loads(installed.node.kubectl(*in_sidecar, "cat", "/etc/kvquota/config/config.json"))
        except ProgramError:
            return False
        return bool(config["generation"] >= wanted)

    assert wait_until(mounted, timeout_s=KUBELET_S, poll_s=1.0), f"no generation {wanted} within {KUBELET_S:.0f} s"


def test_a_lowered_hard_is_in_force_within_two_seconds_of_kubectl_apply(installed: Installed) -> None:
    """The clock starts before kubectl does; of three tries the middle one counts."""
    taken = []
    for _ in range(3):
        assert installed.ask(BATCH, limit=1000).status == 200
        began = time.monotonic()
        installed.set_hard(BATCH, 512)
        eventually("the lowered hard is in force", lambda: installed.ask(BATCH, limit=1000).status == 400)
        taken.append(time.monotonic() - began)
        installed.set_hard(BATCH, BATCH.hard)
        eventually("the raised hard is in force", lambda: installed.ask(BATCH, limit=1000).status == 200)
    assert sorted(taken)[1] < 2.0, taken


def test_a_restarted_sidecar_enforces_from_its_disk_while_the_operator_is_away(installed: Installed) -> None:
    node = installed.node
    with without_operator(node, HOME):
        kill = ("exec", POD, "--namespace", NAMESPACE, "--container=kvquota", "--")
        node.kubectl(*kill, "python3", "-c", "import os, signal; os.kill(1, signal.SIGTERM)")
        restarts = "--output=jsonpath={.status.initContainerStatuses[0].restartCount}"
        count = ("get", "pod", POD, "--namespace", NAMESPACE, restarts)
        eventually("the sidecar was restarted", lambda: node.kubectl(*count) == "1")

        def refuses() -> bool:
            try:
                return bool(installed.ask(BATCH, limit=4000).body["error"]["code"] == "request_exceeds_kv_quota")
            except (OSError, http.client.HTTPException, KeyError):
                return False

        eventually("the restarted sidecar enforces the same quota", refuses)
        assert installed.ask(SEARCH, limit=4).status == 200


def test_a_pod_that_leaves_lets_its_stream_end(installed: Installed) -> None:
    """Last: it ends the pod. The engine's hook waits in the sidecar until nothing runs any more."""
    with installed.stream(SEARCH, prompt=10, limit=1600) as stream:
        installed.node.kubectl("delete", "pod", POD, "--namespace", NAMESPACE, "--wait=false")
        rest = stream.read().decode()
    assert rest.rstrip().endswith("data: [DONE]")
    assert rest.count("data: {") >= 1500
