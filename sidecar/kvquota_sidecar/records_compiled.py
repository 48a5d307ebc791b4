"""What stands in place of `records` in the compiled sidecar: classes whose fields the compiler puts at known places.

`hatch_build.py` gives each record that stands on them an `__init__` of its fields, and takes the leaves from the
garbage collector. A leaf cannot stand on what is no leaf, so both kinds of values have methods of their own. That none
changes a value, mypy has seen; here nothing prevents it.
"""

from __future__ import annotations

from typing import Any, TypeVar

_T = TypeVar("_T")


class Value:
    """Does not change, and is equal to another of the same content."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and _content(self) == _content(other)

    def __hash__(self) -> int:
        return hash(tuple(_content(self).values()))

    def __repr__(self) -> str:
        return _told(self)


class LeafValue:
    """A value that nothing leads back to, so the garbage collector need not follow it."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and _content(self) == _content(other)

    def __hash__(self) -> int:
        return hash(tuple(_content(self).values()))

    def __repr__(self) -> str:
        return _told(self)


class MutableLeaf:
    """Changes, and is equal to itself alone. Nothing leads back to it, so the garbage collector need not follow it."""

    def __repr__(self) -> str:
        return _told(self)


def replace(record: _T, **changes: Any) -> _T:
    """The same record with other values of some fields."""
    kind: Any = type(record)
    made: _T = kind(**{**_content(record), **changes})
    return made


def _content(record: object) -> dict[str, Any]:
    names: tuple[str, ...] = getattr(record, "__mypyc_attrs__")  # noqa: B009 - the compiler's own, which mypy does not know
    return {name: getattr(record, name) for name in names}


def _told(record: object) -> str:
    fields = ", ".join([f"{name}={value!r}" for name, value in _content(record).items()])
    return f"{type(record).__name__}({fields})"
