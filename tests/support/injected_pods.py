"""What the tests of injected pods on a node share: the product from its chart, pods under quota, and their clients."""

import base64
import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from generated_workloads import NAMES as GENERATED
from kvquota_api.usage import UsageReport, decode_report
from node_path import MODEL, POOL, ROOT, SAFE, TAG, Answer, Door, Object, pool
from testcluster.helm import Helm
from testcluster.node import Node
from wholepath import BATCH, SEARCH, Tenant, api_key, documents, quota

RELEASE, HOME, NAMESPACE = "injecting", "injecting-system", "injected"
OPERATOR = f"{RELEASE}-operator"  # the Deployment, and its Lease
OPEN_POOL = "llama-open"
SIDECAR, ENGINE = "kvquota", "engine"  # containers
ADMIN_PORT, OPERATOR_PORT = 9600, 8080


def deployment(name: str = POOL, replicas: int = 2, app: str = POOL, namespace: str = NAMESPACE) -> Object:
    """Without a word about sidecars but the label. `app` is the pool that selects it."""
    engine = {
        "name": ENGINE,
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
    labels = {"app": app, "deployment": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
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

    `upgrade` installs the same once more, from images of the tag that it is given.
    """

    node: Node
    upgrade: Callable[[str], str]
    uninstall: Callable[[], str]
    namespace: str

    def apply(self, *objects: Object) -> None:
        self.node.kubectl("apply", "-f", "-", input=documents(*objects))

    def set_hard(self, tenant: Tenant, tokens: int) -> None:
        self.apply(quota(self.namespace, tenant, POOL, hard=tokens))

    def pods(self, name: str = POOL) -> list[Object]:
        """Those that are not leaving."""
        found = self.node.kubectl("get", "pods", "-n", self.namespace, "-l", f"deployment={name}", "-o", "json")
        return [each for each in json.loads(found)["items"] if "deletionTimestamp" not in each["metadata"]]

    def wait_for(self, name: str = POOL) -> None:
        """Until all pods of a Deployment are ready."""
        self.node.kubectl("rollout", "status", f"deployment/{name}", "-n", self.namespace, "--timeout=120s")

    def addresses(self) -> list[str]:
        """As clients see them."""
        return addresses_of(self.node, self.namespace)

    def clients(self, count: int) -> AbstractContextManager[list["Client"]]:
        """So many at work while the context is open."""
        return clients(self.node, self.namespace, count, lambda address: Door(self.node, address))

    def complete(self, address: str, tenant: Tenant, *, prompt: int) -> Answer:
        return Door(self.node, address).send(tenant, "/v1/completions", {"prompt": [7] * prompt, "max_tokens": 4})

    @contextmanager
    def stream(self, address: str, tenant: Tenant, *, prompt: int, limit: int) -> Iterator[http.client.HTTPResponse]:
        """A stream of `limit` tokens that has begun; there are 400 a second."""
        body = {"prompt": [8] * prompt, "max_tokens": limit, "ignore_eos": True, "stream": True}
        with Door(self.node, address).answered(tenant, "/v1/completions", body) as answer:
            assert answer.status == 200, answer.read()
            assert answer.readline().startswith(b"data: ")
            yield answer

    def refusal(self, address: str, tenant: Tenant, *, prompt: int) -> str:
        """The code of what refuses such a request; "" where it is served, or nobody answers."""
        try:
            answer = self.complete(address, tenant, prompt=prompt)
        except (OSError, http.client.HTTPException):
            return ""
        return "" if answer.status == 200 else str(answer.body["error"]["code"])

    def report(self, address: str, name: str = POOL) -> UsageReport:
        """What the sidecar at an address would tell the operator. `name` is its pool."""
        where = ("get", "secret", f"kvquota-{name}", "-n", self.namespace, "-o", "jsonpath={.data.token}")
        token = base64.b64decode(self.node.kubectl(*where)).decode()
        return decode_report(fetched(self.node, address, ADMIN_PORT, "/v1/usage", token).encode())

    def conditions(self, namespace: str = NAMESPACE, name: str = POOL) -> dict[str, str]:
        found = json.loads(self.node.kubectl("get", "kvmp", name, "-n", namespace, "-o", "json"))
        listed = found.get("status", {}).get("conditions", [])
        return {each["type"]: f"{each['status']} {each['reason']}" for each in listed}


def addresses_of(node: Node, namespace: str) -> list[str]:
    """Of the pods in the slices of a namespace's Services."""
    found = node.kubectl("get", "endpointslices", "-n", namespace, "-o", "json")
    endpoints = [end for each in json.loads(found)["items"] for end in each.get("endpoints") or []]
    return [end["addresses"][0] for end in endpoints if end["conditions"]["ready"]]


def service(namespace: str, selector: Mapping[str, str]) -> Object:
    """A Service of the pool's name over the pods with these labels."""
    ports = [{"port": 80, "targetPort": 8000}]
    metadata = {"name": POOL, "namespace": namespace}
    spec = {"selector": dict(selector), "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def fetched(node: Node, address: str, port: int, path: str, token: str = "") -> str:
    """The body of an answer of 200 from a pod. Raises OSError or http.client.HTTPException for everything else."""
    connection = http.client.HTTPConnection(address, port, timeout=10)
    connection.sock = node.connect(address, port)
    connection.sock.settimeout(10)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        body = answer.read().decode()
        if answer.status != 200:
            raise http.client.HTTPException(f"{path}: {answer.status} {body}")
        return body
    finally:
        connection.close()


@contextmanager
def installation(
    node: Node, helm: Helm, name: str = RELEASE, served: Sequence[str] = (NAMESPACE, *GENERATED)
) -> Iterator[Installed]:
    """A release installed while the context is open, of images that the node has; in the first of the namespaces that
    are served a Deployment and all that puts it under quota, applied at once and as soon as helm has ended."""
    for namespace in served:
        node.kubectl("create", "namespace", namespace)
    node.kubectl("label", "namespace", served[0], "pod-security.kubernetes.io/enforce=restricted")
    release: tuple[str | Path, ...] = (name, "--kubeconfig", node.kubeconfig, "--namespace", f"{name}-system")

    def chart(tag: str) -> Iterator[str | Path]:
        yield from (*release, ROOT / "charts" / "kvquota", "--wait")
        for value in (f"image.tag={tag}", f"webhook.sidecar.image.tag={tag}", f"namespaces={{{','.join(served)}}}"):
            yield from ("--set", value)

    helm("install", *chart(TAG), "--create-namespace")
    gone = (*release, "--ignore-not-found", "--wait")
    upgrade, uninstall = (lambda tag: helm("upgrade", *chart(tag))), (lambda: helm("uninstall", *gone))
    installed = Installed(node, upgrade, uninstall, served[0])
    installed.apply(*_under_quota(served[0]), deployment(namespace=served[0]))
    installed.wait_for()
    yield installed
    installed.uninstall()
    node.kubectl("delete", "namespace", *served, "--wait=false")


def _under_quota(namespace: str) -> list[Object]:
    keys = [api_key(namespace, tenant) for tenant in (SEARCH, BATCH)]
    quotas = [quota(namespace, tenant, POOL) for tenant in (SEARCH, BATCH)]
    return [pool(namespace), *keys, *quotas, service(namespace, {"app": POOL})]


def open_pool(namespace: str = NAMESPACE) -> list[Object]:
    """A pool whose pods let pass what they have no quotas for, and its only quota."""
    found, of_batch = pool(namespace), quota(namespace, BATCH, OPEN_POOL)
    found["metadata"]["name"], of_batch["metadata"]["name"] = OPEN_POOL, "open"
    found["spec"] |= {"selector": {"matchLabels": {"app": OPEN_POOL}}, "sidecar": {"failurePolicy": "Open"}}
    return [found, of_batch]


@dataclass(eq=False)
class Client(threading.Thread):
    """Streams of about a second, one after the other, to whatever pods the Service of a namespace had a moment ago.

    `door` is made of a pod's address.
    """

    node: Node
    namespace: str
    door: Callable[[str], Door]
    body: Object
    stop: threading.Event
    ended: int = 0
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def run(self) -> None:
        while not self.stop.is_set():
            for address in addresses_of(self.node, self.namespace):
                try:
                    self._stream(address)
                except (OSError, http.client.HTTPException) as error:
                    self.failures.append(repr(error))

    def _stream(self, address: str) -> None:
        with self.door(address).answered(SEARCH, "/v1/completions", self.body) as answer:
            text = answer.read().decode()
        if answer.status != 200 or not text.rstrip().endswith("data: [DONE]"):
            self.failures.append(f"{answer.status}: {text[-200:]}")
        self.ended += 1


@contextmanager
def clients(node: Node, namespace: str, count: int, door: Callable[[str], Door], **body: Any) -> Iterator[list[Client]]:
    """So many clients at work while the context is open; afterwards they have ended. `body` is of each request."""
    stop = threading.Event()
    whole = {"prompt": [8] * 8, "max_tokens": 400, "ignore_eos": True, "stream": True, **body}
    found = [Client(node, namespace, door, whole, stop) for _ in range(count)]
    for client in found:
        client.start()
    try:
        yield found
    finally:
        stop.set()
        for client in found:
            client.join(60)


def failures(of: list[Client]) -> list[str]:
    """What their requests met instead of an answer to its end."""
    return [each for client in of for each in client.failures]
