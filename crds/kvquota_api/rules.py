"""What one object can decide about itself: a sentence of CEL for the API server and the same check in Python.

Decides how a rule is written down. A rule stands in the class of the object that it judges (`Model.rules`); the CRD
takes its CEL and its message from there, `kvquota_api.validation` its check. Pure.

Invariants:

1. CEL and check judge alike; both are run on one table of objects, the CEL by a real API server.
2. A message is one sentence that says what to do, without numbers of the object: the API server adds those.

It does not know any resource, and nothing of other objects: those are conditions of a status.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rule:
    """`holds(object)` is the check in Python. `field`: whom to blame, as users write it; empty for the object."""

    cel: str
    message: str
    holds: Callable[[Any], bool]
    field: str = ""


@dataclass(frozen=True, slots=True)
class ChangeRule:
    """A rule for an update: `holds(old, new)`."""

    cel: str
    message: str
    holds: Callable[[Any, Any], bool]
    field: str = ""


def exactly_one_of(*fields: str) -> Rule:
    """Exactly one of these optional fields is set; `fields` as users write them and as the class names them."""
    listed = ", ".join(fields[:-1]) + f" or {fields[-1]}"
    return Rule(
        cel="[" + ", ".join(f"has(self.{field})" for field in fields) + "].filter(x, x).size() == 1",
        message=f"set exactly one of {listed}",
        holds=lambda model: len(model.present_fields() & set(fields)) == 1,
    )


def immutable(field: str, attribute: str, message: str) -> ChangeRule:
    """The required field keeps the value that it was created with."""
    return ChangeRule(
        cel=f"self.{field} == oldSelf.{field}",
        message=message,
        holds=lambda old, new: getattr(old, attribute) == getattr(new, attribute),
        field=field,
    )
