"""A real API server with its etcd on loopback, for tests that need the API but no node.

What is as in a cluster: storage, schemas, CEL, RBAC, admission (service accounts included), webhooks, watches, token
requests. What is not there: controllers, a scheduler and kubelets. So objects stay as they were written: pods are
Pending, owners do not take their dependants with them, a deleted namespace stays Terminating. Service account
admission refuses a pod in a namespace without a `default` account, which a controller would make:
`ApiServer.create_namespace` makes both, and the namespace `default` has its account from the start.
"""

import argparse
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testcluster import assets, certificates
from testcluster.access import Access, write_kubeconfig, write_tokens
from testcluster.certificates import Certificates
from testcluster.cluster import Cluster, ClusterStartError, failure
from testcluster.errors import PartError
from testcluster.processes import free_port, wait_until
from testcluster.programs import ProgramError

START_TIMEOUT_S = 120.0
"""Seconds from the first program to /readyz: 3 s on an idle machine, 20 s were seen beside a build on two cores."""

PORT_TRIES = 4
"""Starts before a port that is taken counts as a failure: each has new free ports, to lose four races is no race."""

_API = "kube-apiserver"
_ETCD = "etcd"
_IN_USE = "address already in use"
_KEY_NAMES = ("DNS:localhost", "DNS:kubernetes.default.svc", "IP:127.0.0.1")


class _PortTakenError(ClusterStartError):
    """Somebody took a free port before the server did."""


@dataclass(frozen=True, slots=True)
class _Ports:
    etcd: int
    etcd_peer: int
    api: int


class ApiServer(Cluster):
    """Context manager: inside it the API server is ready, after it nothing is left.

    `flags` are added to those of kube-apiserver; `directory` is made if it is missing and must be empty.
    """

    prefix = "kvquota-apiserver-"

    def __init__(self, directory: Path | None = None, *, flags: Sequence[str] = ()) -> None:
        super().__init__(directory)
        self._flags = tuple(flags)
        self._command: tuple[str, ...] = ()
        self._etcd_command: tuple[str, ...] = ()
        self._data = Path()

    @contextmanager
    def away(self) -> Iterator[None]:
        """In the block the API server is killed; after it, another one is ready at the same address and etcd."""
        [killed] = [server for server in self.servers if server.name == _API]
        killed.process.kill()
        killed.process.wait()
        self._keeper.servers.remove(killed)
        try:
            yield
        finally:
            self._keeper.start(_API, self._command, killed.log)
            self._wait_ready(self.access)

    def without_etcd(self, work: Callable[[Path], object]) -> None:
        """Do `work` with etcd's data directory while neither it nor the API server runs; after it both are ready."""
        [etcd] = [server for server in self.servers if server.name == _ETCD]
        with self.away():
            self._keeper.end(etcd)
            work(self._data)
            self._keeper.start(_ETCD, self._etcd_command, etcd.log)

    def create_namespace(self, name: str) -> None:
        """Create a namespace and the `default` service account that pods in it need."""
        self.kubectl("create", "namespace", name)
        self.kubectl("create", "serviceaccount", "default", "--namespace", name)

    def _start(self, directory: Path) -> Access:
        binaries = {name: assets.find(name) for name in (_ETCD, _API, "kubectl")}
        files = certificates.make(directory / "certs", names=_KEY_NAMES)
        for _ in range(PORT_TRIES - 1):
            try:
                return self._try_start(directory, files, binaries)
            except _PortTakenError:
                self._keeper.stop()
        return self._try_start(directory, files, binaries)

    def _try_start(self, directory: Path, files: Certificates, binaries: dict[str, Path]) -> Access:
        ports = _Ports(free_port(), free_port(), free_port())
        access = _access(directory, files, ports, binaries["kubectl"])
        self._data = directory / f"etcd-data-{ports.etcd}"
        self._etcd_command = tuple(_etcd(binaries[_ETCD], self._data, ports))
        self._keeper.start(_ETCD, self._etcd_command, directory / f"etcd-{ports.etcd}.log")
        self._command = (*_kube_apiserver(binaries[_API], directory, files, ports), *self._flags)
        self._keeper.start(_API, self._command, directory / f"{_API}-{ports.api}.log")
        self._wait_ready(access)
        _ensure_default_account(access)
        return access

    def _wait_ready(self, access: Access) -> None:
        def settled() -> bool:
            return access.ready() or not all(server.alive for server in self.servers)

        in_time = wait_until(settled, timeout_s=START_TIMEOUT_S)
        logs = [server.log for server in self.servers]
        if any(not server.alive and _IN_USE in server.log.read_text(errors="replace") for server in self.servers):
            raise _PortTakenError(failure(f"ports were taken by others {PORT_TRIES} times, run again", logs))
        self.check_alive()
        if not in_time:
            raise ClusterStartError(failure(f"the API server was not ready after {START_TIMEOUT_S:.0f} s", logs))


def _access(directory: Path, files: Certificates, ports: _Ports, kubectl: Path) -> Access:
    token, url, kubeconfig = secrets.token_urlsafe(24), f"https://127.0.0.1:{ports.api}", directory / "kubeconfig"
    write_tokens(directory / "tokens.csv", [f"{token},admin,admin,system:masters"])
    write_kubeconfig(kubeconfig, url=url, ca=files.ca, token=token)
    return Access(url=url, token=token, ca=files.ca, kubeconfig=kubeconfig, kubectl_path=kubectl)


def _etcd(program: Path, data: Path, ports: _Ports) -> list[str]:
    client, peer = f"http://127.0.0.1:{ports.etcd}", f"http://127.0.0.1:{ports.etcd_peer}"
    return [
        str(program),
        f"--data-dir={data}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]


def _kube_apiserver(program: Path, directory: Path, files: Certificates, ports: _Ports) -> list[str]:
    """Without an address to advertise it looks for a default route, which a machine without a network has not."""
    return [
        str(program),
        f"--etcd-servers=http://127.0.0.1:{ports.etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        f"--secure-port={ports.api}",
        f"--cert-dir={files.ca.parent}",
        f"--tls-cert-file={files.server}",
        f"--tls-private-key-file={files.server_key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={files.service_account_key}",
        f"--service-account-signing-key-file={files.service_account_key}",
        f"--token-auth-file={directory / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.96.0.0/24",
        "--allow-privileged=true",
    ]


def _ensure_default_account(access: Access) -> None:
    def created() -> bool:
        try:
            access.kubectl("create", "serviceaccount", "default", "--namespace", "default")
        except ProgramError as refused:
            return "AlreadyExists" in refused.output
        return True

    if not wait_until(created, timeout_s=START_TIMEOUT_S):
        raise ClusterStartError("the namespace `default` did not appear; look at the log of kube-apiserver")


def main(argv: Sequence[str] | None = None) -> int:
    """Run an API server until Ctrl-C or SIGTERM. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m testcluster.apiserver", description=main.__doc__)
    parser.add_argument("--dir", type=Path, help="state directory (default: a new temporary one); removed at the end")
    directory = parser.parse_args(argv).dir
    asked_to_stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked_to_stop.set())
    try:
        _serve(directory, asked_to_stop)
    except PartError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _serve(directory: Path | None, asked_to_stop: threading.Event) -> None:
    with ApiServer(directory) as server:
        print(f"export KUBECONFIG={server.kubeconfig}")
        print(f"alias kubectl={server.access.kubectl_path}")
        print("running until Ctrl-C", flush=True)
        while not asked_to_stop.wait(1.0):
            server.check_alive()


if __name__ == "__main__":
    raise SystemExit(main())
