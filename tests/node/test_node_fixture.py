"""The node that tests get: pods run and answer, images of our own run as they must, and the machine stays as it was."""

import asyncio
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from testcluster import images
from testcluster.cluster import Cluster, ClusterStartError
from testcluster.debian import PYTHON_VERSION
from testcluster.node import PYTHON_IMAGE, Node, cgroups
from testcluster.node import __main__ as node_command
from testcluster.processes import command_lines_with, wait_until

ROOT = Path(__file__).parents[2]
POD_TIMEOUT = "--timeout=120s"
STOP_TIMEOUT_S = 60.0
START_TIMEOUT_S = 240.0

pytestmark = pytest.mark.node

SERVE_FILES = ["python3", "-m", "http.server", "--directory"]


def container(name: str, command: list[str], **more: Any) -> dict[str, Any]:
    return {"name": name, "image": PYTHON_IMAGE, "command": command, **more}


def pod(name: str, **spec: Any) -> str:
    metadata = {"name": name, "namespace": "default"}
    spec = {"terminationGracePeriodSeconds": 0, **spec}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def ready_when_it_listens(port: int) -> Mapping[str, Any]:
    return {"tcpSocket": {"port": port}, "periodSeconds": 1}


@contextmanager
def running_pod(cluster: Cluster, name: str, until: str = "condition=Ready", **spec: Any) -> Iterator[None]:
    cluster.kubectl("apply", "--filename=-", input=pod(name, **spec))
    try:
        cluster.kubectl("wait", f"--for={until}", f"pod/{name}", POD_TIMEOUT)
        yield
    finally:
        cluster.kubectl("delete", "pod", name, "--wait=false")


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def test_a_pod_with_a_native_sidecar_and_a_config_map_answers_on_its_address(node: Node) -> None:
    node.kubectl("create", "configmap", "pages", "--from-literal=hello.txt=from the config map")
    mount = {"volumeMounts": [{"name": "pages", "mountPath": "/pages", "readOnly": True}]}
    side = container("side", [*SERVE_FILES, "/pages", "9600"], restartPolicy="Always", **mount)
    side["startupProbe"] = ready_when_it_listens(9600)
    main = container("main", [*SERVE_FILES, "/pages", "8000"], readinessProbe=ready_when_it_listens(8000), **mount)
    volumes = [{"name": "pages", "configMap": {"name": "pages"}}]
    with running_pod(node, "governed", initContainers=[side], containers=[main], volumes=volumes):
        address = node.pod_ip("governed")
        for port in (8000, 9600):
            with node.forward(address, port) as local:
                assert fetch(f"http://127.0.0.1:{local}/hello.txt") == "from the config map"


def test_pods_are_reached_from_an_event_loop_that_stays_outside(node: Node) -> None:
    async def first_line(address: str) -> bytes:
        connection = await asyncio.to_thread(node.connect, address, 8000)
        reader, writer = await asyncio.open_connection(sock=connection)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return line

    server = container("main", [*SERVE_FILES, "/usr", "8000"], readinessProbe=ready_when_it_listens(8000))
    with running_pod(node, "plain", containers=[server]):
        assert asyncio.run(first_line(node.pod_ip("plain"))) == b"HTTP/1.0 200 OK\r\n"


def test_a_refused_connection_is_refused_here_too(node: Node) -> None:
    with pytest.raises(ConnectionRefusedError):
        node.connect("127.0.0.1", 9)


def test_a_test_can_be_a_server_inside_the_node(node: Node) -> None:
    with node.listen() as listener:
        port = listener.getsockname()[1]
        script = f"import socket; socket.create_connection(('127.0.0.1', {port})).sendall(b'from the node')"
        node.inside(sys.executable, "-c", script)
        listener.settimeout(STOP_TIMEOUT_S)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(99) == b"from the node"


def test_a_pod_talks_to_the_api_with_its_service_account(node: Node) -> None:
    script = """
import os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
request = urllib.request.Request(url + "/api", headers={"Authorization": "Bearer " + open(folder + "/token").read()})
context = ssl.create_default_context(cafile=folder + "/ca.crt")
print(urllib.request.urlopen(request, context=context, timeout=10).status)
"""
    caller = container("main", ["python3", "-c", script])
    with running_pod(node, "caller", "jsonpath={.status.phase}=Succeeded", containers=[caller], restartPolicy="Never"):
        assert node.kubectl("logs", "caller") == "200\n"


