"""Operators as processes, several at a time, and what an API server writes down of their requests."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from kvquota_operator.settings import Address
from operator_world import install_crds, metrics, until
from testcluster.access import write_kubeconfig
from testcluster.apiserver import ApiServer
from testcluster.processes import free_port

HOME = "kvquota-system"
WRITES = frozenset({"create", "update", "patch", "delete"})


@dataclass(frozen=True)
class Asked:
    """One request to the API server; `at` when it came, in Unix seconds."""

    user: str
    verb: str
    resource: str
    name: str
    code: int
    at: float


class Audit:
    """What the API server writes down of all service accounts, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "log"
        rules = [
            {"level": "Metadata", "userGroups": ["system:serviceaccounts"], "omitStages": ["RequestReceived"]},
            {"level": "None"},
        ]
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}
        (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
        self.flags = (f"--audit-policy-file={folder / 'policy.yaml'}", f"--audit-log-path={self._log}")

    def asked(self, user: str = "", *, since: float = 0.0) -> list[Asked]:
        """Requests of one account, or of all, that came after `since` and were not about the Lease."""
        found = [_asked(json.loads(line)) for line in self._log.read_text().splitlines() if '"objectRef"' in line]
        about = [each for each in found if each.at >= since and each.resource != "leases"]
        return [each for each in about if user in ("", each.user)]

    def writes(self, user: str = "", *, since: float = 0.0) -> list[Asked]:
        """Those of them that change something, answered or not."""
        return [each for each in self.asked(user, since=since) if each.verb in WRITES]


def _asked(line: dict[str, Any]) -> Asked:
    ref = line["objectRef"]
    return Asked(
        user=line["user"]["username"].rpartition(":")[2],
        verb=line["verb"],
        resource="/".join(part for part in (ref.get("resource", ""), ref.get("subresource")) if part),
        name=ref.get("name", ""),
        code=line.get("responseStatus", {}).get("code", 0),
        at=datetime.fromisoformat(line["requestReceivedTimestamp"]).replace(tzinfo=UTC).timestamp(),
    )


@contextmanager
def audited_server(audit: Audit) -> Iterator[ApiServer]:
    """An API server of one file's own, ready for the resources of kvquota and for accounts."""
    with ApiServer(flags=audit.flags) as server:
        install_crds(server)
        server.create_namespace(HOME)
        yield server


def account(server: ApiServer, name: str, folder: Path) -> Path:
    """A kubeconfig of an account that may do anything, to be told from others in what is written down."""
    server.kubectl("create", "serviceaccount", name, "--namespace", HOME)
    subject = f"--serviceaccount={HOME}:{name}"
    server.kubectl("create", "clusterrolebinding", name, "--clusterrole=cluster-admin", subject)
    token = server.kubectl("create", "token", name, "--namespace", HOME).strip()
    path = folder / f"kubeconfig-{name}"
    write_kubeconfig(path, url=server.url, ca=server.ca, token=token)
    return path


@dataclass
class Replica:
    name: str
    process: "subprocess.Popen[bytes]"
    address: Address
    log: Path

    async def leads(self) -> bool:
        return (await self.metrics()).get("kvquota_operator_leader") == 1

    async def metrics(self) -> dict[str, float]:
        """Nothing where nobody answers."""
        try:
            return await metrics(self.address)
        except aiohttp.ClientError:
            return {}

    async def ready(self) -> int:
        """Status of /readyz, 0 where nobody answers."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://{self.address.host}:{self.address.port}/readyz") as answer,
            ):
                return answer.status
        except aiohttp.ClientError:
            return 0

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def events(self) -> list[dict[str, Any]]:
        """The log, line by line."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextmanager
def replica(name: str, kubeconfig: Path, namespace: str, *args: str) -> Iterator[Replica]:
    """An operator that stands for election. Its log lies beside the kubeconfig. A bug in it fails the test."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "kvquota_operator", f"--namespace={namespace}", f"--kubeconfig={kubeconfig}"),
        *("--leader-elect", f"--lease-namespace={HOME}", f"--listen=127.0.0.1:{port}", "--sync-seconds=0.5", *args),
    ]
    log = kubeconfig.with_name(f"log-{name}")
    with log.open("wb") as output:
        running = subprocess.Popen(command, stderr=output, env={**os.environ, "PYTHONWARNINGS": "error"})
    try:
        yield Replica(name, running, Address("127.0.0.1", port), log)
    finally:
        running.kill()
        running.wait()
    assert '"errand_died"' not in log.read_text(), f"the operator met a bug: see {log}"


async def leader(replicas: list[Replica]) -> Replica:
    """The one that leads, as soon as one does."""

    async def read() -> list[Replica]:
        return [each for each in replicas if await each.leads()]

    [found] = await until(read, bool, what="one replica leads")
    return found
