"""Pods under quota by a label, on a real API server: the operator as a process, with the rights of its chart."""

import base64
import contextlib
import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from kvquota_operator.adapters.authority import Lifetimes, next_authority
from meddling_webhook import meddling
from operator_world import install_crds, pool
from testcluster.access import write_kubeconfig
from testcluster.apiserver import ApiServer
from testcluster.helm import Helm
from testcluster.processes import free_port, tail, wait_until
from testcluster.programs import ProgramError

pytestmark = pytest.mark.apiserver

CHART = Path(__file__).parents[2] / "charts" / "kvquota"
MANIFESTS = Path(__file__).parents[1] / "data" / "manifests"
SERVED, HOME, OTHER = "inference", "kvquota-system", "other"
CONFIGURATION = "kvquota-system-kvquota-webhook"
RIGHTS = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
DEADLINE_S = 60.0
Object = dict[str, Any]


@dataclass
class Installed:
    """An API server with the chart in it; operators are processes, reached at an address and not by a Service."""

    server: ApiServer
    folder: Path
    port: int
    token: str
    logs: list[Path] = field(default_factory=list)

    def kubectl(self, *args: str | Path, namespace: str = SERVED, body: Object | None = None) -> str:
        text = None if body is None else json.dumps(body)
        return self.server.kubectl("--namespace", namespace, *args, input=text)

    @contextlib.contextmanager
    def operator(self, port: int = 0) -> Iterator[None]:
        """An operator that answers."""
        probes = free_port()
        kubeconfig = self.folder / "kubeconfig"
        write_kubeconfig(kubeconfig, url=self.server.url, ca=self.server.ca, token=self.token)
        command = [
            *(sys.executable, "-m", "kvquota_operator", f"--namespace={SERVED}", "--kubeconfig", kubeconfig),
            *(f"--listen=127.0.0.1:{probes}", f"--webhook-listen=127.0.0.1:{port or self.port}"),
            *(f"--webhook-service={HOME}/kvquota-webhook", "--sidecar-image=kvquota/sidecar:test"),
        ]
        log = self.folder / f"operator-{len(self.logs)}.log"
        self.logs.append(log)
        with log.open("wb") as output:
            running = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, "PYTHONWARNINGS": "error"}
            )
            try:
                self.eventually("the operator is ready", lambda: _ready(probes))
                yield
                assert running.poll() is None, tail(log)
            finally:
                running.terminate()
                running.wait(DEADLINE_S)

    def eventually(self, what: str, happened: Callable[[], bool]) -> None:
        if not wait_until(happened, timeout_s=DEADLINE_S, poll_s=0.1):
            raise AssertionError("\n".join([f"not within {DEADLINE_S:.0f} s: {what}", *map(tail, self.logs[-1:])]))

    def create(self, body: Object, *args: str, namespace: str = SERVED) -> Object:
        """The pod as it is stored, or would be."""
        created: Object = json.loads(
            self.kubectl("create", "-f", "-", "-o", "json", *args, namespace=namespace, body=body)
        )
        return created

    def refusal(self, body: Object) -> str:
        """What kubectl says instead of creating it."""
        with pytest.raises(ProgramError) as refused:
            self.create(body)
        return refused.value.output

    def configuration(self) -> Object:
        found: Object = json.loads(self.kubectl("get", "mutatingwebhookconfiguration", CONFIGURATION, "-o", "json"))
        return found


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def installed(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    with ApiServer() as server:
        install_crds(server)
        for namespace in (SERVED, HOME, OTHER):
            server.create_namespace(namespace)
        port = free_port()
        for manifest in rendered(helm):
            if manifest["kind"] in RIGHTS or manifest["kind"] == "Secret":
                server.kubectl("apply", "-f", "-", input=yaml.safe_dump(manifest))
            if manifest["kind"] == "MutatingWebhookConfiguration":
                manifest["webhooks"][0]["clientConfig"] = {"url": f"https://127.0.0.1:{port}/inject"}
                server.kubectl("apply", "-f", "-", input=yaml.safe_dump(manifest))
        server.kubectl("apply", "--namespace", SERVED, "-f", "-", input=yaml.safe_dump(pool()))
        token = server.kubectl("create", "token", "kvquota-operator", "--namespace", HOME).strip()
        yield Installed(server, tmp_path_factory.mktemp("operator"), port, token)


def rendered(helm: Helm) -> list[Object]:
    text = helm("template", "kvquota", CHART, "--namespace", HOME, "--set", f"namespaces={{{SERVED}}}")
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


@pytest.fixture(scope="module")
def serving(installed: Installed) -> Iterator[Installed]:
    with installed.operator():
        yield installed


def pod(*, app: str = "llama", asks: bool = True, **spec: Any) -> Object:
    labels = {"app": app} | ({"kvquota.dev/inject": "true"} if asks else {})
    engine = {"name": "vllm", "image": "vllm", "command": ["vllm", "serve", "m"], "args": ["--port", "8000"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "llama-", "labels": labels},
        "spec": {"containers": [engine], **spec},
    }


def sidecars(stored: Object) -> list[str]:
    return [each["name"] for each in stored["spec"].get("initContainers") or []]


def test_a_pod_that_asks_is_stored_with_its_sidecar(serving: Installed) -> None:
    stored = serving.create(pod())
    [engine], [sidecar] = stored["spec"]["containers"], stored["spec"]["initContainers"]
    assert engine["args"][2:6] == ["--host", "127.0.0.1", "--port", "18000"]
    assert engine["lifecycle"]["preStop"]["httpGet"]["path"] == "/drain/wait"
    assert (sidecar["image"], sidecar["restartPolicy"]) == ("kvquota/sidecar:test", "Always")
    assert stored["metadata"]["annotations"]["kvquota.dev/injected"].startswith("llama/")


def test_two_pods_of_one_template_mount_configs_of_their_own(serving: Installed) -> None:
    volumes = [each for _ in range(2) for each in serving.create(pod())["spec"]["volumes"]]
    names = {each["configMap"]["name"] for each in volumes if each["name"] == "kvquota-config"}
    assert len(names) == 2


def test_the_sidecar_gets_no_credentials_of_kubernetes_and_the_engine_keeps_its_own(serving: Installed) -> None:
    """The API server adds the account's token to every container that has nothing at its place."""
    stored = serving.create(pod())
    at = "/var/run/secrets/kubernetes.io/serviceaccount"
    [engine], [sidecar] = stored["spec"]["containers"], stored["spec"]["initContainers"]
    mounts = [{each["mountPath"]: each["name"] for each in found["volumeMounts"]}[at] for found in (engine, sidecar)]
    assert mounts[0].startswith("kube-api-access-")
    assert mounts[1] == "kvquota-no-credentials"


@pytest.mark.parametrize(
    ("body", "namespace"),
    [
        pytest.param({"asks": False}, SERVED, id="a pod without the label"),
        pytest.param({"app": "other"}, SERVED, id="a pod that no pool selects"),
        pytest.param({}, OTHER, id="a pod of a namespace that is not served"),
    ],
)
def test_others_are_stored_as_they_are(serving: Installed, body: Object, namespace: str) -> None:
    stored = serving.create(pod(**body), namespace=namespace)
    assert sidecars(stored) == []
    assert stored["spec"]["containers"][0]["args"] == ["--port", "8000"]
    assert "annotations" not in stored["metadata"]


def test_whoever_creates_a_pod_that_no_pool_selects_is_told(serving: Installed) -> None:
    kubectl = [serving.server.access.kubectl_path, "--kubeconfig", serving.server.kubeconfig, "--namespace", SERVED]
    body = json.dumps(pod(app="other"))
    done = subprocess.run([*kubectl, "create", "-f", "-"], input=body, capture_output=True, text=True, check=True)
    assert done.stderr == (
        "Warning: no ModelPool of namespace inference selects this pod, so it is not under quota: make its labels match"
        " one\n"
    )


def test_a_dry_run_shows_what_would_be_stored_and_stores_nothing(serving: Installed) -> None:
    named = pod()
    named["metadata"] = {"name": "only-asked", "labels": named["metadata"]["labels"]}
    assert sidecars(serving.create(named, "--dry-run=server")) == ["kvquota"]
    assert serving.kubectl("get", "pod", "only-asked", "--ignore-not-found") == ""


def test_a_pod_that_is_created_together_with_its_pool_is_not_missed(serving: Installed) -> None:
    """No time passes between the two: the pool is read for the question."""
    both = {"apiVersion": "v1", "kind": "List", "items": [pool("fresh"), pod(app="fresh")]}
    serving.kubectl("create", "-f", "-", body=both)
    [created] = json.loads(serving.kubectl("get", "pods", "-l", "app=fresh", "-o", "json"))["items"]
    assert created["metadata"]["annotations"]["kvquota.dev/injected"].startswith("fresh/")


def test_a_restricted_namespace_takes_the_sidecar(serving: Installed) -> None:
    serving.kubectl("label", "namespace", SERVED, "pod-security.kubernetes.io/enforce=restricted")
    try:
        safe = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        asked = pod(securityContext=safe)
        asked["spec"]["containers"][0]["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert sidecars(serving.create(asked)) == ["kvquota"]
    finally:
        serving.kubectl("label", "namespace", SERVED, "pod-security.kubernetes.io/enforce-")


def test_a_webhook_that_comes_after_ours_does_not_lead_the_engine_back_to_its_port(serving: Installed) -> None:
    """The API server asks ours again about what the other one made of the pod."""
    with meddling(["--port", "8000"], SERVED) as configuration:
        serving.kubectl("apply", "-f", "-", body=configuration)
        try:
            serving.eventually(
                "the other one is asked", lambda: _ports(serving.create(pod(asks=False))) == ["8000"] * 2
            )
            stored = serving.create(pod())
        finally:
            serving.kubectl("delete", "mutatingwebhookconfiguration", configuration["metadata"]["name"])
    assert _ports(stored) == ["8000", "18000", "8000", "18000"]
    assert sidecars(stored) == ["kvquota"]


def _ports(stored: Object) -> list[str]:
    args = stored["spec"]["containers"][0]["args"]
    return [args[at + 1] for at, word in enumerate(args) if word == "--port"]


@pytest.mark.parametrize(
    "name", ["plain-vllm", "production-stack", "kserve", "kserve-tls", "llmkube-vllm", "llmkube-llamacpp"]
)
def test_what_other_projects_generate_is_accepted(serving: Installed, name: str) -> None:
    pools = yaml.safe_load((MANIFESTS / "pools.yaml").read_text())
    own = {**pool(name), "spec": pools[name]}
    template = yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text())["spec"]["template"]
    template["metadata"]["generateName"] = f"{name}-"
    expected = yaml.safe_load((MANIFESTS / "injected" / f"{name}.yaml").read_text())
    serving.kubectl("create", "-f", "-", body=own)
    try:
        stored = serving.create({"apiVersion": "v1", "kind": "Pod", **template})
    finally:
        serving.kubectl("delete", "modelpool", name)
    for found, wanted in zip(stored["spec"]["containers"], expected["spec"]["containers"], strict=True):
        assert found["args"] == wanted["args"]
    assert sidecars(stored) == sidecars(expected)
    assert stored["metadata"]["annotations"].items() >= expected["metadata"]["annotations"].items()


SHELL = {"command": ["sh", "-c", "vllm serve m --port 8000"]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param(
            {"containers": [{"name": "vllm", "image": "v", **SHELL}]},
            'admission webhook "inject.kvquota.dev" denied the request: container vllm runs a string in a shell, which'
            " would lose the arguments that kvquota appends: write command and args as a list (command: [vllm, serve],"
            ' args: [...]), or let the string end in "$@" and follow it with the word sh',
            id="a shell string",
        ),
        pytest.param(
            {"hostNetwork": True},
            'admission webhook "inject.kvquota.dev" denied the request: the pod uses the node\'s network (hostNetwork),'
            " where every program of the node reaches the engine past the sidecar: take hostNetwork out of the pod",
            id="the node's network",
        ),
        pytest.param(
            {"containers": [{"name": "vllm", "image": "v", "args": ["--port=80"]}]},
            'admission webhook "inject.kvquota.dev" denied the request: container vllm serves on port 80, and ModelPool'
            " llama says 8000: make spec.engine.port and --port the same, 1024 or higher",
            id="a port below 1024",
        ),
    ],
)
def test_what_kubectl_says_of_a_pod_that_cannot_be_put_under_quota(
    serving: Installed, changes: Object, says: str
) -> None:
    assert says in serving.refusal(pod(**changes))


