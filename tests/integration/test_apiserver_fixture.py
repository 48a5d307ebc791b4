"""The API server that tests get: it is the pinned one, it stands alone, and nothing of it stays behind."""

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testcluster import apiserver as apiserver_module
from testcluster import assets, cache, cluster
from testcluster.apiserver import ApiServer
from testcluster.cluster import Cluster, ClusterStartError
from testcluster.helm import Helm
from testcluster.processes import command_lines_with, free_port, wait_until
from testcluster.programs import Program, ProgramError, run

STOP_TIMEOUT_S = 30.0
SUPPORT = Path(apiserver_module.__file__).parents[1]

pytestmark = pytest.mark.apiserver


def get_json(cluster: Cluster, path: str) -> dict[str, object]:
    """Answer of the API server to a GET with the cluster's own credentials and authority."""
    request = urllib.request.Request(cluster.url + path, headers={"Authorization": f"Bearer {cluster.token}"})
    context = ssl.create_default_context(cafile=str(cluster.ca))
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:
        found: dict[str, object] = json.loads(answer.read())
    return found


def test_the_server_is_the_pinned_kubernetes(apiserver: ApiServer) -> None:
    program = run([assets.find("kube-apiserver"), "--version"]).split()[-1]
    assert get_json(apiserver, "/version")["gitVersion"] == program
    if "KUBEBUILDER_ASSETS" not in os.environ:
        assert program == assets.KUBERNETES_VERSION


def test_objects_are_stored_and_found_again(apiserver: ApiServer) -> None:
    apiserver.create_namespace("stored")
    apiserver.kubectl("create", "configmap", "settings", "--from-literal=size=3", "--namespace", "stored")
    assert apiserver.kubectl("get", "cm", "settings", "-n", "stored", "-o", "jsonpath={.data}") == '{"size":"3"}'


def test_a_failed_call_says_what_was_asked_and_why_it_failed(apiserver: ApiServer) -> None:
    with pytest.raises(ProgramError, match=r"kubectl .*get configmap absent[\s\S]*NotFound"):
        apiserver.kubectl("get", "configmap", "absent")


def test_authorization_is_by_rbac(apiserver: ApiServer, kubectl: Program) -> None:
    apiserver.create_namespace("confined")
    token = apiserver.kubectl("create", "token", "default", "--namespace", "confined").strip()
    who = ("--server", apiserver.url, "--certificate-authority", apiserver.ca, "--token", token)
    with pytest.raises(ProgramError, match="cannot list resource"):
        kubectl("--kubeconfig", os.devnull, *who, "get", "secrets", "--namespace", "confined")


@pytest.mark.parametrize("namespace", ["default", "made-by-the-fixture"])
def test_service_account_admission_works_as_in_a_cluster(apiserver: ApiServer, namespace: str) -> None:
    if namespace != "default":
        apiserver.create_namespace(namespace)
    apiserver.kubectl("run", "admitted", "--image=localhost/any:1", "--namespace", namespace)
    query = ("get", "pod", "admitted", "--namespace", namespace, "--output")
    assert apiserver.kubectl(*query, "jsonpath={.spec.serviceAccountName}") == "default"
    assert "kube-api-access" in apiserver.kubectl(*query, "jsonpath={.spec.volumes[*].name}")


def test_two_servers_know_nothing_of_each_other(apiserver: ApiServer) -> None:
    with ApiServer() as other:
        other.create_namespace("only-here")
        assert (other.url, other.directory) != (apiserver.url, apiserver.directory)
        with pytest.raises(ProgramError, match="NotFound"):
            apiserver.kubectl("get", "namespace", "only-here")


def test_nothing_is_left_when_the_server_has_stopped() -> None:
    with ApiServer() as server:
        directory = server.directory
        assert len(command_lines_with(str(directory))) == 2
    assert (command_lines_with(str(directory)), directory.exists()) == ([], False)


def test_a_killed_test_process_takes_its_servers_along(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    command = [sys.executable, "-m", "testcluster.apiserver", "--dir", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(SUPPORT)}) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == f"export KUBECONFIG={directory}/kubeconfig\n".encode()
        owner.send_signal(signal.SIGKILL)
        owner.wait(STOP_TIMEOUT_S)
    assert wait_until(lambda: not command_lines_with(str(directory)), timeout_s=STOP_TIMEOUT_S)
    with ApiServer(directory) as server:  # and what it left behind is in nobody's way
        assert server.access.ready()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_runs_a_server_until_it_is_told_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    directory = tmp_path / "state"
    command = [sys.executable, "-m", "testcluster.apiserver", "--dir", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(SUPPORT)}) as owner:
        assert owner.stdout is not None
        kubeconfig, kubectl, _ = (owner.stdout.readline().decode().strip() for _ in range(3))
        environ = {"KUBECONFIG": kubeconfig.removeprefix("export KUBECONFIG=")}
        assert Program(Path(kubectl.removeprefix("alias kubectl=")), environ)("get", "--raw", "/readyz") == "ok"
        owner.send_signal(number)
        assert owner.wait(STOP_TIMEOUT_S) == 0
    assert (command_lines_with(str(directory)), directory.exists()) == ([], False)


