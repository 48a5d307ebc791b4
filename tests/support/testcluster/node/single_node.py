"""A real single-node Kubernetes in namespaces of its own: kubelet, containerd, pod network, scheduler, controllers.

The node has its own pid, network, mount, uts, ipc and cgroup namespaces: the machine gets no route, rule, mount, sysctl
or open port from it, several nodes run side by side, and the end of one process ends all of it. Its API server is
reached through a relay on 127.0.0.1, so kubectl and client libraries work from the test's own process; pods are reached
by `connect` and `forward`, and `listen` makes a socket in the node on which a test can be a webhook server.

Not there: pulling images, addresses outside, ClusterIPs other than that of `kubernetes` (pod IPs and headless Services
work), DNS, NetworkPolicy, GPUs other than a faked count.
"""

import contextlib
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from testcluster import assets, certificates, images
from testcluster.access import Access, write_kubeconfig, write_tokens
from testcluster.cluster import Cluster, ClusterStartError, failure
from testcluster.node import cgroups, containers, files, machine, namespaces
from testcluster.processes import Server, wait_until
from testcluster.programs import RUN_TIMEOUT_S, ProgramError, run

START_TIMEOUT_S = 180.0
"""Seconds for each step of the start; all together take 5 s on an idle machine, 14 s on a busy one."""

IMPORT_TIMEOUT_S = 120.0
"""Seconds for one image: containerd unpacks 70 MB in 2 s."""

SYNC_FREQUENCY = "1m"
"""The kubelet's default: an untouched pod sees a changed ConfigMap after up to 90 s, a patched one after about 1 s."""

_INIT_SCRIPT = Path(__file__).with_name("init.sh")
_RELAY_SCRIPT = Path(__file__).with_name("relay.py")
_STARVE_SCRIPT = Path(__file__).with_name("starve.sh")
_KEY_NAMES = (
    *("DNS:localhost", "DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc"),
    *("IP:127.0.0.1", f"IP:{files.NODE_IP}", f"IP:{files.SERVICE_IP}"),
)


