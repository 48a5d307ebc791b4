"""The whole path on a real node: images built from the tree, helm, ConfigMap and Secret mounted by the kubelet."""

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testcluster import images
from testcluster.helm import Helm
from testcluster.node.single_node import Node
from testcluster.programs import ProgramError
from wholepath import BATCH, SEARCH, Tenant, api_key, documents, eventually, quota, usage_columns

pytestmark = pytest.mark.node

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "inference"
POOL = "llama"
POD = "llama-0"
CONFIG_MAP = "kvq-00112233445566778899aabbccddeeff"
TAG = "test"
BLOCKS = 1025  # 1,024 and the null block, of 16 tokens
RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
PROGRAMS = {  # image -> (locked packages, module)
    "operator": ("operator.lock", "kvquota_operator"),
    "sidecar": ("sidecar.lock", "kvquota_sidecar"),
    "fakeengine": ("operator.lock", "kvquota_fakeengine"),
}


def pool() -> dict[str, Any]:
    return {
        "apiVersion": "kvquota.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": POOL, "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": {"app": POOL}},
            "model": {"name": "llama-3.1-8b-instruct", "config": {"preset": "llama-3.1-8b"}, "maxModelLen": 8192},
            "engine": {"type": "vLLM", "version": "0.32", "blockSize": 16},
            "gpu": {"memory": "80Gi", "count": 1},
            "memory": {"kvPool": {"tokens": BLOCKS * 16}, "activation": "6Gi"},
        },
    }


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
        "ports": [{"name": "kvquota", "containerPort": 9600}],
        "startupProbe": {"httpGet": {"path": "/healthz", "port": 9600}, "periodSeconds": 1, "failureThreshold": 30},
        "resources": {"requests": {"cpu": "200m", "memory": "128Mi"}, "limits": {"cpu": "200m", "memory": "128Mi"}},
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
            *("--host", "127.0.0.1", "--port", "18000", "--model", "llama-3.1-8b-instruct"),
            *("--num-gpu-blocks-override", str(BLOCKS), "--block-size", "16", "--max-model-len", "8192"),
            *("--decode-rate", "2000"),
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
            "terminationGracePeriodSeconds": 20,
            "initContainers": [sidecar_container()],
            "containers": [engine_container()],
            "volumes": [
                {"name": "kvquota-config", "configMap": {"name": CONFIG_MAP, "optional": True}},
                {"name": "kvquota-identity", "secret": {"secretName": f"kvquota-{POOL}", "optional": True}},
            ],
        },
    }


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Installed:
    """The product on the node, with one pod under quota."""

    node: Node

    def ask(self, tenant: Tenant, *, limit: int, prompt: str = "hello") -> Answer:
        """One chat request to the pod's address, from outside the pod."""
        body = {"model": "llama-3.1-8b-instruct", "max_tokens": limit, "ignore_eos": True}
        messages = [{"role": "user", "content": prompt}]
        headers = {"Authorization": f"Bearer {tenant.key}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(self.node.pod_ip(POD, NAMESPACE), 8000, timeout=30)
        connection.sock = self.node.connect(self.node.pod_ip(POD, NAMESPACE), 8000)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps({**body, "messages": messages}), headers)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, json.loads(answer.read()))
        finally:
            connection.close()

    def set_hard(self, tenant: Tenant, tokens: int) -> None:
        self.node.kubectl("apply", "-f", "-", input=documents(quota(NAMESPACE, tenant, POOL, hard=tokens)))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    subprocess.run([*pip, ROOT], check=True, cwd=folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(node: Node, helm: Helm, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("images")
    for program, (lock, module) in PROGRAMS.items():
        reference = f"kvquota/{program}:{TAG}"
        entrypoint = ("python3", "-m", module)
        archive = images.python_image(
            folder, reference, lock=ROOT / "requirements" / lock, wheels=[wheel], entrypoint=entrypoint
        )
        node.load_image(archive, reference)
    release = ("kvquota", ROOT / "charts" / "kvquota", "--kubeconfig", node.kubeconfig)
    node.kubectl("create", "namespace", NAMESPACE)
    values = ("--set", f"image.tag={TAG}", "--set", f"namespaces={{{NAMESPACE}}}")
    helm("install", *release, *values, "--namespace", "kvquota-system", "--create-namespace", "--wait")
    node.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    keys = [api_key(NAMESPACE, tenant) for tenant in (SEARCH, BATCH)]
    quotas = [quota(NAMESPACE, tenant, POOL) for tenant in (SEARCH, BATCH)]
    node.kubectl("apply", "-f", "-", input=documents(pool(), *keys, *quotas))
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


def test_a_tenant_is_served_at_the_pods_own_address(installed: Installed) -> None:
    eventually("search is served", lambda: installed.ask(SEARCH, limit=4).status == 200)


def test_what_can_never_fit_is_refused_and_the_other_tenant_is_served(installed: Installed) -> None:
    eventually("batch is served", lambda: installed.ask(BATCH, limit=4).status == 200)
    refusal = installed.ask(BATCH, limit=4000)
    assert (refusal.status, refusal.body["error"]["code"]) == (400, "request_exceeds_kv_quota")
    assert installed.ask(SEARCH, limit=4).status == 200


def test_the_engine_is_not_reached_past_the_sidecar(installed: Installed) -> None:
    with pytest.raises(OSError, match="refused"):
        installed.node.connect(installed.node.pod_ip(POD, NAMESPACE), 18000)


def test_the_kubelet_mounted_the_durable_copy(installed: Installed) -> None:
    """The kubelet brings an untouched pod's ConfigMap within 90 s; the sidecar says which of both ways was first."""
    found = json.loads(installed.node.kubectl("get", "configmap", CONFIG_MAP, "-n", NAMESPACE, "-o", "json"))
    assert [owner["name"] for owner in found["metadata"]["ownerReferences"]] == [POD]
    read = (
        "exec",
        POD,
        "--namespace",
        NAMESPACE,
        "--container=kvquota",
        "--",
        "cat",
        "/etc/kvquota/config/config.json",
    )
    wanted = json.loads(found["data"]["config.json"])["generation"]
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if json.loads(installed.node.kubectl(*read))["generation"] >= wanted:
                return
        except ProgramError:
            pass
        time.sleep(1)
    raise AssertionError(f"the kubelet did not bring generation {wanted} within 120 s")


def test_a_lowered_hard_is_in_force_within_two_seconds(installed: Installed) -> None:
    """Of several tries the best counts: the bound is the product's, what the machine does beside it is not."""
    taken = []
    for _ in range(3):
        assert installed.ask(BATCH, limit=1000).status == 200
        installed.set_hard(BATCH, 512)
        began = time.monotonic()
        eventually("the lowered hard is in force", lambda: installed.ask(BATCH, limit=1000).status == 400)
        taken.append(time.monotonic() - began)
        installed.set_hard(BATCH, BATCH.hard)
        eventually("the raised hard is in force", lambda: installed.ask(BATCH, limit=1000).status == 200)
    assert min(taken) < 2.0, taken


def test_usage_comes_back_to_kubectl(installed: Installed) -> None:
    def counted() -> bool:
        rows = usage_columns(installed.node, NAMESPACE)
        return int(rows["batch"].get("REJECTED-10M") or 0) >= 1 and rows["search"]["HARD"] == "8192"

    eventually("kubectl get tq shows the refusals", counted)


def test_a_restarted_sidecar_enforces_from_its_disk_while_the_operator_is_away(installed: Installed) -> None:
    node = installed.node
    scale = ("scale", "deployment", "--all", "--namespace", "kvquota-system")
    node.kubectl(*scale, "--replicas=0")
    try:
        kill = ("exec", POD, "--namespace", NAMESPACE, "--container=kvquota", "--")
        node.kubectl(*kill, "python3", "-c", "import os, signal; os.kill(1, signal.SIGTERM)")
        restarts = "--output=jsonpath={.status.initContainerStatuses[0].restartCount}"
        count = ("get", "pod", POD, "--namespace", NAMESPACE, restarts)
        eventually("the sidecar was restarted", lambda: node.kubectl(*count) == "1")

        def refuses() -> bool:
            try:
                return installed.ask(BATCH, limit=4000).body["error"]["code"] == "request_exceeds_kv_quota"
            except (OSError, http.client.HTTPException, KeyError):
                return False

        eventually("the restarted sidecar enforces the same quota", refuses)
        assert installed.ask(SEARCH, limit=4).status == 200
    finally:
        node.kubectl(*scale, "--replicas=1")