def test_the_operator_may_write_no_other_secret_and_no_other_webhook(serving: Installed) -> None:
    account = f"--as=system:serviceaccount:{HOME}:kvquota-operator"
    asked = {
        "its own Secret": ("patch", "secret/kvquota-webhook"),
        "another Secret": ("patch", "secret/another"),
        "a new Secret": ("create", "secret"),
        "its own configuration": ("patch", f"mutatingwebhookconfigurations/{CONFIGURATION}"),
        "another configuration": ("patch", "mutatingwebhookconfigurations/another"),
        "all configurations": ("list", "mutatingwebhookconfigurations"),
    }
    allowed = [what for what, question in asked.items() if _may(serving, account, *question)]
    assert allowed == ["its own Secret", "its own configuration"]


def _may(installed: Installed, account: str, *question: str) -> bool:
    try:
        return installed.kubectl("auth", "can-i", *question, account, namespace=HOME).strip() == "yes"
    except ProgramError:
        return False


def test_a_second_replica_shows_a_certificate_of_the_same_authority(serving: Installed) -> None:
    port = free_port()
    before = serving.configuration()["webhooks"][0]["clientConfig"]["caBundle"]
    with serving.operator(port):
        trusting = ssl.create_default_context(cadata=base64.b64decode(before).decode())
        for each in (port, serving.port):
            with urllib.request.urlopen(_question(each), timeout=10, context=trusting) as answer:
                assert json.load(answer)["response"] == {"uid": "u", "allowed": True}
    assert serving.configuration()["webhooks"][0]["clientConfig"]["caBundle"] == before


