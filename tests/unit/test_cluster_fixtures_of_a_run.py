"""What a run of pytest says of the test clusters: where the logs of a failed one are, and why there is no node."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0  # a run takes two seconds; other work on the machine may take the rest

CLUSTERS = '''
"""Clusters with a log and no programs in place of the real ones."""
import os
from pathlib import Path
from types import SimpleNamespace

import cluster_fixtures
import testcluster.node.machine
from testcluster.access import Access
from testcluster.cluster import Cluster


class ApiServer(Cluster):
    def __init__(self) -> None:
        super().__init__(None)

    def _start(self, directory: Path) -> Access:
        (directory / "apiserver.log").write_text("it began")
        (directory / "etcd-data").mkdir()
        return Access("", "", directory, directory, directory)


class Node(ApiServer):
    """The same with a node."""


cluster_fixtures.ApiServer = ApiServer
cluster_fixtures.Node = Node
'''
ANY_MACHINE = CLUSTERS + "cluster_fixtures.supported = lambda: None\n"
SYSTEM = "testcluster.node.machine.sys = SimpleNamespace(platform={!r})\n"
NO_LINUX = CLUSTERS + SYSTEM.format("darwin")
NO_ROOT = CLUSTERS + SYSTEM.format("linux") + "os.geteuid = lambda: 1000\n"


def run(directory: Path, conftest: str, tests: str, *more: str) -> str:
    """What a run of these tests prints with `more` arguments; temporary directories are made in `directory`/tmp."""
    (directory / "tmp").mkdir()
    (directory / "conftest.py").write_text(conftest)
    (directory / "test_them.py").write_text(tests)
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests/support"), "TMPDIR": str(directory / "tmp")}
    settings = ["-c", str(ROOT / "pyproject.toml"), "-p", "cluster_fixtures", "-p", "no:cacheprovider", "--color=no"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, *more, str(directory)],
        cwd=directory,
        env=environ,
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def kept(directory: Path) -> list[Path]:
    """What clusters have left."""
    return list((directory / "tmp").glob("kvquota-*"))


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize(("fixture", "name"), [("apiserver", "ApiServer"), ("node", "Node")])
def test_the_logs_of_a_run_that_failed_are_kept_and_it_says_where(
    tmp_path: Path, fixture: str, name: str, workers: str
) -> None:
    failing = f"def test_it({fixture}):\n    assert {fixture} is None\n"
    said = run(tmp_path, ANY_MACHINE, failing, "--numprocesses", workers)

    (directory,) = kept(tmp_path)
    assert re.findall(r"^logs of .*$", said, re.MULTILINE) == [f"logs of {name}: {directory}"]
    assert [path.name for path in directory.iterdir()] == ["apiserver.log"]
    assert "1 failed" in said


def test_the_logs_are_kept_when_another_test_of_the_run_failed(tmp_path: Path) -> None:
    said = run(tmp_path, ANY_MACHINE, "def test_it(apiserver):\n    pass\n\n\ndef test_other():\n    assert False\n")

    assert f"logs of ApiServer: {kept(tmp_path)[0]}" in said


def test_a_run_that_passed_leaves_nothing_and_says_nothing(tmp_path: Path) -> None:
    said = run(tmp_path, ANY_MACHINE, "def test_it(apiserver, node):\n    pass\n")

    assert (kept(tmp_path), re.findall("logs of", said)) == ([], [])
    assert "1 passed" in said


@pytest.mark.parametrize(
    ("conftest", "reason"),
    [
        pytest.param(NO_ROOT, "the test node needs root: it makes namespaces, mounts and cgroups", id="not root"),
        pytest.param(NO_LINUX, "the test node needs Linux namespaces, this is darwin", id="not Linux"),
    ],
)
def test_tests_of_a_node_are_skipped_with_its_name_and_the_reason(tmp_path: Path, conftest: str, reason: str) -> None:
    said = run(tmp_path, conftest, "def test_it(node):\n    pass\n\n\ndef test_other(apiserver):\n    pass\n")

    (line,) = re.findall(r"^SKIPPED .*$", said, re.MULTILINE)
    assert line.endswith(f": node: {reason}")
    assert "1 passed, 1 skipped" in said
