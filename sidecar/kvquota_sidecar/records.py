"""What the values of one request stand on: msgspec's structs, which are made in a tenth of a frozen dataclass's time.

The options stand here, as classes inherit them: a compiled module loses those that its own classes name
(`hatch_build.py`). So this module is not compiled, and a class names `frozen` again only for the type checker.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

__all__ = ["LeafValue", "MutableLeaf", "Value", "replace"]


class Value(msgspec.Struct, frozen=True):
    """Does not change, and is equal to another of the same content."""


class LeafValue(Value, frozen=True, gc=False):
    """A value that nothing leads back to, so the garbage collector need not follow it."""


class MutableLeaf(msgspec.Struct, eq=False, gc=False):
    """Changes, and is equal to itself alone. Nothing leads back to it, so the garbage collector need not follow it."""
