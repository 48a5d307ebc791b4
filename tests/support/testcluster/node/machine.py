"""What the node asks of the machine: whether it has it, and getting what can be got."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from testcluster import assets, debian
from testcluster.cluster import ClusterStartError
from testcluster.node import cgroups
from testcluster.programs import ProgramError, run

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl", "pause")
"""Names of `assets.ASSETS` that a node runs."""

MEMORY_ROOM_BYTES = 4 << 30
"""Free bytes in /dev/shm, and twice that of memory, for the node's state to be there: images take 0.5 GiB."""

HIDDEN = ("/run", "/var/run", "/var/lib", "/var/log")
"""Directories that are mounted over inside the node: nothing that it needs may lie there."""


def supported() -> str | None:
    """Why the node cannot run on this machine, or `None` if it can."""
    if sys.platform != "linux":
        return f"the test node needs Linux namespaces, this is {sys.platform}"
    if os.geteuid() != 0:
        return "the test node needs root: it makes namespaces, mounts and cgroups"
    return _lacking_program() or cgroups.problem(cgroups.read_layout()) or _lacking_namespaces()


def _lacking_program() -> str | None:
    needed = [name for name in ("unshare", "nsenter", "mount", "setpriv") if shutil.which(name) is None]
    if needed:
        return f"the test node needs {', '.join(needed)} of util-linux"
    packages = debian.missing()
    if packages and shutil.which("apt-get") is None:
        return f"the test node needs {', '.join(packages)}, and there is no apt-get to install them"
    return None


def _lacking_namespaces() -> str | None:
    try:
        run(["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "true"])
    except ProgramError as refused:
        return f"the test node may not make namespaces here: {refused.output.strip()}"
    return None


def prepare() -> None:
    """Install and build all that the node needs; a second call needs no network. Prints what takes long."""
    debian.install()
    for name in PROGRAMS:
        assets.find(name)
    debian.python_rootfs()


def fastest_home() -> Path:
    """Directory for the node's state: in memory if there is room, else the temporary one."""
    memory = Path("/dev/shm")
    return memory if _has_room(memory) else Path(tempfile.gettempdir())


def _has_room(memory: Path) -> bool:
    if not memory.is_dir():
        return False
    state = os.statvfs(memory)
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (
        state.f_bavail * state.f_frsize >= MEMORY_ROOM_BYTES
        and available >= 2 * MEMORY_ROOM_BYTES
        and not state.f_flag & os.ST_NOEXEC
    )


def refuse_hidden(path: Path) -> Path:
    """The path again. Raises `ClusterStartError` if the node would not see it."""
    if any(path.resolve().is_relative_to(directory) for directory in HIDDEN):
        hidden = ", ".join(HIDDEN)
        raise ClusterStartError(f"{path} lies under one of {hidden}, which the node hides; move it elsewhere")
    return path
