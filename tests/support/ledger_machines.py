"""What the state machines of the books share: pools that get full, and how far each machine has to go."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings

import machines
from bookkeeping import BLOCK, share
from kvquota_api.pod_config import TenantShare
from ledger_engine import Text
from machines import Counting, Run

NAMES = ("search", "batch", "night")
USABLE = 200
CONTEXT = 64 * BLOCK
OUTPUT = st.sampled_from([BLOCK, 4 * BLOCK, 8 * BLOCK])  # tokens
TIMES = st.sampled_from([(60, 60, 60), (8, 60, 60), (5, 10, 60)])  # that each of three tenants asks

MOST_WAIT = 4  # at once: enough for an order of arrival
SHORT = Run(settings(max_examples=60, stateful_step_count=40), steps=1000)
# With each of the four machines; an example takes 118 of its steps, by the mean.
LONG = Run(settings(max_examples=2_400, stateful_step_count=125), steps=250_000)

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


def explore(machine: type[Counting]) -> None:
    """Run it as the profile says."""
    machines.explore(machine, short=SHORT, long=LONG, must=("waited", "admitted after a wait", "evicted"))
