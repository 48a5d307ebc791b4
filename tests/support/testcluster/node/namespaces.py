"""Reach into the node's namespaces, by commands and by sockets, while the calling process stays in its own.

A socket belongs to the namespace of the thread that made it, for ever and whoever uses it later. So only a short-lived
thread enters the namespace, and what it makes works from any thread or event loop of the test.
"""

import ctypes
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_CLONE_NEWNET = 0x40000000
"""From <linux/sched.h>: the kind of namespace that `setns` shall accept."""

CONNECT_TIMEOUT_S = 10.0
"""Seconds for a connection to a pod: refused or made at once on the node's bridge, lost packets are not expected."""

T = TypeVar("T")


def inside(namespace: Path, make: Callable[[], T], *, timeout_s: float = CONNECT_TIMEOUT_S * 2) -> T:
    """Result of `make()` in a thread that is in the network namespace of a file such as /proc/1/ns/net."""
    results: list[T] = []
    errors: list[BaseException] = []

    def enter_and_make() -> None:
        try:
            _enter(namespace)
            results.append(make())
        except BaseException as error:  # noqa: BLE001  raised again in the calling thread
            errors.append(error)

    thread = threading.Thread(target=enter_and_make, name="testcluster-netns", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"nothing came out of the network namespace {namespace} within {timeout_s:.0f} s")
    return results[0]


def _enter(namespace: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot enter {namespace}: {os.strerror(number)}")
    finally:
        os.close(descriptor)


def connect(namespace: Path, host: str, port: int, *, timeout_s: float = CONNECT_TIMEOUT_S) -> socket.socket:
    """A connected, blocking TCP socket without a time-out. Raises `OSError` like `socket.create_connection`."""
    made = inside(namespace, lambda: socket.create_connection((host, port), timeout_s), timeout_s=timeout_s * 2)
    made.settimeout(None)
    return made


def listen(namespace: Path, host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one."""
    return inside(namespace, lambda: socket.create_server((host, port)))


def init_pid(directory: Path) -> int:
    """Id of process 1 of the node with this state directory. Raises `OSError` if none was started."""
    return int((directory / "init.pid").read_text())


def network_command(pid: int, *argv: str | Path) -> list[str]:
    """Command line that runs `argv` in the network namespace of a process and in no other of its namespaces."""
    return ["nsenter", f"--target={pid}", "--net", "--", *map(str, argv)]


def whole_command(pid: int, *argv: str | Path) -> list[str]:
    """Command line that runs `argv` in all namespaces of a process; its working directory is that process's root."""
    kinds = ("--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup")
    return ["nsenter", f"--target={pid}", *kinds, "--", *map(str, argv)]
