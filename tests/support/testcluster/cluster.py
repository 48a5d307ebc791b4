"""What the API server alone and the whole node share: a directory, servers to end, and a way in.

A cluster exists inside a `with` block. Its directory is removed at the end, unless the start or the block failed: then
it stays for its logs. A process that was killed leaves its directory behind; the next start removes that.
"""

import abc
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from testcluster.access import Access
from testcluster.errors import PartError
from testcluster.processes import Keeper, Server, tail

KEPT_S = 7 * 24 * 3600.0
"""Seconds after which the next start removes kept logs: somebody who wants to read them does so within days."""

_BULK = ("containerd", "etcd-data*", "kubelet", "kubectl-cache")
"""What a kept directory is relieved of."""

_OWNER_FILE = "owner.pid"
"""Names the process that a directory belongs to, as long as it runs a cluster there."""

_START_TIME = 19
"""Index of the start time among the fields of /proc/PID/stat that follow the name, see proc(5)."""

ESTABLISHED: Final = '--for=jsonpath={.status.conditions[?(@.type=="Established")].status}=True'
"""Of `kubectl wait` for a CRD. `condition=Established` is an error where there are no conditions yet."""


class ClusterStartError(PartError):
    """A part of the test cluster did not start; the message has the logs' paths and last lines."""


class Cluster(abc.ABC):
    """An API server that runs while the context is entered."""

    prefix = "kvquota-"
    """Of the names of its temporary directories."""

    def __init__(self, directory: Path | None) -> None:
        self._given = directory.absolute() if directory else None
        self._directory: Path | None = None
        self._access: Access | None = None
        self._keeper = Keeper()

    @property
    def access(self) -> Access:
        """Address and credentials. Raises `RuntimeError` outside the context."""
        if self._access is None:
            raise RuntimeError(f"{type(self).__name__} is not running; use it inside a `with` block")
        return self._access

    @property
    def directory(self) -> Path:
        """Where certificates, logs and data are. Raises `RuntimeError` outside the context."""
        if self._directory is None:
            raise RuntimeError(f"{type(self).__name__} is not running; use it inside a `with` block")
        return self._directory

    @property
    def url(self) -> str:
        """Such as `https://127.0.0.1:41234`; works from this process."""
        return self.access.url

    @property
    def token(self) -> str:
        """Bearer token of the group `system:masters`."""
        return self.access.token

    @property
    def ca(self) -> Path:
        """PEM file that verifies `url`."""
        return self.access.ca

    @property
    def kubeconfig(self) -> Path:
        """File with the same address and token."""
        return self.access.kubeconfig

    @property
    def servers(self) -> Sequence[Server]:
        """The running programs that this process started, the first one first."""
        return tuple(self._keeper.servers)

    def kubectl(self, *args: str | Path, input: str | bytes | None = None) -> str:  # noqa: A002
        """Standard output of one kubectl call. Raises `ProgramError`."""
        return self.access.kubectl(*args, input=input)

    def __enter__(self) -> Self:
        _sweep(self._home(), self.prefix)
        directory = self._directory = self._make_directory()
        _own(directory)
        try:
            self._access = self._start(directory)
        except BaseException as error:
            self.stop(keep_logs=isinstance(error, Exception))
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kept := self.stop(keep_logs=isinstance(error, Exception)):
            print(f"logs of {type(self).__name__} are kept in {kept}", flush=True)

    def stop(self, *, keep_logs: bool) -> Path | None:
        """End all programs; returns the directory of the logs if they are kept. A second call does nothing."""
        self._keeper.stop()
        self._clean_up()
        directory, self._directory, self._access = self._directory, None, None
        if directory is None:
            return None
        if keep_logs:
            _remove_bulk(directory)
            return directory
        shutil.rmtree(directory)
        return None

    def check_alive(self) -> None:
        """Raise `ClusterStartError` with the last lines of the logs if a program has ended by itself."""
        if ended := [server for server in self.servers if not server.alive]:
            codes = ", ".join(f"{server.name} ended with exit code {server.process.returncode}" for server in ended)
            raise ClusterStartError(failure(codes, [server.log for server in self.servers]))

    @abc.abstractmethod
    def _start(self, directory: Path) -> Access:
        """Start everything with `self._keeper` and return when it is ready. Raises `ClusterStartError`."""

    def _clean_up(self) -> None:  # noqa: B027  most clusters leave nothing outside their directory
        """Remove what outlives the programs and is not in the directory."""

    def _home(self) -> Path:
        """Where temporary directories are made."""
        return Path(tempfile.gettempdir())

    def _make_directory(self) -> Path:
        if self._given is None:
            return Path(tempfile.mkdtemp(prefix=self.prefix, dir=self._home()))
        self.remove_abandoned()
        self._given.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(self._given.iterdir()):
            raise ClusterStartError(f"{self._given} is not empty; name a new directory, it is removed at the end")
        return self._given

    def remove_abandoned(self) -> None:
        """Remove the given directory if a process that was killed ran a cluster there."""
        if self._given is not None and abandoned(self._given):
            shutil.rmtree(self._given)


def failure(reason: str, logs: Sequence[Path]) -> str:
    """Message of a start that failed."""
    return "\n".join([f"the test cluster does not run: {reason}", *map(tail, logs)])


def _remove_bulk(directory: Path) -> None:
    """Leave the logs and what they are read with; the data is large, and may lie in memory."""
    for pattern in (_OWNER_FILE, *_BULK):
        for path in directory.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _sweep(home: Path, prefix: str) -> None:
    for directory in home.glob(f"{prefix}*"):
        if abandoned(directory) or (not _owned(directory) and _age_s(directory) > KEPT_S):
            shutil.rmtree(directory, ignore_errors=True)


def _own(directory: Path) -> None:
    """Written whole or not at all: another process that starts a cluster may read it at any moment."""
    part = directory / f"{_OWNER_FILE}.part"
    part.write_text(_identity(os.getpid()))
    part.rename(directory / _OWNER_FILE)


def _owned(directory: Path) -> bool:
    return (directory / _OWNER_FILE).exists()


def _age_s(directory: Path) -> float:
    try:
        return time.time() - directory.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def abandoned(directory: Path) -> bool:
    """Whether a cluster ran there whose process is gone, so that nothing of it can run any more."""
    try:
        owner = (directory / _OWNER_FILE).read_text()
    except OSError:
        return False
    return owner != _identity(owner.partition(" ")[0])


def _identity(pid: int | str) -> str:
    """Process id and start time, as an id may be used again; the id alone where there is no /proc."""
    if not Path("/proc/self/stat").exists():
        return str(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return f"{pid} {stat.rpartition(')')[2].split()[_START_TIME]}"