class Node(Cluster):
    """Context manager: inside it the node is Ready and has `files.PYTHON_IMAGE`, after it nothing is left.

    `sync_frequency` is the kubelet's; `directory` is made if it is missing and must be empty.
    """

    prefix = "kvquota-node-"

    def __init__(self, directory: Path | None = None, *, sync_frequency: str = SYNC_FREQUENCY) -> None:
        super().__init__(machine.refuse_hidden(directory) if directory else None)
        self._sync_frequency = sync_frequency
        self._cgroup: str | None = None

    def inside(self, *argv: str | Path, input: str | bytes | None = None) -> str:  # noqa: A002
        """Standard output of a command in the node's network namespace, with the machine's files and programs."""
        return run(namespaces.network_command(self._init_pid, *argv), stdin=input)

    def enter(self, *argv: str | Path, input: str | bytes | None = None, timeout_s: float = RUN_TIMEOUT_S) -> str:  # noqa: A002
        """Standard output of a command in all of the node's namespaces, where `ctr` and `/var/log/pods` are."""
        return run(namespaces.whole_command(self._init_pid, *argv), stdin=input, timeout_s=timeout_s)

    def load_image(self, archive: Path, reference: str) -> None:
        """Import a docker-archive and wait until pods can use it as `reference`."""
        ctr = ("ctr", "--namespace", "k8s.io", "images", "import", "-")
        self.enter(*ctr, input=archive.read_bytes(), timeout_s=IMPORT_TIMEOUT_S)
        self._wait_for_image(reference, f"{archive} was imported, but holds no image {reference} that pods can use")

    def tag_image(self, reference: str, another: str) -> None:
        """Give an image that the node has another name, and wait until pods can use it."""
        names = (f"docker.io/{each}" for each in (reference, another))
        self.enter("ctr", "--namespace", "k8s.io", "images", "tag", *names)
        self._wait_for_image(another, f"pods cannot use {another}")

    def _wait_for_image(self, reference: str, otherwise: str) -> None:
        if not wait_until(lambda: reference in self._pod_images(), timeout_s=IMPORT_TIMEOUT_S):
            raise ClusterStartError(otherwise)

    def _pod_images(self) -> set[str]:
        """Images that the pod runtime knows; its list follows an import a moment later."""
        managed = 'labels."io.cri-containerd.image"==managed'
        names = self.enter("ctr", "--namespace", "k8s.io", "images", "ls", "-q", managed).split()
        return {*names, *(name.removeprefix("docker.io/").removeprefix("library/") for name in names)}

    def pod_ip(self, name: str, namespace: str = "default") -> str:
        """Address of a pod. Raises `LookupError` if it has none yet."""
        address = self.kubectl("get", "pod", name, "--namespace", namespace, "--output=jsonpath={.status.podIP}")
        if not address:
            raise LookupError(f"pod {namespace}/{name} has no address yet; wait for its condition Ready first")
        return address

    def container(self, pod: str, name: str, namespace: str = "default") -> Mapping[str, Any]:
        """What the kubelet says of a container: `restartCount`, `containerID`, `state`, `lastState`. Raises
        `LookupError` where it has said nothing yet."""
        return containers.status_of(self.kubectl("get", "pod", pod, "-n", namespace, "--output=json"), name)

    def kill_container(self, pod: str, name: str, namespace: str = "default") -> None:
        """SIGKILL for process 1 of a container: the kernel ends all of it. Raises `LookupError` if it does not run."""
        self.enter("sh", "-c", 'kill -KILL "$0"', str(self._first_process(pod, name, namespace)))

    def starve_container(self, pod: str, name: str, namespace: str = "default") -> None:
        """Take a container's memory away until the kernel has killed process 1 of it. The next run has its own limit.

        Raises `LookupError` if it does not run.
        """
        self.enter("sh", _STARVE_SCRIPT, str(self._first_process(pod, name, namespace)))

    def _first_process(self, pod: str, name: str, namespace: str) -> int:
        tasks = self.enter("ctr", "--namespace", "k8s.io", "tasks", "ls")
        return containers.first_process(tasks, self.container(pod, name, namespace))

    def connect(self, host: str, port: int) -> socket.socket:
        """A connected socket to an address that only the node reaches; also for `asyncio.open_connection(sock=...)`."""
        return namespaces.connect(self._network, host, port)

    def listen(self, port: int = 0, host: str = "127.0.0.1") -> socket.socket:
        """A listening socket of this process inside the node, reached there as `host`."""
        return namespaces.listen(self._network, host, port)

    @contextlib.contextmanager
    def forward(self, host: str, port: int) -> Iterator[int]:
        """A port of this machine's 127.0.0.1 whose connections go to an address inside the node."""
        number, relay = self._start_relay(host, port)
        try:
            yield number
        finally:
            if relay in self.servers:
                self._keeper.end(relay)

    def _start_relay(self, host: str, port: int) -> tuple[int, Server]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            number: int = listener.getsockname()[1]
            descriptor = listener.fileno()
            relay: list[str | Path] = [sys.executable, _RELAY_SCRIPT, str(descriptor), host, str(port)]
            command = namespaces.network_command(self._init_pid, *relay)
            log = self.directory / f"relay-{number}.log"
            return number, self._keeper.start(f"relay-{number}", command, log, pass_fds=[descriptor])

    @property
    def _init_pid(self) -> int:
        return namespaces.init_pid(self.directory)

    @property
    def _network(self) -> Path:
        return Path(f"/proc/{self._init_pid}/ns/net")

    def _home(self) -> Path:
        return machine.fastest_home()

    def _start(self, directory: Path) -> Access:
        machine.prepare()
        token = _write_state(directory, self._sync_frequency)
        environ = self._make_cgroups(directory)
        self._keeper.start("node", ["bash", _INIT_SCRIPT], directory / "node.log", environ=environ)
        self._wait("its namespaces", (directory / "namespaces-ready").exists)
        access = self._open_api(directory, token)
        self._wait("containerd", self._containerd_answers)
        self._load_base_images()
        (directory / "images-loaded").touch()
        self._wait("the API server", access.ready)
        self._wait("the kubelet", lambda: _node_ready(access))
        return access

    def _make_cgroups(self, directory: Path) -> Mapping[str, str]:
        """Environment of `init.sh`."""
        layout = cgroups.read_layout()
        cgroups.remove_leftovers(layout)
        self._cgroup = cgroups.name_for(directory)
        groups = cgroups.create(layout, self._cgroup)
        return {
            **os.environ,
            "NODE_DIR": str(directory),
            "NODE_NAME": files.NODE_NAME,
            "NODE_IP": files.NODE_IP,
            "SERVICE_IP": files.SERVICE_IP,
            "API_PORT": str(files.API_PORT),
            "BRIDGE": files.BRIDGE,
            "CGROUP_VERSION": str(layout.version),
            "CGROUP_GROUPS": " ".join(map(str, groups)),
            "CGROUP_MOUNTS": " ".join(layout.mount_options),
        }

    def _open_api(self, directory: Path, token: str) -> Access:
        port, _ = self._start_relay("127.0.0.1", files.API_PORT)
        ca, kubeconfig, url = directory / "certs" / "ca.crt", directory / "kubeconfig", f"https://127.0.0.1:{port}"
        write_kubeconfig(kubeconfig, url=url, ca=ca, token=token)
        return Access(url=url, token=token, ca=ca, kubeconfig=kubeconfig, kubectl_path=assets.find("kubectl"))

    def _containerd_answers(self) -> bool:
        try:
            self.enter("ctr", "version")
        except ProgramError:
            return False
        return True

    def _load_base_images(self) -> None:
        with tempfile.TemporaryDirectory(prefix="kvquota-images-") as name:
            pause = images.program_image(Path(name), files.PAUSE_IMAGE, assets.find("pause"))
            self.load_image(pause, files.PAUSE_IMAGE)
            python = images.python_image(Path(name), files.PYTHON_IMAGE, entrypoint=("python3",))
            self.load_image(python, files.PYTHON_IMAGE)

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        """Wait for one step. Raises `ClusterStartError` at once if a program of the node has ended."""
        ended = self.directory / "ended"

        def settled() -> bool:
            return ready() or any(ended.iterdir()) or not all(server.alive for server in self.servers)

        in_time = wait_until(settled, timeout_s=START_TIMEOUT_S, poll_s=0.1)
        self.check_alive()
        if stopped := sorted(ended.iterdir()):
            codes = ", ".join(f"{path.name} ended with exit code {path.read_text().strip()}" for path in stopped)
            raise ClusterStartError(failure(codes, [self.directory / f"{path.name}.log" for path in stopped]))
        if not in_time:
            logs = sorted(self.directory.glob("*.log"))
            raise ClusterStartError(failure(f"{what} did not get ready within {START_TIMEOUT_S:.0f} s", logs))

    def remove_abandoned(self) -> None:
        """Remove what a killed process left behind: its directory, and cgroups."""
        super().remove_abandoned()
        cgroups.remove_leftovers(cgroups.read_layout())

    def _clean_up(self) -> None:
        if self._cgroup is not None:
            cgroups.remove(cgroups.read_layout(), self._cgroup)
            self._cgroup = None


