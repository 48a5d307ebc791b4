"""A real single-node Kubernetes for tests, in seconds, without a container daemon.

`supported()` says why it cannot run here, `prepare()` gets its parts, `Node` runs it; the shell has
`python -m testcluster.node`.
"""

from testcluster.node.files import PAUSE_IMAGE, PYTHON_IMAGE
from testcluster.node.machine import prepare, supported
from testcluster.node.single_node import Node

__all__ = ["PAUSE_IMAGE", "PYTHON_IMAGE", "Node", "prepare", "supported"]
