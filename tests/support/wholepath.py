"""What the tests of the whole path share: two tenants, their objects, and the two programs as processes."""

import base64
import hashlib
import json
import os
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testcluster.cluster import Cluster
from testcluster.processes import Keeper, Server, free_port, tail, wait_until

DEADLINE_S = 60.0
"""Seconds that a test waits for something that takes about one; other work on the machine may take the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant of the pool; `soft` and `hard` in tokens."""

    name: str
    key: str
    soft: int
    hard: int


def _key(name: str) -> str:
    """As strong as `kvquota keygen` makes them, and the same in every run."""
    return "kvq-" + hashlib.sha256(name.encode()).hexdigest()


SEARCH = Tenant(name="search", key=_key("search"), soft=4096, hard=8192)
BATCH = Tenant(name="batch", key=_key("batch"), soft=0, hard=2048)


def eventually(what: str, happened: Callable[[], bool], logs: Sequence[Path] = ()) -> None:
    """Wait until it happened; fail with `what` and the ends of the logs."""
    if not wait_until(happened, timeout_s=DEADLINE_S, poll_s=0.1):
        raise AssertionError("\n".join([f"not within {DEADLINE_S:.0f} s: {what}", *map(tail, logs)]))


def documents(*objects: Mapping[str, Any]) -> str:
    """What `kubectl apply -f -` reads."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def quota(namespace: str, tenant: Tenant, pool: str, *, hard: int | None = None) -> dict[str, Any]:
    """A TenantQuota in tokens, and `hard` another ceiling than the tenant's own."""
    kv = {"soft": {"tokens": tenant.soft}, "hard": {"tokens": tenant.hard if hard is None else hard}}
    key = {"secretRef": {"name": f"{tenant.name}-api-key", "key": "key"}}
    return {
        "apiVersion": "kvquota.dev/v1alpha1",
        "kind": "TenantQuota",
        "metadata": {"name": tenant.name, "namespace": namespace},
        "spec": {
            "tenant": tenant.name,
            "modelPoolRef": {"name": pool},
            "kv": kv,
            "maxConcurrentRequests": 8,
            "identity": {"apiKeys": [key]},
        },
    }


def api_key(namespace: str, tenant: Tenant) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kvquota.dev/api-key",
        "metadata": {"name": f"{tenant.name}-api-key", "namespace": namespace},
        "stringData": {"key": tenant.key},
    }


def usage_columns(cluster: Cluster, namespace: str) -> dict[str, dict[str, str]]:
    """What `kubectl get tq` prints: column -> text, by the name of the quota."""
    lines = cluster.kubectl("get", "tq", "--namespace", namespace).splitlines()
    heads = lines[0].split()
    starts = [lines[0].index(head) for head in heads]
    rows = [[line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)] for line in lines[1:]]
    return {row[0]: dict(zip(heads, row, strict=True)) for row in rows}


@dataclass(frozen=True, slots=True)
class Programs:
    """Starts the product's own programs as users do, with their logs in `directory`."""

    keeper: Keeper
    directory: Path

    def operator(self, cluster: Cluster, namespace: str) -> Server:
        probes = f"127.0.0.1:{free_port()}"
        command: list[str | Path] = [
            "-m",
            "kvquota_operator",
            "--kubeconfig",
            cluster.kubeconfig,
            "--namespace",
            namespace,
        ]
        return self._start("operator", [*command, "--listen", probes])

    def sidecar(self, *, engine: str, listen: str, admin: str, mounted: Path) -> Server:
        """`mounted` is the folder that stands in for the pod's volumes: `config/` and `identity/`."""
        ports = ["--listen", listen, "--engine", engine, "--admin", admin]
        files: list[str | Path] = ["--config", mounted / "config" / "config.json", "--identity", mounted / "identity"]
        return self._start("sidecar", ["-m", "kvquota_sidecar", *ports, *files])

    def _start(self, name: str, arguments: Sequence[str | Path]) -> Server:
        environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return self.keeper.start(name, [sys.executable, *arguments], self.directory / f"{name}.log", environ=environ)


def mount_secret(cluster: Cluster, namespace: str, name: str, folder: Path) -> None:
    """What a kubelet does with a Secret volume, where there is no kubelet."""
    found = json.loads(cluster.kubectl("get", "secret", name, "--namespace", namespace, "--output=json"))
    folder.mkdir(parents=True, exist_ok=True)
    for key, value in found["data"].items():
        (folder / key).write_bytes(base64.b64decode(value))


def get_text(url: str, headers: Mapping[str, str] | None = None) -> str:
    """The body of an answer of the 200s; anything else raises."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=dict(headers or {})), timeout=10) as answer:
        return str(answer.read().decode())


def gauge(exposition: str, name: str) -> float:
    """Sum of one metric over its labels in a Prometheus text."""
    lines = [line for line in exposition.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    if not lines:
        raise AssertionError(f"no metric {name}")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
