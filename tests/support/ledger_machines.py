"""What the state machines of the books share: pools that get full, and how far each machine has to go."""

from __future__ import annotations

import sys
from collections import Counter
from typing import ClassVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from bookkeeping import BLOCK, share
from kvquota_api.pod_config import TenantShare
from ledger_engine import Text

NAMES = ("search", "batch", "night")
USABLE = 200
CONTEXT = 64 * BLOCK
OUTPUT = st.sampled_from([BLOCK, 4 * BLOCK, 8 * BLOCK])  # tokens
TIMES = st.sampled_from([(60, 60, 60), (8, 60, 60), (5, 10, 60)])  # that each of three tenants asks

MOST_WAIT = 4  # at once: enough for an order of arrival
FEW = 5  # times that each thing has to be met, or the machine does not show what it should
LONG_STEPS = 250_000  # that the long profile takes with each of the four machines
SHORT = settings(max_examples=60, stateful_step_count=40)
LONG = settings(max_examples=2_400, stateful_step_count=125)  # an example takes 118 of its steps, by the mean

letters = st.lists(st.sampled_from([0, 0, 0, 1, 2, 3, 4]), max_size=6).map(tuple)
texts = st.builds(Text, letters, st.integers(0, 511))
usual_texts = st.builds(Text, st.lists(st.sampled_from([0, 0, 1]), max_size=6).map(tuple), st.integers(0, 511))


@st.composite
def quotas(draw: st.DrawFn, enforcement: st.SearchStrategy[str]) -> tuple[TenantShare, ...]:
    def one(name: str) -> TenantShare:
        soft = draw(st.sampled_from([50, 50, 60, 20, 0]))
        return share(
            name,
            priority=draw(st.sampled_from([0, 10, 100])),
            soft_blocks=soft,
            hard_blocks=soft + draw(st.sampled_from([150, 150, 150, 30, 0])),
            max_concurrent_requests=draw(st.sampled_from([None, None, None, 4, 12])),
            max_context_tokens=draw(st.sampled_from([None, None, 40 * BLOCK])),
            enforcement=draw(enforcement),
        )

    names = draw(st.sampled_from([NAMES, NAMES, NAMES, NAMES[:2], NAMES[1:]]))
    return tuple(one(name) for name in names)


class Counting(RuleBasedStateMachine):
    """Counts its steps, and what it `met`."""

    steps: ClassVar[int] = 0
    met: ClassVar[Counter[str]] = Counter()


def explore(machine: type[Counting]) -> None:
    """Run it as the profile says; in the long one count that it has gone as far as it should."""
    is_long = settings().max_examples > 1000
    bounds = LONG if is_long else SHORT
    machine.steps, machine.met = 0, Counter()
    run_state_machine_as_test(
        machine, settings=settings(bounds, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    )
    sys.stdout.write(f"{machine.__name__}: {machine.steps} steps, {dict(machine.met)}\n")
    assert machine.steps >= (LONG_STEPS if is_long else 1000)
    assert min(machine.met[each] for each in ("waited", "admitted after a wait", "evicted")) >= FEW
