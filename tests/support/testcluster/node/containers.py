"""Containers of pods as the node's own root sees them: what the kubelet says of one, and its first process.

Nothing here asks the kubelet or the runtime to do anything: what happens to a process is the kernel's doing, and they
find out by themselves.
"""

import json
from collections.abc import Mapping
from typing import Any

_LISTS = ("initContainerStatuses", "containerStatuses")


def status_of(pod: str, container: str) -> Mapping[str, Any]:
    """The status of a container in the JSON of its pod. Raises `LookupError` where there is none yet."""
    found = json.loads(pod)
    for each in (each for name in _LISTS for each in found["status"].get(name, [])):
        if each["name"] == container:
            status: Mapping[str, Any] = each
            return status
    raise LookupError(f"nothing is known yet of container {container} of pod {found['metadata']['name']}")


def first_process(tasks: str, status: Mapping[str, Any]) -> int:
    """Id of process 1 of a container, from what `ctr tasks ls` printed. Raises `LookupError` if it does not run."""
    wanted = status.get("containerID", "").removeprefix("containerd://")
    for line in tasks.splitlines()[1:]:
        name, process, state = line.split()
        if name == wanted and state == "RUNNING":
            return int(process)
    raise LookupError(f"container {status['name']} does not run: {status.get('state')}")