def ended(node: Node, name: str) -> str:
    """Why the last container of a pod has ended; "" as long as none has."""
    status = node.container(name, "main")
    ends = [status[when].get("terminated") for when in ("state", "lastState")]
    return next((str(end["reason"]) for end in ends if end), "")


def test_a_container_that_is_killed_or_starved_ends_as_the_kubelet_says(node: Node) -> None:
    script = "import time; kept = []\nwhile True: kept.append(b'x' * 10**5); time.sleep(0.05)"
    greedy = container("main", ["python3", "-c", script])
    with running_pod(node, "mortal", containers=[greedy]):
        node.kill_container("mortal", "main")
        assert wait_until(lambda: node.container("mortal", "main")["restartCount"] == 1, timeout_s=STOP_TIMEOUT_S)
        assert ended(node, "mortal") == "Error"
        node.starve_container("mortal", "main")
        assert wait_until(lambda: ended(node, "mortal") == "OOMKilled", timeout_s=STOP_TIMEOUT_S)
        with pytest.raises(LookupError, match="container main does not run"):  # the kubelet waits for 10 s by now
            node.kill_container("mortal", "main")
        with pytest.raises(LookupError, match="nothing is known yet of container other of pod mortal"):
            node.container("mortal", "other")


def test_a_pod_cannot_leave_the_node(node: Node) -> None:
    script = "import socket; print(socket.socket().connect_ex(('192.0.2.1', 80)))"
    leaver = container("main", ["python3", "-c", script])
    with running_pod(node, "leaver", "jsonpath={.status.phase}=Succeeded", containers=[leaver], restartPolicy="Never"):
        assert int(node.kubectl("logs", "leaver")) in {errno.ENETUNREACH, errno.EHOSTUNREACH}


def wheel(directory: Path, name: str, source: str) -> Path:
    """A wheel with one module."""
    info = f"{name}-1.0.dist-info"
    path = directory / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", source)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


REPORT = """
import glob, json, os
import uvloop
COMPILED = ("__pycache__/reporter", "uvloop/__pycache__/")
try:
    open("/app/new", "w")
    writable = True
except OSError:
    writable = False
print(json.dumps({"user": os.getuid(), "writable": writable, "loop": uvloop.Loop.__name__,
                  "compiled": [bool(glob.glob(f"/app/{name}*.pyc")) for name in COMPILED]}))
"""


def test_an_image_of_our_own_runs_as_non_root_on_a_read_only_root(node: Node, tmp_path: Path) -> None:
    reference = "kvquota-test/reporter:1"
    report = wheel(tmp_path, "reporter", REPORT)
    lock = ROOT / "requirements" / "sidecar.lock"
    entrypoint = ("python3", "-m", "reporter")
    archive = images.python_image(tmp_path, reference, lock=lock, wheels=[report], entrypoint=entrypoint)
    node.load_image(archive, reference)
    security = {
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    main = {"name": "main", "image": reference, "securityContext": security}
    with running_pod(node, "reporter", "jsonpath={.status.phase}=Succeeded", containers=[main], restartPolicy="Never"):
        compiled = [sys.version_info[:2] == PYTHON_VERSION] * 2
        expected = {"user": 65532, "writable": False, "loop": "Loop", "compiled": compiled}
        assert json.loads(node.kubectl("logs", "reporter")) == expected


def test_an_image_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        archive = images.python_image(tmp_path / name, "kvquota-test/same:1", wheels=[wheel(tmp_path, "same", "")])
        digests.add(json.loads(member(archive, "manifest.json"))[0]["Config"])
    assert len(digests) == 1


def member(archive: Path, name: str) -> bytes:
    return subprocess.run(["tar", "-xOf", archive, name], capture_output=True, check=True).stdout


SETTINGS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")


def test_settings_that_the_kubelet_makes_for_the_machine_are_files_of_the_node(node: Node) -> None:
    mounts = [line.split()[4] for line in node.enter("cat", "/proc/self/mountinfo").splitlines()]
    assert {f"/proc/sys/{name}" for name in SETTINGS} <= set(mounts)


def machine_state() -> Mapping[str, str]:
    """What a node must not change: global settings, mounts, interfaces and routes."""
    files = [*(f"sys/{name}" for name in SETTINGS), "self/mounts", "net/dev", "net/route", "sys/net/ipv4/ip_forward"]
    return {name: shape(name, Path("/proc", name).read_text()) for name in files}


def shape(name: str, text: str) -> str:
    """Interfaces without their counters."""
    return " ".join(line.split(":")[0] for line in text.splitlines()) if name == "net/dev" else text


def start_command(directory: Path) -> "subprocess.Popen[bytes]":
    support = Path(node_command.__file__).parents[2]
    command = [sys.executable, "-m", "testcluster.node", "--dir", str(directory), "up"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(support)})


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A directory for a node of a test's own, with a name that no other process has in its command line."""
    return tmp_path / f"node-{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:8]}"


