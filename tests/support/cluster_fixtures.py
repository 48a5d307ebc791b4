"""pytest fixtures over `testcluster`: one API server and one node for the whole session, and the programs.

A part that cannot run names itself and the reason: in a skip where this machine can never run it (a node without root),
in an error where it could (an API server without Go to build it).
"""

from collections.abc import Iterator
from typing import Any

import pytest

from testcluster import assets
from testcluster.apiserver import ApiServer
from testcluster.cluster import Cluster
from testcluster.helm import Helm
from testcluster.node import Node, supported
from testcluster.programs import Program

_KEPT = pytest.StashKey[list[str]]()
"""Lines about directories that were kept in this session."""


@pytest.fixture(scope="session")
def kubectl() -> Program:
    """kubectl as a callable: `kubectl("--kubeconfig", path, "get", "pods")` returns what it printed."""
    return Program(assets.find("kubectl"))


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """helm as a callable with its own empty home: `helm("template", chart)` returns what it printed."""
    return Helm(assets.find("helm"), tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def apiserver(request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    """A running API server without controllers, scheduler and nodes; its logs are kept if any test failed."""
    with ApiServer() as server:
        yield server
        _stop(server, request)


@pytest.fixture(scope="session")
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A running node that is Ready; its logs, and those of its pods, are kept if any test failed."""
    if reason := supported():
        pytest.skip(f"node: {reason}")
    with Node() as running:
        yield running
        _stop(running, request)


def _stop(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    if kept := cluster.stop(keep_logs=request.session.testsfailed > 0):
        request.config.stash.setdefault(_KEPT, []).append(f"logs of {type(cluster).__name__}: {kept}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of a parallel run: hand the lines to the run, which alone is seen."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["kept"] = session.config.stash.get(_KEPT, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the lines of a worker that has ended; one that crashed left none."""
    lines = getattr(node, "workeroutput", {}).get("kept", [])
    node.config.stash.setdefault(_KEPT, []).extend(lines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say where logs are, after the failures: what a fixture prints in its teardown is shown to nobody."""
    for line in config.stash.get(_KEPT, []):
        terminalreporter.write_line(line)