def _question(port: int) -> urllib.request.Request:
    asked = {"request": {"uid": "u", "namespace": SERVED, "object": pod(asks=False)}}
    return urllib.request.Request(f"https://127.0.0.1:{port}/inject", data=json.dumps(asked).encode())


def test_while_no_operator_answers_only_pods_that_ask_are_refused(installed: Installed) -> None:
    away = {
        **installed.configuration()["webhooks"][0]["clientConfig"],
        "url": f"https://127.0.0.1:{free_port()}/inject",
    }
    _redirect(installed, away["url"])
    try:
        assert 'failed calling webhook "inject.kvquota.dev"' in installed.refusal(pod())
        assert sidecars(installed.create(pod(asks=False))) == []
        assert sidecars(installed.create(pod(), namespace=OTHER)) == []
        assert sidecars(installed.create(pod(), namespace=HOME)) == []
    finally:
        _redirect(installed, f"https://127.0.0.1:{installed.port}/inject")


def _redirect(installed: Installed, url: str) -> None:
    change = [{"op": "replace", "path": "/webhooks/0/clientConfig/url", "value": url}]
    installed.kubectl("patch", "mutatingwebhookconfiguration", CONFIGURATION, "--type=json", "-p", json.dumps(change))


def test_an_authority_that_nears_its_end_is_followed_and_stays_believed(installed: Installed) -> None:
    """Both are in the bundle: what the old one signed goes on being believed. A bundle that was taken out is back."""
    now = datetime.now(UTC)
    old = next_authority(None, "old", now - timedelta(days=300), Lifetimes())
    data = {"ca.crt": base64.b64encode(old.bundle).decode(), "ca.key": base64.b64encode(old.key).decode()}
    installed.kubectl("patch", "secret", "kvquota-webhook", "-p", json.dumps({"data": data}), namespace=HOME)
    remove = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
    if "caBundle" in installed.configuration()["webhooks"][0]["clientConfig"]:
        installed.kubectl(
            "patch", "mutatingwebhookconfiguration", CONFIGURATION, "--type=json", "-p", json.dumps(remove)
        )
    port = free_port()
    _redirect(installed, f"https://127.0.0.1:{port}/inject")
    try:
        with installed.operator(port):
            bundle = base64.b64decode(installed.configuration()["webhooks"][0]["clientConfig"]["caBundle"])
            certificates = x509.load_pem_x509_certificates(bundle)
            assert sidecars(installed.create(pod())) == ["kvquota"]
    finally:
        _redirect(installed, f"https://127.0.0.1:{installed.port}/inject")
    assert certificates[1] == old.newest
    assert certificates[0].not_valid_after_utc > now + timedelta(days=360)
    assert len(certificates) == 2
