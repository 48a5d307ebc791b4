"""How a condition is decided: a chain of rules, of which the first that has something to say decides.

Decides nothing of its own. Pure; the time is given.

Invariants:

1. A reason and its message are made once, by the rule that decides; condition and event carry them unchanged.
2. `lastTransitionTime` moves only when the status changes; what stays so is equal to what is stored, bit by bit.
3. A stored status that nobody can read counts as none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from kvquota_api.conditions import MAX_MESSAGE, Condition, ConditionStatus, set_condition

NAMES_IN_MESSAGE: Final = 5  # of pods or tenants in one sentence: enough to start looking, short enough to read
NOT_ENFORCED_YET: Final = "NotEnforcedYet"  # the reason of who asks for what is accepted and not built

Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One answer: `reason` is one PascalCase word for programs, `message` says it to people and what to do."""

    status: ConditionStatus
    reason: str
    message: str


def decide(rules: Iterable[Callable[[Subject], Verdict | None]], subject: Subject, otherwise: Verdict) -> Verdict:
    """The first verdict of the chain, else `otherwise`."""
    verdicts = (rule(subject) for rule in rules)
    return next((verdict for verdict in verdicts if verdict is not None), otherwise)


def stored_conditions(status: Mapping[str, Any]) -> dict[str, Condition]:
    """The conditions of a stored status that can be read, by type."""
    listed = status.get("conditions")
    read = [_read(each) for each in listed] if isinstance(listed, list) else []
    return {condition.type: condition for condition in read if condition is not None}


def _read(stored: object) -> Condition | None:
    try:
        return Condition.model_validate(stored)
    except ValidationError:
        return None


def conditions_of(
    verdicts: Mapping[str, Verdict], stored: Mapping[str, Condition], generation: int, wall: datetime
) -> tuple[Condition, ...]:
    """One condition per verdict, in their order; `generation` of the object that they are about, `wall` in UTC."""
    return tuple(
        set_condition(
            [stored[kind]] if kind in stored else [],
            Condition(
                type=kind,
                status=verdict.status,
                reason=verdict.reason,
                message=verdict.message[:MAX_MESSAGE],
                last_transition_time=wall.replace(microsecond=0),
                observed_generation=max(0, generation),
            ),
        )[0]
        for kind, verdict in verdicts.items()
    )


def listed(names: Iterable[str]) -> str:
    """Names as a sentence lists them: the first few in order, and how many more there are."""
    ordered = sorted(names)
    more = len(ordered) - NAMES_IN_MESSAGE
    return ", ".join(ordered[:NAMES_IN_MESSAGE]) + (f" and {more} more" if more > 0 else "")


def pods_named(names: Collection[str], one: str = "", several: str = "") -> str:
    """The pods as the subject of a sentence, with their verb if there is one: "pods a, b have"."""
    named = f"pod{'' if len(names) == 1 else 's'} {listed(names)}"
    verb = one if len(names) == 1 else several
    return f"{named} {verb}" if verb else named
