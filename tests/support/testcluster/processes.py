"""Start servers that cannot outlive the tests: each in a process group of its own, ended with the test process.

The kernel is told to kill a server when the thread that started it ends (`PR_SET_PDEATHSIG`). A test's own thread may
end early, so all servers of one `Keeper` are started by a thread that lives exactly as long as the keeper does.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

STOP_TIMEOUT_S = 10.0
"""Seconds a server gets to end after SIGTERM before its group is killed; etcd and the API server need under 1 s."""

POLL_S = 0.05

TAIL_LINES = 25
"""Lines of each log that an error shows: the last words of a server that refuses a flag, without the stack before."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running program, the leader of its own process group, and the file that its output goes to."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None


class Keeper:
    """Starts servers and ends exactly those it started."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self.servers: list[Server] = []

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        log: Path,
        *,
        environ: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Server:
        """Start one program with no standard input and its output in `log`."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="testcluster-keeper")
        command = [*_die_with_parent(), *(str(part) for part in argv)]
        process = self._thread.submit(_spawn, command, log, environ, pass_fds).result()
        server = Server(name, process, log)
        self.servers.append(server)
        return server

    def end(self, server: Server) -> None:
        """End one server and wait until it is gone."""
        self.servers.remove(server)
        _end(server)

    def stop(self) -> None:
        """End all servers, the last started first, and wait until none is left."""
        while self.servers:
            self.end(self.servers[-1])
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None


def _die_with_parent() -> list[str]:
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def _spawn(
    command: list[str], log: Path, environ: Mapping[str, str] | None, pass_fds: Sequence[int]
) -> "subprocess.Popen[bytes]":
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
            pass_fds=pass_fds,
            start_new_session=True,
        )


def _end(server: Server) -> None:
    if _signal_group(server, signal.SIGTERM):
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(STOP_TIMEOUT_S)
    _signal_group(server, signal.SIGKILL)
    server.process.wait(STOP_TIMEOUT_S)


def _signal_group(server: Server, number: signal.Signals) -> bool:
    """Whether there was anybody to signal: the id of a server that was waited for may be somebody else's by now."""
    if not server.alive:
        return False
    os.killpg(server.process.pid, number)
    return True


def wait_until(ready: Callable[[], bool], *, timeout_s: float, poll_s: float = POLL_S) -> bool:
    """Whether `ready()` became true in time; it is asked at least once."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment; another process may take it before the caller does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tail(log: Path) -> str:
    """Path and last lines of a log, for an error message."""
    lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:] if log.exists() else ["(no such file)"]
    return "\n".join([f"--- {log}", *lines])


def command_lines_with(text: str) -> list[str]:
    """Command lines of all processes of the machine, but this one, that have a text in them."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if text in line and path.parent.name != str(os.getpid()):
                lines.append(line)
    return lines