def groups_of(directory: Path) -> list[str]:
    pattern = f"*-{cgroups.name_for(directory).rsplit('-', 1)[1]}"
    return [path.name for parent in cgroups.read_layout().parents for path in parent.glob(pattern)]


def test_the_command_runs_a_second_node_and_ends_it_without_a_trace(
    node: Node, state: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = machine_state()
    with start_command(state) as owner:
        assert owner.stdout is not None
        said = owner.stdout.readline().decode()
        assert said == f"export KUBECONFIG={state}/kubeconfig\n"
        assert machine_state() == before
        assert node_command.main(["--dir", str(state), "in", "ip", "-brief", "address", "show", "kv0"]) == 0
        assert node_command.main(["--dir", str(state), "enter", "hostname"]) == 0
        assert node_command.main(["--dir", str(state), "down"]) == 0
        assert owner.wait(STOP_TIMEOUT_S) == 0
    shown = capfd.readouterr().out
    assert ("10.244.0.1/24" in shown, "kvnode\n" in shown) == (True, True)
    assert (command_lines_with(str(state)), groups_of(state), state.exists()) == ([], [], False)
    assert node.access.ready()


def test_a_killed_test_process_takes_its_node_along(state: Path) -> None:
    with start_command(state) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline().startswith(b"export KUBECONFIG=")
        owner.send_signal(signal.SIGKILL)
        owner.wait(STOP_TIMEOUT_S)
    assert wait_until(lambda: not command_lines_with(str(state)), timeout_s=STOP_TIMEOUT_S)
    assert node_command.main(["--dir", str(state), "down"]) == 0
    assert (groups_of(state), state.exists()) == ([], False)


def test_a_node_that_does_not_start_says_which_program_ended_and_shows_its_log(state: Path) -> None:
    with (
        pytest.raises(ClusterStartError, match=r"kubelet ended with exit code 1\n--- .*kubelet\.log[\s\S]*a-while"),
        Node(state, sync_frequency="a-while"),
    ):
        pass
    assert ((state / "kubelet.log").exists(), (state / "containerd").exists()) == (True, False)
    assert command_lines_with(str(state)) == []


@pytest.mark.parametrize("action", [["down"], ["in", "true"], ["enter", "true"]], ids=lambda action: action[0])
def test_a_command_without_a_node_says_so(state: Path, action: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert node_command.main(["--dir", str(state), *action]) == 1
    assert f"node in {state}" in capsys.readouterr().err


V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:4 - cgroup cgroup rw,cpu,cpuacct
33 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
34 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
35 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
36 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
37 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""


def test_groups_go_below_the_own_ones_in_every_mounted_hierarchy() -> None:
    own = "5:cpuacct,cpu:/\n4:cpuset:/\n3:memory:/job/7\n2:pids:/\n9:net_cls:/\n1:name=systemd:/user\n0::/user\n"
    mount = Path("/sys/fs/cgroup")
    assert cgroups.parse_v1(V1_MOUNTS, own) == cgroups.Layout(
        version=1,
        controllers=frozenset({"cpu", "cpuacct", "cpuset", "memory", "pids"}),
        parents=tuple(mount / name for name in ("cpu,cpuacct", "cpuset", "memory/job/7", "pids", "systemd/user")),
        mount_options=("cpuacct,cpu", "cpuset", "memory", "pids", "name=systemd"),
    )
    assert cgroups.parse_v2_root(V1_MOUNTS) == mount / "unified"


def test_a_machine_without_the_controllers_is_told_which() -> None:
    layout = cgroups.Layout(1, frozenset({"cpu", "memory"}), ())
    assert cgroups.problem(layout) == "the test node needs cgroup controllers that are not mounted here: cpuset, pids"