def test_a_server_that_refuses_to_start_leaves_its_logs_and_shows_them(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    with (
        pytest.raises(ClusterStartError, match=r"kube-apiserver ended with exit code 1[\s\S]*no-such-flag") as refused,
        ApiServer(directory, flags=["--no-such-flag"]),
    ):
        pass
    logs = {path.name.split("-")[0] for path in directory.glob("*.log")}
    assert (logs, list(directory.glob("etcd-data*"))) == ({"etcd", "kube"}, [])
    assert all(str(path) in str(refused.value) for path in directory.glob("*.log"))
    assert command_lines_with(str(directory)) == []


@pytest.mark.parametrize(
    ("owner", "abandoned"),
    [
        pytest.param("{pid} {start}", False, id="its process still runs"),
        pytest.param("{pid} 1", True, id="its process id belongs to another process by now"),
        pytest.param("4194305 1", True, id="its process is gone"),
        pytest.param(None, False, id="nobody runs a cluster there"),
    ],
)
def test_a_directory_is_abandoned_when_its_owner_is_gone(tmp_path: Path, owner: str | None, *, abandoned: bool) -> None:
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    if owner is not None:
        (tmp_path / "owner.pid").write_text(owner.format(pid=os.getpid(), start=start))
    assert cluster.abandoned(tmp_path) is abandoned


def test_a_directory_that_holds_anything_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep me")
    with pytest.raises(ClusterStartError, match="is not empty; name a new directory"), ApiServer(tmp_path):
        pass
    assert (tmp_path / "mine").read_text() == "keep me"


def test_a_port_that_was_taken_in_between_is_given_up_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken_first() -> int:
        return taken.pop() if taken else free_port()

    with ApiServer() as first:
        taken = [int(first.url.rsplit(":", 1)[1])] * 3
        monkeypatch.setattr(apiserver_module, "free_port", taken_first)
        with ApiServer() as second:
            assert first.access.ready()
            assert second.access.ready()
            assert second.url != first.url


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_kubebuilder_assets_win_where_they_have_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = program(tmp_path / "assets" / "etcd")
    cached = assets.find("kubectl")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(given.parent))
    assert (assets.find("etcd"), assets.find("kubectl")) == (given, cached)


def test_a_program_that_is_cached_needs_no_toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("KVQUOTA_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    cached = program(assets.ASSETS["etcd"].module.directory / "etcd")
    assert assets.find("etcd") == cached


def test_without_toolchain_and_cache_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("KVQUOTA_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(assets.AssetError, match=r"etcd v3\.6\.8 .* no `go` on PATH\. Install Go .* KUBEBUILDER_ASSETS"):
        assets.find("etcd")


def test_a_program_is_built_once_from_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("KVQUOTA_CACHE", str(tmp_path))
    first, said = assets.find("pause"), capsys.readouterr().err.splitlines()
    second, said_again = assets.find("pause"), capsys.readouterr().err
    assert (first, said_again) == (second, "")
    assert [line.split(" ")[:2] for line in said] == [["building", "pause"], ["built", "pause"]]
    assert [path.name for path in first.parent.iterdir() if not path.name.startswith(".")] == ["pause"]


def test_two_that_need_a_thing_at_once_make_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, made = threading.Event(), []

    def try_lock(descriptor: int) -> bool:
        if not (free := real(descriptor)):
            waiting.set()
        return free

    def make(temporary: Path) -> None:
        assert waiting.wait(STOP_TIMEOUT_S)
        made.append(temporary)
        temporary.touch()

    real = cache._try_lock
    monkeypatch.setattr(cache, "_try_lock", try_lock)
    with ThreadPoolExecutor(2) as both:
        paths = list(both.map(lambda name: cache.once(tmp_path / name, make), ["thing", "thing"]))
    assert (paths, len(made)) == ([tmp_path / "thing"] * 2, 1)


def test_a_build_that_fails_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    def break_off(temporary: Path) -> None:
        temporary.write_text("half")
        raise RuntimeError("no more room")

    with pytest.raises(RuntimeError, match="no more room"):
        cache.once(tmp_path / "thing", break_off)
    assert cache.once(tmp_path / "thing", lambda path: path.touch()).read_text() == ""


def test_an_unknown_program_is_named_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert assets.main(["kube-scheduler", "kubeadm"]) == 2
    assert capsys.readouterr().err.startswith("unknown: kubeadm; known: kube-apiserver, etcd")


def test_helm_is_the_pinned_one_and_reads_nothing_of_the_users(helm: Helm) -> None:
    assert helm("version", "--template={{.Version}}") == assets.HELM_VERSION
    assert f'HELM_CONFIG_HOME="{helm.home}/config"' in helm("env")


def test_helm_installs_into_the_cluster_of_a_kubeconfig(apiserver: ApiServer, helm: Helm, tmp_path: Path) -> None:
    chart = tmp_path / "tiny"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: tiny\nversion: 0.1.0\n")
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "from-helm"}, "data": {"a": "b"}}
    (chart / "templates" / "settings.yaml").write_text(json.dumps(made))
    helm("install", "tiny", chart, kubeconfig=apiserver.kubeconfig)
    assert apiserver.kubectl("get", "configmap", "from-helm", "--output=jsonpath={.data.a}") == "b"
