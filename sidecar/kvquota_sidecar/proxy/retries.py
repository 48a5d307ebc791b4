"""What refused bodies ask for: a client that was refused sends the same body again, and floods are made of that.

Decides which shapes are remembered. Pure.

Invariants:

1. What is recalled is what the body, sent to that route under that config, would be read as again.
2. At most MAX_KEPT bodies of MAX_BYTES each are kept, and only of requests that were refused. One tenant's are of no
   use to another, so none learns from the time that an answer takes what others have sent.
"""

from __future__ import annotations

from typing import Final

from kvquota_sidecar.estimate.shape import Shape
from kvquota_sidecar.proxy.identity import Directory

MAX_KEPT: Final = 64  # bodies: of as many clients that are refused at a time
MAX_BYTES: Final = 16 * 1024  # of one: 1 MiB together; a longer one takes longer to compare than it is worth


class Retries:
    """The shapes of bodies that were refused under one config."""

    __slots__ = ("_directory", "_shapes")

    def __init__(self) -> None:
        self._directory: Directory | None = None
        self._shapes: dict[tuple[str, str, bytes], Shape] = {}

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._shapes)

    def recall(self, tenant: str, path: str, body: bytes, directory: Directory) -> Shape | None:
        """The shape of a body that was refused; None: it was not, or is forgotten."""
        if not self._shapes or directory is not self._directory or len(body) > MAX_BYTES:
            return None
        return self._shapes.get((tenant, path, body))

    def keep(self, tenant: str, path: str, body: bytes, directory: Directory, shape: Shape) -> None:
        """`body` was refused."""
        if directory is not self._directory:
            self._shapes.clear()
            self._directory = directory
        if len(body) > MAX_BYTES or (tenant, path, body) in self._shapes:
            return
        if len(self._shapes) >= MAX_KEPT:
            self._shapes.clear()
        self._shapes[tenant, path, body] = shape