def _write_state(directory: Path, sync_frequency: str) -> str:
    """Fill the state directory; returns the administrator's token."""
    for name in ("bin", "ended", "kubelet", "varlog"):
        (directory / name).mkdir()
    for name in machine.PROGRAMS:
        (directory / "bin" / name).symlink_to(machine.refuse_hidden(assets.find(name)))
    files.write_files(directory, sync_frequency=sync_frequency)
    ca = certificates.make(directory / "certs", names=_KEY_NAMES).ca
    admin, kubelet = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    users = [f"{admin},admin,admin,system:masters", f"{kubelet},system:node:{files.NODE_NAME},node,system:nodes"]
    write_tokens(directory / "tokens.csv", users)
    url = f"https://127.0.0.1:{files.API_PORT}"
    write_kubeconfig(directory / "inside.kubeconfig", url=url, ca=ca, token=admin)
    write_kubeconfig(directory / "kubelet.kubeconfig", url=url, ca=ca, token=kubelet)
    return admin


def _node_ready(access: Access) -> bool:
    """Whether the node takes pods: Ready, and the controllers have made the account that pods in `default` need."""
    condition = '--output=jsonpath={.status.conditions[?(@.type=="Ready")].status}'
    try:
        ready = access.kubectl("get", "node", files.NODE_NAME, condition) == "True"
        access.kubectl("get", "serviceaccount", "default", "--namespace", "default")
    except ProgramError:
        return False
    return ready
