"""What tests of the operator share: API servers that know kvquota's resources, and a namespace for each test."""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from operator_replicas import Audit, account, audited_server
from operator_world import World, with_crds, world_in
from testcluster.apiserver import ApiServer

WORLDS = 199
"""Networks that are dealt in turn: tests that make more than one world at a time take those above."""


@pytest.fixture(scope="module")
def server(apiserver: ApiServer) -> Iterator[ApiServer]:
    """The one of all tests; a file that needs another has a fixture of this name."""
    with with_crds(apiserver) as server:
        yield server


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    """One for each world of the session."""
    return itertools.count(1)


@pytest.fixture
async def world(server: ApiServer, numbers: Iterator[int], request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A namespace of this test's own, which is called after its file."""
    number = next(numbers)
    name = request.path.stem.removeprefix("test_").replace("_", "-")
    async with world_in(server, f"{name}-{number}", network=1 + number % WORLDS) as world:
        yield world


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """What `audited` writes down."""
    return Audit(tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="module")
def audited(audit: Audit) -> Iterator[ApiServer]:
    """An API server of this file's own."""
    with audited_server(audit) as server:
        yield server


@pytest.fixture(scope="module")
def kubeconfig(audited: ApiServer, audit: Audit) -> Path:
    """Of the account `operator` of `audited`."""
    return account(audited, "operator", audit.folder)
