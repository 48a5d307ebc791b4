"""What the tests of the whole path on a node share: the pool, images built from the tree, and a client of its pods."""

import http.client
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testcluster import images
from testcluster.node import Node
from wholepath import Tenant, eventually

ROOT = Path(__file__).resolve().parents[2]
POOL, MODEL = "llama", "llama-3.1-8b-instruct"
TAG, NEXT_TAG = "test", "test-next"  # of the images: the same under two names, as of two versions
BLOCKS = 1025  # 1,024 and the null block, of 16 tokens
PROGRAMS = {  # image -> (locked packages, module)
    "operator": ("operator.lock", "kvquota_operator"),
    "sidecar": ("sidecar.lock", "kvquota_sidecar"),
    "fakeengine": ("operator.lock", "kvquota_fakeengine"),
}
SAFE = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What a namespace that enforces the level "restricted" asks of a container."""

Object = dict[str, Any]


def pool(namespace: str) -> Object:
    """Of the model that the fake engine's blocks are as large as: 128 KiB for each token."""
    return {
        "apiVersion": "kvquota.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": POOL, "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": {"app": POOL}},
            "model": {"name": MODEL, "config": {"preset": "llama-3.1-8b"}, "maxModelLen": 8192},
            "engine": {"type": "vLLM", "version": "0.32", "blockSize": 16},
            "gpu": {"memory": "80Gi", "count": 1},
            "memory": {"kvPool": {"tokens": BLOCKS * 16}, "activation": "6Gi"},
        },
    }


def load_images(node: Node, folder: Path) -> None:
    """Build kvquota/PROGRAM:TAG of every program in `folder`, which is empty, and hand them to the node."""
    wheels = [compiled_wheel(folder)]
    for program, (lock, module) in PROGRAMS.items():
        reference, locked = f"kvquota/{program}:{TAG}", ROOT / "requirements" / lock
        entrypoint = ("python3", "-m", module)
        archive = images.python_image(folder, reference, lock=locked, wheels=wheels, entrypoint=entrypoint)
        node.load_image(archive, reference)
        node.tag_image(reference, f"kvquota/{program}:{NEXT_TAG}")


def compiled_wheel(folder: Path) -> Path:
    """Build what ships, in `folder`. Where `make native` has compiled these sources it takes seconds."""
    print("compiling the sidecar, about two minutes unless make native has done it ...", file=sys.stderr, flush=True)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    environ = {**os.environ, "KVQUOTA_NATIVE": "1"}
    subprocess.run([*pip, "--wheel-dir", folder, ROOT], check=True, cwd=folder, env=environ)
    [wheel] = folder.glob("kvquota-*.whl")
    return wheel


@contextmanager
def without_operator(node: Node, namespace: str) -> Iterator[None]:
    """No operator runs; afterwards as many start as there were."""
    scale = ("scale", "deployment", "--all", "--namespace", namespace)
    replicas = node.kubectl("get", "deployments", "-n", namespace, "-o", "jsonpath={.items[0].spec.replicas}")
    operators = ("get", "pods", "--namespace", namespace, "--output=name")
    node.kubectl(*scale, "--replicas=0")
    try:
        eventually("the operator is gone", lambda: node.kubectl(*operators) == "")
        yield
    finally:
        node.kubectl(*scale, f"--replicas={replicas}")


@dataclass(frozen=True, slots=True)
class Answer:
    """`headers` by their names in small letters."""

    status: int
    headers: Mapping[str, str]
    body: Object


@dataclass(frozen=True, slots=True)
class Door:
    """Where clients reach one pod from outside it: by https if there is a `tls` context, and by http if not."""

    node: Node
    address: str
    port: int = 8000
    tls: ssl.SSLContext | None = None

    def send(self, tenant: Tenant, path: str, body: Mapping[str, Any]) -> Answer:
        with self.answered(tenant, path, body) as answer:
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, headers, json.loads(answer.read()))

    @contextmanager
    def answered(self, tenant: Tenant, path: str, body: Mapping[str, Any]) -> Iterator[http.client.HTTPResponse]:
        """The answer to a request of this tenant, once its head is there. The model is ours unless `body` says so."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=60)
        plain = self.node.connect(self.address, self.port)
        connection.sock = self.tls.wrap_socket(plain) if self.tls else plain
        headers = {"Authorization": f"Bearer {tenant.key}", "Content-Type": "application/json"}
        try:
            connection.request("POST", path, json.dumps({"model": MODEL, **body}), headers)
            with connection.getresponse() as answer:
                yield answer
        finally:
            connection.close()


def any_certificate() -> ssl.SSLContext:
    """A client that does not ask whose certificate it is shown."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
