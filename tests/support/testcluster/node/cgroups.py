"""Give the node a cgroup of its own in every hierarchy the kernel has.

On cgroup v1 each hierarchy has its own mount, and this process may be in differently named groups of them: the node's
groups lie below this process's, and a cgroup namespace makes them the roots of what the node sees. On cgroup v2 there
is one tree: the node's group lies directly below its root, since a group that holds processes cannot hand controllers
on.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from testcluster import cache
from testcluster.processes import wait_until

NEEDED = frozenset({"cpu", "cpuset", "memory", "pids"})
"""Controllers without which the kubelet does not start."""

REMOVE_TIMEOUT_S = 10.0
"""Seconds until the kernel lets go of a group whose processes have just been killed; 0.1 s is usual."""

_PREFIX = "kvquota-node-"


@dataclass(frozen=True, slots=True)
class Layout:
    """The kernel's hierarchies: version, where new groups go, and the options that mount each v1 hierarchy again."""

    version: int
    controllers: frozenset[str]
    parents: tuple[Path, ...]
    mount_options: tuple[str, ...] = ()


def read_layout() -> Layout:
    """Layout of this machine: v1 if the needed controllers are there, else v2."""
    mountinfo = Path("/proc/self/mountinfo").read_text()
    first = parse_v1(mountinfo, Path("/proc/self/cgroup").read_text())
    root = parse_v2_root(mountinfo)
    if first.controllers >= NEEDED or root is None:
        return first
    available = frozenset((root / "cgroup.controllers").read_text().split())
    return Layout(2, available, (root,))


def problem(layout: Layout) -> str | None:
    """Why the node cannot have a cgroup in this layout, or `None`."""
    if lacking := NEEDED - layout.controllers:
        return f"the test node needs cgroup controllers that are not mounted here: {', '.join(sorted(lacking))}"
    if layout.version == 1:
        return None
    try:
        _hand_on(layout.parents[0])
    except OSError as refused:
        return f"the test node cannot have cgroup controllers of its own below {layout.parents[0]}: {refused.strerror}"
    return None


def _hand_on(root: Path) -> None:
    """Give groups below the root of v2 the needed controllers, as systemd does; a container's root may refuse."""
    (root / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(NEEDED)))


def name_for(directory: Path) -> str:
    """Name of the groups of a node of this process with this state directory."""
    return f"{_PREFIX}{os.getpid()}-{cache.digest(str(directory))}"


def parse_v1(mountinfo: str, own: str) -> Layout:
    """Layout from the text of /proc/self/mountinfo and /proc/self/cgroup, of what belongs to v1."""
    mounts = [(Path(point), options) for kind, point, options in _mounts(mountinfo) if kind == "cgroup"]
    parents, remount = [], []
    for line in own.splitlines():
        _, names, path = line.split(":", 2)
        point = next((mount for mount, options in mounts if set(names.split(",")) <= options), None)
        if names and point:
            parents.append(point / path.lstrip("/"))
            remount.append(names)
    controllers = frozenset(name for names in remount for name in names.split(",") if not name.startswith("name="))
    return Layout(1, controllers, tuple(parents), tuple(remount))


def parse_v2_root(mountinfo: str) -> Path | None:
    """Mount point of the v2 tree from the text of /proc/self/mountinfo, if there is one."""
    return next((Path(point) for kind, point, _ in _mounts(mountinfo) if kind == "cgroup2"), None)


def _mounts(mountinfo: str) -> Iterator[tuple[str, str, set[str]]]:
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        yield kind, fields.split(" ")[4], set(options.split(","))


def create(layout: Layout, name: str) -> tuple[Path, ...]:
    """Make the groups called `name`; removing them again is the caller's duty."""
    if layout.version != 1:
        _hand_on(layout.parents[0])
    groups = tuple(parent / name for parent in layout.parents)
    for group in groups:
        group.mkdir(exist_ok=True)
        _copy_cpuset(group)
    return groups


def _copy_cpuset(group: Path) -> None:
    """A new v1 cpuset has no processors and takes no process until it is told its parent's."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (group.parent / name).exists():
            (group / name).write_text((group.parent / name).read_text())


def remove(layout: Layout, name: str) -> None:
    """Remove the groups called `name` with all below them; no process may be left in them."""
    for parent in layout.parents:
        wait_until(partial(_removed, parent / name), timeout_s=REMOVE_TIMEOUT_S)


def _removed(group: Path) -> bool:
    for directory, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            Path(directory).rmdir()
    return not group.exists()


def remove_leftovers(layout: Layout) -> None:
    """Remove groups whose maker is gone (its process id is in the name): it was killed before it could do so."""
    for name in {path.name for parent in layout.parents for path in parent.glob(f"{_PREFIX}*")}:
        maker = name.removeprefix(_PREFIX).split("-")[0]
        if not Path("/proc", maker).exists():
            remove(layout, name)
