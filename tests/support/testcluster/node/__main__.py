"""The node from a shell: `python -m testcluster.node [setup | up | down | in CMD... | enter CMD...]`."""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from testcluster.cluster import abandoned
from testcluster.errors import PartError
from testcluster.node import Node, namespaces, prepare, supported
from testcluster.node.machine import fastest_home
from testcluster.processes import wait_until

STOP_TIMEOUT_S = 60.0
"""Seconds that `down` waits for `up` to have cleaned up, which takes 0.3 s on an idle machine."""

POLL_S = 0.5

_NAME = "kvquota-node"
_STOP_FILE = "stop-requested"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand. Returns the exit code."""
    options = _parser().parse_args(argv)
    actions: Mapping[str, Callable[[Path, list[str]], int]] = {
        "setup": _setup,
        "up": _up,
        "down": _down,
        "in": lambda directory, command: _run(directory, command, namespaces.network_command),
        "enter": lambda directory, command: _run(directory, command, namespaces.whole_command),
    }
    directory = options.dir.absolute() if options.dir else _default_directory()
    try:
        return actions[options.action or "up"](directory, getattr(options, "command", []))
    except PartError as error:
        return _refuse(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m testcluster.node", description="A single-node Kubernetes.")
    parser.add_argument("--dir", type=Path, help=f"state directory (default: {_NAME} in memory or the temporary one)")
    actions = parser.add_subparsers(dest="action")
    actions.add_parser("setup", help="install and build what the node needs, and start nothing")
    actions.add_parser("up", help="run the node until Ctrl-C, SIGTERM or `down`; the default")
    actions.add_parser("down", help="end the node of another shell, or remove what a killed one left")
    for name, where in (("in", "the network namespace of the node"), ("enter", "all namespaces of the node")):
        action = actions.add_parser(name, help=f"run a command in {where}")
        action.add_argument("command", nargs=argparse.REMAINDER)
    return parser


def _default_directory() -> Path:
    """The directory that a node has already, so that its fellow commands find it, else the best one for a new node."""
    homes = (Path("/dev/shm"), Path(tempfile.gettempdir()))
    existing = next((home / _NAME for home in homes if (home / _NAME).exists()), None)
    return existing or fastest_home() / _NAME


def _setup(directory: Path, command: list[str]) -> int:
    """A machine without a node is not in error: its tests of the node are skipped with the same reason."""
    if reason := supported():
        print(f"not set up: {reason}", file=sys.stderr)
        return 0
    prepare()
    return 0


def _up(directory: Path, command: list[str]) -> int:
    if reason := supported():
        return _refuse(reason)
    asked_to_stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked_to_stop.set())
    with Node(directory) as node:
        _explain(node)
        while not asked_to_stop.wait(POLL_S) and not (directory / _STOP_FILE).exists():
            node.check_alive()
    return 0


def _explain(node: Node) -> None:
    support = Path(__file__).resolve().parents[2]
    again = (
        f"PYTHONPATH={shlex.quote(str(support))} {shlex.quote(sys.executable)} -m testcluster.node"
        f" --dir {shlex.quote(str(node.directory))}"
    )
    print(f"export KUBECONFIG={node.kubeconfig}")
    print(f"alias kubectl={node.access.kubectl_path}")
    print(f"reach pods: {again} in curl http://POD_IP:PORT/")
    print(f"runtime and pod logs: {again} enter ctr -n k8s.io containers ls")
    print(f"running until Ctrl-C, or `{again} down` in another shell", flush=True)


def _down(directory: Path, command: list[str]) -> int:
    if not directory.exists():
        return _refuse(f"there is no node in {directory}")
    if abandoned(directory):
        Node(directory).remove_abandoned()
        return 0
    (directory / _STOP_FILE).touch()
    if wait_until(lambda: not directory.exists(), timeout_s=STOP_TIMEOUT_S):
        return 0
    return _refuse(f"the node in {directory} did not end within {STOP_TIMEOUT_S:.0f} s; end the process that runs it")


def _run(directory: Path, command: list[str], in_node: Callable[..., list[str]]) -> int:
    if not command:
        return _refuse("which command? Such as: in curl http://10.244.0.10:8000/")
    if abandoned(directory) or not (directory / "init.pid").exists():
        return _refuse(f"there is no running node in {directory}; start one with `up`")
    line = in_node(namespaces.init_pid(directory), *command)
    environ = {**os.environ, "KUBECONFIG": str(directory / "inside.kubeconfig")}
    return subprocess.run(line, env=environ, check=False).returncode


def _refuse(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
