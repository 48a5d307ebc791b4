"""Running a state machine of Hypothesis to where it has shown what it should."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

FEW = 5  # times that each thing has to be met, or the machine does not show what it should


class Counting(RuleBasedStateMachine):
    """Counts its steps, and what it `met`."""

    steps: ClassVar[int] = 0
    met: ClassVar[Counter[str]] = Counter()


@dataclass(frozen=True)
class Run:
    """How far a machine goes in one profile, and how many steps it takes at least."""

    bounds: settings
    steps: int


def explore(machine: type[Counting], *, short: Run, long: Run, must: Sequence[str]) -> None:
    """Run it as the profile says; then it has gone as far as it should, and has met all of `must`."""
    run = long if settings().max_examples > 1000 else short
    machine.steps, machine.met = 0, Counter()
    run_state_machine_as_test(
        machine, settings=settings(run.bounds, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    )
    sys.stdout.write(f"{machine.__name__}: {machine.steps} steps, {dict(machine.met)}\n")
    assert machine.steps >= run.steps
    assert min(machine.met[each] for each in must) >= FEW
