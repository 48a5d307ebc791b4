"""The difference of two JSON documents as a JSON patch (RFC 6902), for what admission needs. Pure.

Invariants:

1. Applied to the first document it gives the second.
2. Equal documents give none. A list that differs is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Operation = dict[str, Any]


def patch(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> Iterator[Operation]:
    """The operations, in the order of the keys of `after`; then what is to go."""
    for key, value in after.items():
        where = f"{path}/{_escaped(key)}"
        if key not in before:
            yield {"op": "add", "path": where, "value": value}
        elif isinstance(value, Mapping) and isinstance(before[key], Mapping):
            yield from patch(before[key], value, where)
        elif before[key] != value:
            yield {"op": "replace", "path": where, "value": value}
    yield from ({"op": "remove", "path": f"{path}/{_escaped(key)}"} for key in before if key not in after)


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
